"""Programs that show how a GPU rounds: sums of products in the tensor cores, approximations over whole ranges. They have no
expected values; `expect` only names the outputs. Checksums of what an H200 computed: tests/emulator/h200_arithmetic.json."""

import zlib

import numpy as np

from .matrices import LAYOUT90, descriptor, load_shared, operand_image
from .program import Program

BLOCKS = 16  # CTAs, each with numbers of another kind
FORMATS = {  # bits, exponent bits, mantissa bits
    "bf16": (16, 8, 7), "f16": (16, 5, 10), "tf32": (32, 8, 10), "e4m3": (8, 4, 3), "e5m2": (8, 5, 2), "f32": (32, 8, 23),
}


def checksum(*arrays: np.ndarray) -> int:
    total = 0
    for a in arrays:
        total = zlib.crc32(np.ascontiguousarray(a).tobytes(), total)
    return total


def _join(kind: str, sign, exponent, mantissa) -> np.ndarray:
    """Bit patterns from a sign, a biased exponent (cut to the format's finite range) and a mantissa."""
    bits, e, m = FORMATS[kind]
    largest = (1 << e) - (1 if kind == "e4m3" else 2)
    exponent = np.clip(exponent, 0, largest)
    if kind == "e4m3":
        mantissa = np.where(exponent == largest, mantissa % 7, mantissa)  # the last code is NaN
    word = (sign.astype(np.int64) << (e + m)) | exponent.astype(np.int64) << m | mantissa
    if kind == "tf32":
        word = word << 13
    return word.astype({8: np.uint8, 16: np.uint16, 32: np.uint32}[bits])


def numbers(kind: str, shape: tuple, block: int, rng: np.random.RandomState, where: str) -> np.ndarray:
    """Bit patterns of one kind of numbers. rng: RandomState, whose streams never change."""
    _, e, m = FORMATS[kind]
    sign, mantissa = rng.randint(0, 2, shape), rng.randint(0, 1 << m, shape)
    bias, style = (1 << (e - 1)) - 1, block % 8
    spread = {0: 0, 1: 2, 2: 5, 3: 10, 4: 5, 5: 4, 6: 3, 7: 1 << (e - 1)}[style]
    exponent = bias + rng.randint(-spread, spread + 1, shape)
    if style == 4:  # powers of two: what is cut off where
        mantissa = np.where(rng.randint(0, 4, shape), 0, mantissa)
    if style == 5:  # zeros among them
        exponent, mantissa = (np.where(rng.randint(0, 3, shape), 0, x) for x in (exponent, mantissa))
        exponent = np.where((exponent > 0) & (rng.randint(0, 4, shape) == 0), (1 << e) - 2 - (kind == "e4m3"), exponent)
    if style == 6:  # subnormal numbers and small ones
        exponent = rng.randint(0, 4, shape) if where != "c" else np.maximum(bias - 2 * bias + rng.randint(0, 8, shape), 0)
    if where == "c" and block >= 8:
        return np.zeros(shape, _join(kind, sign, exponent, mantissa).dtype)
    found = _join(kind, sign, exponent, mantissa)
    if block == BLOCKS - 1:  # infinities and NaN among them
        special = ((1 << e) - 1) << m | np.where(kind == "e4m3", 7, rng.randint(0, 2, shape) * rng.randint(1, 1 << m, shape))
        special = (special << 13 if kind == "tf32" else special).astype(found.dtype)
        found = np.where(rng.randint(0, 40, shape) == 0, special, found)
    if style == 3 and where == "b" and shape[1] % 2 == 0:  # pairs that nearly cancel
        found[:, 1::2] = found[:, 0::2] ^ (1 << (FORMATS[kind][0] - 1))
    return found


def _load_words(pointer: str, count: int, first: int) -> str:
    """`count` 32-bit words of each thread to registers %r{first}..; the array holds them thread by thread."""
    return (f"mad.wide.u32 %rd6, %r0, {4 * count}, {pointer};"
            + "".join(f"ld.global.b32 %r{first + i}, [%rd6+{4 * i}];" for i in range(count)))


def _own_part(arrays: tuple) -> str:
    """Moves each pointer to the part of this CTA."""
    return "mov.u32 %r1, %ctaid.x;" + "".join(
        f"mad.wide.u32 %rd{50 + i}, %r1, {a[0].nbytes}, %rd{50 + i};" for i, a in enumerate(arrays)) + "\n"


