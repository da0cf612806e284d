"""mma.sync and wgmma on small integers, which every order of accumulation sums exactly."""

import numpy as np

from .asynchronous import swizzled
from .exact import BF16, F16
from .program import Program

RNG = np.random.default_rng(19)
F8 = {"e4m3": (4, 3), "e5m2": (5, 2)}


def encode(x: np.ndarray, kind: str) -> np.ndarray:
    """Small integers in a format, as unsigned bit patterns."""
    if kind in ("s8", "u8"):
        return x.astype(np.int8).view(np.uint8)
    if kind == "f64":
        return x.astype(np.float64).view(np.uint64)
    if kind == "tf32":
        return x.astype(np.float32).view(np.uint32)
    if kind in ("f16", "bf16"):
        f = F16 if kind == "f16" else BF16
        values, places = np.unique(x, return_inverse=True)
        return np.array([f.round(int(v)) for v in values], np.uint16)[places.reshape(x.shape)]
    e, m = F8[kind]
    bias = (1 << (e - 1)) - 1

    def one(v):
        v, sign = abs(int(v)), int(v < 0) << 7
        if v == 0:
            return sign
        p = v.bit_length() - 1
        return sign | (p + bias) << m | ((v << m >> p) & ((1 << m) - 1))

    return np.vectorize(one, otypes=[np.uint8])(x)


def small(shape, kind) -> np.ndarray:
    low, high = (0, 8) if kind == "u8" else (-7, 8)
    return RNG.integers(low, high, shape)


def lane_words(elements: np.ndarray) -> np.ndarray:
    """(32, elements of a lane) packed into 32-bit registers: (32, registers)."""
    return np.ascontiguousarray(elements).view(np.uint32)


def _fragment_a(a: np.ndarray, per: int) -> np.ndarray:
    """(M, K) as each lane's elements in register order: rows l / 4 (+ 8), `per` columns each, then the next 4 * per."""
    m, k = a.shape
    out = [[a[lane // 4 + 8 * half, 4 * per * block + per * (lane % 4) + e] for block in range(k // (4 * per))
            for half in range(m // 8) for e in range(per)] for lane in range(32)]
    return np.array(out, a.dtype)


def _fragment_b(b: np.ndarray, per: int) -> np.ndarray:
    k = b.shape[0]
    out = [[b[4 * per * block + per * (lane % 4) + e, lane // 4] for block in range(k // (4 * per)) for e in range(per)]
           for lane in range(32)]
    return np.array(out, b.dtype)


def _fragment_c(c: np.ndarray) -> np.ndarray:
    halves = range(c.shape[0] // 8)
    out = [[c[lane // 4 + 8 * half, 2 * (lane % 4) + e] for half in halves for e in range(2)] for lane in range(32)]
    return np.array(out, c.dtype)


def mma_sync(shape: tuple, types: tuple, name: str = "", arch: str = "sm_90a") -> Program:
    """shape: M, K. types: of D, A, B, C as PTX spells them."""
    m, k = shape
    d, ta, tb, _ = types
    a, b = small((m, k), ta), small((k, 8), tb)
    c = RNG.integers(-50, 50, (m, 8))
    total = a @ b + c
    kind_c = {"f32": np.float32, "s32": np.int32, "f64": np.float64, "f16": np.float16}[d]
    per = {"f16": 2, "bf16": 2, "tf32": 1, "f64": 1}.get(ta, 4)
    wide = d == "f64"
    parts = [_fragment_a(encode(a, ta), per), _fragment_b(encode(b, tb), per), _fragment_c(c.astype(kind_c))]
    word = np.uint64 if wide else np.uint32
    parts = [np.ascontiguousarray(p).view(word) for p in parts]
    want = np.ascontiguousarray(_fragment_c(total.astype(kind_c))).view(word)
    register, size, letter = ("%rd", 8, "b64") if wide else ("%r", 4, "b32")
    body, names, first = "mov.u32 %r0, %tid.x;\n", [], 10
    for i, p in enumerate(parts):
        n = p.shape[1]
        names.append("{" + ", ".join(f"{register}{first + j}" for j in range(n)) + "}")
        body += f"mad.wide.u32 %rd0, %r0, {n * size}, %rd{51 + i};"
        body += "".join(f"ld.global.{letter} {register}{first + j}, [%rd0+{size * j}];" for j in range(n)) + "\n"
        first += n
    n = want.shape[1]
    result = "{" + ", ".join(f"{register}{first + j}" for j in range(n)) + "}"
    op = f"mma.sync.aligned.m{m}n8k{k}.row.col{name}." + ".".join(types)
    body += f"{op} {result}, {names[0]}, {names[1]}, {names[2]};\nmad.wide.u32 %rd0, %r0, {n * size}, %rd50;"
    body += "".join(f"st.global.{letter} [%rd0+{size * j}], {register}{first + j};" for j in range(n))
    return Program(op, body, (np.zeros_like(want), *parts), {0: want}, arch=arch)


def _mma_sync():
    for m, k, types in (
        (16, 8, ("f32", "f16", "f16", "f32")), (16, 16, ("f32", "f16", "f16", "f32")), (16, 16, ("f16", "f16", "f16", "f16")),
        (16, 8, ("f16", "f16", "f16", "f16")), (16, 8, ("f32", "bf16", "bf16", "f32")), (16, 16, ("f32", "bf16", "bf16", "f32")),
        (16, 4, ("f32", "tf32", "tf32", "f32")), (16, 8, ("f32", "tf32", "tf32", "f32")),
        (16, 32, ("f32", "e4m3", "e4m3", "f32")),
        (16, 32, ("f32", "e4m3", "e5m2", "f32")), (16, 32, ("f32", "e5m2", "e5m2", "f32")),
        (16, 32, ("f16", "e5m2", "e4m3", "f16")),
        (16, 16, ("s32", "s8", "s8", "s32")), (16, 32, ("s32", "s8", "u8", "s32")), (16, 32, ("s32", "u8", "s8", "s32")),
        (8, 16, ("s32", "s8", "s8", "s32")), (8, 4, ("f64", "f64", "f64", "f64")), (16, 8, ("f64", "f64", "f64", "f64")),
    ):
        yield mma_sync((m, k), types)


# ---- operands in shared memory, for wgmma and tcgen05.mma
def operand_image(x: np.ndarray, span: int, mn_major: bool) -> tuple[bytes, int, int]:
    """Shared memory bytes of an (MN, K) operand of bit patterns, and the leading and stride byte offsets of its descriptor.

    K-major: atoms of 8 rows and `span` bytes, placed one after the other along MN, then along K. MN-major: atoms of `span` bytes
    of MN and 8 k, along K first. Without swizzle (span 16): atoms of 8 rows of 16 bytes."""
    mn, k = x.shape
    item = x.itemsize
    per = span // item
    if not mn_major:
        columns = k // per
        tile = x.reshape(mn // 8, 8, columns, per).transpose(2, 0, 1, 3)
        stride, leading = 8 * span, mn // 8 * 8 * span
    else:
        tile = x.T.reshape(k // 8, 8, mn // per, per).transpose(2, 0, 1, 3)
        stride, leading = 8 * span, k // 8 * 8 * span
    image = np.ascontiguousarray(tile).tobytes()
    return (swizzled(image, span) if span > 16 else image), leading, stride


def descriptor(leading: int, stride: int) -> int:
    """Without start address and layout."""
    return (leading >> 4) << 16 | (stride >> 4) << 32


LAYOUT90 = {16: 0, 128: 1, 64: 2, 32: 3}


def load_shared(total: int, threads: int) -> str:
    """Copies %rd51 to buf (%r10), `total` bytes, and makes it visible to the tensor cores."""
    return (f".shared .align 1024 .b8 buf[{total}];\nmov.u32 %r0, %tid.x; mov.b32 %r10, buf; mov.b32 %r20, %r0;\n"
            f"I: setp.ge.u32 %p2, %r20, {total // 4}; @%p2 bra F; shl.b32 %r21, %r20, 2; add.u32 %r22, %r10, %r21;"
            f"mad.wide.u32 %rd3, %r20, 4, %rd51; ld.global.b32 %r23, [%rd3]; st.shared.b32 [%r22], %r23; add.u32 %r20, %r20,"
            f" {threads};"
            "bra I; F: fence.proxy.async.shared::cta; bar.sync 0;\n")


def wgmma(n: int, types: tuple, span: int, a_mn=False, b_mn=False, a_registers=False, negate=False) -> Program:
    """One k block of wgmma twice: the second accumulates onto the first. types: D, A, B."""
    d, ta, tb = types
    k = {"f16": 16, "bf16": 16, "tf32": 8}.get(ta, 32)
    item = {"f16": 2, "bf16": 2, "tf32": 4}.get(ta, 1)
    if a_mn or b_mn:
        assert item == 2
    wide_k = max(k, span // item) if span > 16 else k  # a whole atom; the first block of it is used
    a, b = small((64, wide_k), ta), small((n, wide_k), tb)
    image_a, lead_a, stride_a = operand_image(encode(a, ta), span, a_mn)
    image_b, lead_b, stride_b = operand_image(encode(b, tb), span, b_mn)
    pad = -len(image_a) % 1024
    image = np.frombuffer(image_a + bytes(pad) + image_b + bytes(-len(image_b) % 1024), np.uint8).copy()
    product = a[:, :k] @ b[:, :k].T * (-1 if negate else 1)
    total = 2 * product
    half = d == "f16"
    registers = n // 4 if half else n // 2
    kind = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[d]
    rows = [[total[16 * (t // 32) + t % 32 // 4 + 8 * h, 8 * j + 2 * (t % 4) + e] for j in range(n // 8) for h in range(2)
             for e in range(2)] for t in range(128)]
    want = np.array(rows, kind).view(np.uint32)
    assert want.shape[1] == registers
    layout = LAYOUT90[span] << 62
    body = load_shared(image.size, 128)
    for name, offset, lead, stride in (("%rd10", 0, lead_a, stride_a), ("%rd11", len(image_a) + pad, lead_b, stride_b)):
        body += (f"add.u32 %r21, %r10, {offset}; shr.u32 %r21, %r21, 4; and.b32 %r21, %r21, 0x3fff; cvt.u64.u32 %rd3, %r21;"
                 f"or.b64 {name}, %rd3, {descriptor(lead, stride) | layout:#x};\n")
    acc = "{" + ", ".join(f"%r{100 + i}" for i in range(registers)) + "}"
    source = "%rd10"
    arrays = [np.zeros_like(want), image]
    if a_registers:
        per = 4 // item
        fragments = np.concatenate([_fragment_a(encode(a, ta)[16 * w : 16 * w + 16, :k], per) for w in range(4)])
        words = np.ascontiguousarray(fragments).view(np.uint32)
        arrays.append(words)
        body += "mad.wide.u32 %rd4, %r0, 16, %rd52; ld.global.v4.b32 {%r30, %r31, %r32, %r33}, [%rd4];\n"
        source = "{%r30, %r31, %r32, %r33}"
    float_forms = f", {-1 if negate else 1}, 1" if d != "s32" else ""
    major = (f", {int(b_mn)}" if a_registers else f", {int(a_mn)}, {int(b_mn)}") if item == 2 else ""
    op = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d}.{ta}.{tb}"
    mma = f"{op} {acc}, {source}, %rd11, PRED{float_forms}{major};\n"
    body += "setp.ne.u32 %p3, %r10, %r10; setp.eq.u32 %p4, %r10, %r10; wgmma.fence.sync.aligned;\n"
    body += mma.replace("PRED", "%p3") + mma.replace("PRED", "%p4")
    body += "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n"
    body += f"mad.wide.u32 %rd5, %r0, {registers * 4}, %rd50;"
    body += "".join(f"st.global.b32 [%rd5+{4 * i}], %r{100 + i};" for i in range(registers))
    title = f"{op} swizzle {span}" + " A MN-major" * a_mn + " B MN-major" * b_mn
    title += " A in registers" * a_registers + " negated" * negate
    return Program(title, body, tuple(arrays), {0: want}, block=128)


def _wgmma():
    for span in (128, 64, 32, 16):
        yield wgmma(64, ("f32", "bf16", "bf16"), span)
        yield wgmma(64, ("f32", "f16", "f16"), span, a_registers=True)
    for span in (128, 64, 32):
        yield wgmma(64, ("f32", "bf16", "bf16"), span, b_mn=True)
        yield wgmma(64, ("f32", "f16", "f16"), span, a_mn=True, b_mn=True)
    for n in (8, 80, 128, 248, 256):
        yield wgmma(n, ("f32", "bf16", "bf16"), 128)
    yield wgmma(32, ("f32", "bf16", "bf16"), 128, negate=True)
    yield wgmma(64, ("f16", "f16", "f16"), 128)
    yield wgmma(64, ("f32", "tf32", "tf32"), 128)
    yield wgmma(64, ("f32", "tf32", "tf32"), 64, a_registers=True)
    for ta, tb in (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e5m2")):
        yield wgmma(64, ("f32", ta, tb), 128)
    yield wgmma(32, ("f32", "e5m2", "e4m3"), 64, a_registers=True)
    yield wgmma(64, ("f16", "e4m3", "e4m3"), 128)
    for ta, tb in (("s8", "s8"), ("u8", "s8"), ("s8", "u8")):
        yield wgmma(64, ("s32", ta, tb), 128)
    yield wgmma(32, ("s32", "s8", "s8"), 32, a_registers=True)


def programs():
    yield from _mma_sync()
    yield from _wgmma()