def _store_words(count: int, first: int) -> str:
    return (f"mad.wide.u32 %rd5, %r0, {4 * count}, %rd50;"
            + "".join(f"st.global.b32 [%rd5+{4 * i}], %r{first + i};" for i in range(count)))


def wgmma_sums(types: tuple, n: int = 64) -> Program:
    """One wgmma of every CTA on accumulators from memory. types: D, A, B. Arrays: result, shared image, accumulators."""
    d, ta, tb = types
    item = FORMATS[ta][0] // 8
    wide, k = 128 // item, 32 // item
    rng = np.random.RandomState(zlib.crc32(" ".join(types).encode()))
    images, accumulators = [], []
    words = n // 2 // (2 if d == "f16" else 1)
    for block in range(BLOCKS):
        a, b = numbers(ta, (64, wide), block, rng, "a"), numbers(tb, (n, wide), block, rng, "b")
        image_a, lead_a, stride_a = operand_image(a, 128, False)
        image_b, lead_b, stride_b = operand_image(b, 128, False)
        images.append(np.frombuffer(image_a + image_b, np.uint8))
        c = numbers(d, (128, n // 2), block, rng, "c")
        accumulators.append(np.ascontiguousarray(c).view(np.uint32).reshape(128, words))
    result = np.zeros((BLOCKS, 128, words), np.uint32)
    arrays = (result, np.stack(images), np.stack(accumulators))
    body = _own_part(arrays) + load_shared(arrays[1][0].size, 128)
    for name, offset, lead, stride in (("%rd10", 0, lead_a, stride_a), ("%rd11", len(image_a), lead_b, stride_b)):
        body += (f"add.u32 %r21, %r10, {offset}; shr.u32 %r21, %r21, 4; and.b32 %r21, %r21, 0x3fff; cvt.u64.u32 %rd3, %r21;"
                 f"or.b64 {name}, %rd3, {descriptor(lead, stride) | LAYOUT90[128] << 62:#x};\n")
    registers = ", ".join(f"%r{100 + i}" for i in range(words))
    body += _load_words("%rd52", words, 100)
    body += (f"setp.eq.u32 %p4, %r10, %r10; wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d}.{ta}.{tb} "
             f"{{{registers}}}, %rd10, %rd11, %p4, 1, 1{', 0, 0' if item == 2 else ''};"
             "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" + _store_words(words, 100))
    return Program(f"sums wgmma {d} {ta} {tb}", body, arrays, {0: result}, grid=BLOCKS, block=128)


def mma_sums(k: int, types: tuple) -> Program:
    """mma.sync m16n8 of eight warps a CTA. types: of D, A, B, C."""
    d, ta, tb, _ = types
    threads, per = 256, 32 // FORMATS[ta][0]
    na, nb, nc = 16 * k // 32 // per, 8 * k // 32 // per, 2 if d == "f16" else 4
    rng = np.random.RandomState(zlib.crc32(" ".join(types).encode()) + k)

    def words(kind, count, where):
        parts = [numbers(kind, (threads, count * 32 // FORMATS[kind][0]), block, rng, where) for block in range(BLOCKS)]
        return np.ascontiguousarray(np.stack(parts)).view(np.uint32).reshape(BLOCKS, threads, count)

    result = np.zeros((BLOCKS, threads, nc), np.uint32)
    arrays = (result, words(ta, na, "a"), words(tb, nb, "b"), words(d, nc, "c"))
    body = _own_part(arrays) + "mov.u32 %r0, %tid.x;\n"
    names = []
    for pointer, count, first in (("%rd51", na, 10), ("%rd52", nb, 20), ("%rd53", nc, 30)):
        body += _load_words(pointer, count, first)
        names.append("{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}")
    out = "{" + ", ".join(f"%r{40 + i}" for i in range(nc)) + "}"
    body += f"mma.sync.aligned.m16n8k{k}.row.col.{'.'.join(types)} {out}, {', '.join(names)};" + _store_words(nc, 40)
    return Program(f"sums mma.sync k{k} {' '.join(types)}", body, arrays, {0: result}, grid=BLOCKS, block=threads)


def sums():
    for types in (("f32", "bf16", "bf16"), ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "tf32", "tf32"),
                  ("f32", "e4m3", "e4m3"), ("f32", "e5m2", "e5m2"), ("f32", "e4m3", "e5m2"), ("f16", "e4m3", "e4m3"),
                  ("f16", "e5m2", "e5m2")):
        yield wgmma_sums(types)
    for k, types in (
        (16, ("f32", "bf16", "bf16", "f32")), (8, ("f32", "bf16", "bf16", "f32")), (16, ("f32", "f16", "f16", "f32")),
        (8, ("f32", "f16", "f16", "f32")), (16, ("f16", "f16", "f16", "f16")), (8, ("f32", "tf32", "tf32", "f32")),
        (4, ("f32", "tf32", "tf32", "f32")), (32, ("f32", "e4m3", "e4m3", "f32")), (32, ("f32", "e5m2", "e5m2", "f32")),
        (32, ("f16", "e4m3", "e4m3", "f16")),
    ):
        yield mma_sums(k, types)


def sweep(op: str, title: str, start: int, step: int = 1, count: int = 1 << 23, half: bool = False) -> Program:
    """op on the bit patterns start + i * step."""
    threads = 1024
    body = (f"mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r0, %r1, {threads}, %r0; mov.b32 %r3, {start:#x};"
            f"mad.lo.u32 %r2, %r0, {step:#x}, %r3;")
    if half:
        body += f"cvt.u16.u32 %h1, %r2; {op} %h2, %h1; cvt.u32.u16 %r4, %h2;"
    else:
        body += f"{op} %r4, %r2;"
    body += "mad.wide.u32 %rd5, %r0, 4, %rd50; st.global.b32 [%rd5], %r4;"
    out = np.zeros(count, np.uint32)
    return Program(f"sweep {op} {title}", body, (out,), {0: out}, grid=count // threads, block=threads)


SCRAMBLE = 0x9E3779B1  # odd: all patterns in a mixed order
ONE, TWO, HALF = 0x3F800000, 0x40000000, 0x3F000000
SINE_BINADES = range(-7, 1)
TANH_STEPS = {binade: 8 for binade in range(-9, 4)} | {1: 4}  # binade -> step of the significand; its lower bits do not count


def sweeps():
    """A whole binade is 2^23 patterns. Enough of them to know each approximation everywhere, then any patterns."""
    for start, title in ((ONE, "1..2"), (HALF, "0.5..1"), (ONE | 1 << 31, "-1..-2"), (HALF | 1 << 31, "-0.5..-1")):
        yield sweep("ex2.approx.ftz.f32", title, start)
    yield sweep("rcp.approx.ftz.f32", "1..2", ONE)
    for op in ("rsqrt.approx.ftz.f32", "sqrt.approx.ftz.f32"):
        yield sweep(op, "1..2", ONE)
        yield sweep(op, "2..4", TWO)
    yield sweep("lg2.approx.ftz.f32", "1..2", ONE)
    yield sweep("lg2.approx.ftz.f32", "0.5..1", HALF)
    for binade, step in TANH_STEPS.items():
        yield sweep("tanh.approx.f32", f"binade {binade}", binade + 127 << 23, step, (1 << 23) // step)
    for binade in SINE_BINADES:  # below 2^-7 by numbers around 2 pi, whose fraction is small
        yield sweep("sin.approx.ftz.f32", f"binade {binade}", binade + 127 << 23, 1 << -binade, 1 << 23 + binade)
    for op in ("sin.approx.ftz.f32", "cos.approx.ftz.f32"):
        yield sweep(op, "4..8", 0x40800000)
    for op in ("ex2", "rcp", "rsqrt", "lg2", "sqrt", "sin", "cos"):
        for ftz in (".ftz", ""):
            yield sweep(f"{op}.approx{ftz}.f32", "any", 12345, SCRAMBLE, 1 << 17)
    yield sweep("tanh.approx.f32", "any", 12345, SCRAMBLE, 1 << 17)
    for op in ("ex2.approx.f16", "ex2.approx.ftz.bf16", "tanh.approx.f16", "tanh.approx.bf16"):
        yield sweep(op, "all", 0, 1, 1 << 16, half=True)
        yield sweep(f"{op}x2", "all", 0, 0x9E790001, 1 << 16)  # both halves take every pattern
