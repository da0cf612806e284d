"""tcgen05 (sm_100a, emulator only): tensor memory moves of every shape, copies from shared memory, mma of every kind."""

import itertools

import numpy as np

from .matrices import descriptor, encode, load_shared, operand_image, small
from .program import Program

RNG = np.random.default_rng(23)
# ((shape of the lane), strides), ((shape of the register), strides) over elements in (row, column) order, one repetition, as the
# DSL prints the layouts of its copy atoms (cute.make_copy_atom(tcgen05.Ld16x64bOp(...)).layout_dst_tv).
LAYOUTS = {
    "16x64b": (2, ((2, 2, 8), (16, 1, 2)), ((1,), (0,))),
    "16x128b": (4, ((4, 8), (1, 4)), ((2,), (32,))),
    "16x256b": (8, ((4, 8), (2, 8)), ((2, 2), (1, 64))),
}
ALLOC = """.shared .align 16 .b8 tptr[16];
mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; and.b32 %r2, %r0, 31; mov.b32 %r3, tptr; setp.ne.u32 %p1, %r1, 0;
@%p1 bra HAVE; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], 512;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned; HAVE: bar.sync 0; ld.shared.b32 %r4, [%r3];
shl.b32 %r5, %r1, 21; add.u32 %r6, %r4, %r5; // lane 32 * warp
"""
FREE = "tcgen05.wait::ld.sync.aligned; bar.sync 0; @%p1 bra END; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 512; END:\n"


def unravel(layout, index: int) -> int:
    total, (shape, strides) = 0, layout
    for n, stride in zip(shape, strides):
        total += index % n * stride
        index //= n
    return total


def place(shape: str, lane: int, register: int) -> tuple[int, int]:
    """(row, column) of a register."""
    columns, lanes, registers = LAYOUTS[shape]
    per = int(np.prod(registers[0]))
    at = unravel(lanes, lane) + unravel(registers, register % per)
    return at // columns, at % columns + register // per * columns


def names(n: int, first: int = 100) -> str:
    return "{" + ", ".join(f"%r{first + i}" for i in range(n)) + "}"


def store_all(n: int, base: str = "%rd50", first: int = 100) -> str:
    stores = "".join(f"st.global.b32 [%rd5+{4 * i}], %r{first + i};" for i in range(n))
    return f"mad.wide.u32 %rd5, %r0, {4 * n}, {base};" + stores


def load_all(n: int, base: str, first: int = 100) -> str:
    loads = "".join(f"ld.global.b32 %r{first + i}, [%rd5+{4 * i}];" for i in range(n))
    return f"mad.wide.u32 %rd5, %r0, {4 * n}, {base};" + loads


def _moves():
    """Every shape: words written through 32x32b are read by the shape, and the other way round."""
    for shape, (columns, _, registers) in LAYOUTS.items():
        per = int(np.prod(registers[0]))
        for repeat in (1, 2, 4, 8):
            n, width = per * repeat, columns * repeat
            words = RNG.integers(0, 2**32, (128, width), dtype=np.uint32)
            for upper in (0, 16):
                want = np.zeros((128, n), np.uint32)
                for thread, r in itertools.product(range(128), range(n)):
                    row, column = place(shape, thread % 32, r)
                    want[thread, r] = words[32 * (thread // 32) + upper + row, column]
                body = (ALLOC + load_all(width, "%rd51") + f"tcgen05.st.sync.aligned.32x32b.x{width}.b32 [%r6], {names(width)};"
                        f"tcgen05.wait::st.sync.aligned; add.u32 %r7, %r6, {upper << 16};"
                        f"tcgen05.ld.sync.aligned.{shape}.x{repeat}.b32 {names(n)}, [%r7];" + FREE + store_all(n))
                yield Program(f"tcgen05.ld {shape}.x{repeat} lane {upper}", body, (np.zeros_like(want), words), {0: want},
                              block=128, arch="sm_100a")
            back = np.zeros((128, width), np.uint32)
            for half in (0, 1):
                for thread, r in itertools.product(range(128), range(n)):
                    row, column = place(shape, thread % 32, r)
                    back[32 * (thread // 32) + 16 * half + row, column] = thread * 1000 + r * 2 + half
            fill = "".join(f"mad.lo.u32 %r{100 + r}, %r0, 1000, {2 * r};" for r in range(n))
            more = "".join(f"add.u32 %r{100 + r}, %r{100 + r}, 1;" for r in range(n))
            body = (ALLOC + fill + f"tcgen05.st.sync.aligned.{shape}.x{repeat}.b32 [%r6], {names(n)};" + more
                    + f"add.u32 %r7, %r6, {16 << 16}; tcgen05.st.sync.aligned.{shape}.x{repeat}.b32 [%r7], {names(n)};"
                    f"tcgen05.wait::st.sync.aligned; tcgen05.ld.sync.aligned.32x32b.x{width}.b32 {names(width)}, [%r6];"
                    + FREE + store_all(width))
            yield Program(f"tcgen05.st {shape}.x{repeat}", body, (np.zeros_like(back),), {0: back}, block=128, arch="sm_100a")
    # Packed: two columns of 16 bits a register.
    halves = RNG.integers(0, 2**16, (128, 8), dtype=np.uint32)
    want = (halves[:, ::2] | halves[:, 1::2] << 16).astype(np.uint32)
    body = (ALLOC + load_all(8, "%rd51") + f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%r6], {names(8)};"
                                        f" tcgen05.wait::st.sync.aligned;"
            f"tcgen05.ld.sync.aligned.32x32b.x4.pack::16b.b32 {names(4)}, [%r6];" + FREE + store_all(4))
    yield Program("tcgen05.ld pack::16b", body, (np.zeros_like(want), halves), {0: want}, block=128, arch="sm_100a")
    body = (ALLOC + load_all(4, "%rd51") + f"tcgen05.st.sync.aligned.32x32b.x4.unpack::16b.b32 [%r6], {names(4)};"
            f"tcgen05.wait::st.sync.aligned; tcgen05.ld.sync.aligned.32x32b.x8.b32 {names(8)}, [%r6];" + FREE + store_all(8))
    yield Program("tcgen05.st unpack::16b", body, (np.zeros_like(halves), want), {0: halves}, block=128, arch="sm_100a")
    words = RNG.integers(0, 2**32, (128, 16), dtype=np.uint32)
    split = np.zeros((128, 4), np.uint32)
    for thread in range(128):
        lane = thread % 32
        split[thread] = words[32 * (thread // 32) + lane % 16, (lane // 16) * 9 : (lane // 16) * 9 + 4]
    body = (ALLOC + load_all(16, "%rd51") + f"tcgen05.st.sync.aligned.32x32b.x16.b32 [%r6], {names(16)};"
            f"tcgen05.wait::st.sync.aligned; tcgen05.ld.sync.aligned.16x32bx2.x4.b32 {names(4)}, [%r6], 9;" + FREE + store_all(4))
    yield Program("tcgen05.ld 16x32bx2", body, (np.zeros_like(split), words), {0: split}, block=128, arch="sm_100a")


LAYOUT100 = {16: 0, 128: 2, 64: 4, 32: 6}
BARRIER = """.shared .align 8 .b8 bar[8];
mov.b32 %r11, bar; setp.ne.u32 %p5, %r0, 0; @!%p5 mbarrier.init.shared::cta.b64 [%r11], 1; bar.sync 0;
"""
DONE = """tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r11]; WAITING:
W: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r11], 0; @!%p9 bra W; tcgen05.fence::after_thread_sync;
"""


def operand(name: str, offset: int, leading: int, stride: int, span: int) -> str:
    constant = descriptor(leading, stride) | LAYOUT100[span] << 61 | 1 << 46
    return (f"add.u32 %r21, %r10, {offset}; shr.u32 %r21, %r21, 4; and.b32 %r21, %r21, 0x3fff; cvt.u64.u32 %rd3, %r21;"
            f"or.b64 {name}, %rd3, {constant:#x};\n")


def _copies():
    for shape, rows, chunks, where in (
        ("128x256b", 128, 2, lambda r: [r]), ("128x128b", 128, 1, lambda r: [r]),
        ("32x128b.warpx4", 32, 1, lambda r: [r, r + 32, r + 64, r + 96]),
        ("64x128b.warpx2::02_13", 64, 1, lambda r: [r, r + 64]),
        ("64x128b.warpx2::01_23", 64, 1, lambda r: [r % 32 + 64 * (r // 32), r % 32 + 64 * (r // 32) + 32]),
    ):
        data = RNG.integers(0, 256, (rows, 16 * chunks), dtype=np.uint8)
        image, leading, stride = operand_image(data, 16, False)
        want = np.full((128, 4 * chunks), 0x7FFFFFFF, np.uint32)
        for r in range(rows):
            for lane in where(r):
                want[lane] = data[r].view(np.uint32)
        body = (load_shared(len(image), 128) + ALLOC + BARRIER + operand("%rd10", 0, leading, stride, 16)
                + f"@%p5 bra WAITING; tcgen05.cp.cta_group::1.{shape} [%r4], %rd10;" + DONE
                + f"tcgen05.ld.sync.aligned.32x32b.x{4 * chunks}.b32 {names(4 * chunks)}, [%r6];" + FREE + store_all(4 * chunks))
        yield Program(f"tcgen05.cp.{shape}", body, (np.zeros_like(want), np.frombuffer(image, np.uint8).copy()), {0: want},
                      block=128, arch="sm_100a")


KINDS = {"f16": ("f16", 0, 1), "bf16": ("f16", 1, 1), "tf32": ("tf32", 2, 1), "e4m3": ("f8f6f4", 0, 1), "e5m2": ("f8f6f4", 1, 1),
         "u8": ("i8", 0, 2), "s8": ("i8", 1, 2)}  # kind, operand type, accumulator type


def mma(m: int, n: int, types: tuple, span: int, a_mn=False, b_mn=False, a_tmem=False, negate=False) -> Program:
    """One k block twice, the second accumulating. Rows of a 64-row result lie on lanes 0-15, 32-47, 64-79, 96-111."""
    ta, tb = types
    (kind, type_a, accumulator), (_, type_b, _) = KINDS[ta], KINDS[tb]
    k = {"f16": 16, "bf16": 16, "tf32": 8}.get(ta, 32)
    item = {"f16": 2, "bf16": 2, "tf32": 4}.get(ta, 1)
    wide_k = max(k, span // item) if span > 16 else k
    a, b = small((m, wide_k), ta), small((n, wide_k), tb)
    image_a, lead_a, stride_a = operand_image(encode(a, ta), span, a_mn)
    image_b, lead_b, stride_b = operand_image(encode(b, tb), span, b_mn)
    pad = -len(image_a) % 1024
    image = np.frombuffer(image_a + bytes(pad) + image_b + bytes(-len(image_b) % 1024), np.uint8).copy()
    total = 2 * (a[:, :k] @ b[:, :k].T) * (-1 if negate else 1)
    number = np.int32 if kind == "i8" else np.float32
    lanes = range(128) if m == 128 else [16 * 2 * (r // 16) + r % 16 for r in range(64)]
    want = np.full((128, n), 0x7FFFFFFF, np.uint32)
    want[list(lanes)] = total.astype(number).view(np.uint32)
    word = (accumulator << 4 | type_a << 7 | type_b << 10 | negate << 13 | a_mn << 15 | b_mn << 16 | n >> 3 << 17 | m >> 4 << 24)
    arrays = [np.zeros_like(want), image]
    body = load_shared(image.size, 128) + ALLOC + BARRIER
    body += operand("%rd10", 0, lead_a, stride_a, span) + operand("%rd11", len(image_a) + pad, lead_b, stride_b, span)
    source = "%rd10"
    if a_tmem:
        arrays.append(np.ascontiguousarray(encode(a, ta)[:, :16]).view(np.uint32))
        body += load_all(8, "%rd52") + (f"add.u32 %r7, %r6, 256; tcgen05.st.sync.aligned.32x32b.x8.b32 [%r7], {names(8)};"
                                        "tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync; bar.sync 0;"
                                        "tcgen05.fence::after_thread_sync; add.u32 %r8, %r4, 256;")
        source = "[%r8]"
    op = f"tcgen05.mma.cta_group::1.kind::{kind} [%r4], {source}, %rd11, %r9"
    body += (f"mov.b32 %r9, {word}; setp.ne.u32 %p6, %r0, %r0; setp.eq.u32 %p7, %r0, %r0; @%p5 bra WAITING; {op}, %p6; {op}, %p7;"
             + DONE + f"mad.wide.u32 %rd6, %r0, {4 * n}, %rd50;")
    for first in range(0, n, 8):
        body += (f"add.u32 %r7, %r6, {first}; tcgen05.ld.sync.aligned.32x32b.x8.b32 {names(8)}, [%r7];"
                 f" tcgen05.wait::ld.sync.aligned;"
                 + "".join(f"st.global.b32 [%rd6+{4 * (first + i)}], %r{100 + i};" for i in range(8)))
    title = f"tcgen05.mma {kind} {ta} {tb} {m}x{n} swizzle {span}"
    title += " A MN-major" * a_mn + " B MN-major" * b_mn + " A in tensor memory" * a_tmem + " negated" * negate
    return Program(title, body + FREE, tuple(arrays), {0: want}, block=128, arch="sm_100a")


def _mma():
    for span in (128, 64, 32, 16):
        yield mma(128, 64, ("bf16", "bf16"), span)
    for span in (128, 64, 32):
        yield mma(128, 64, ("f16", "f16"), span, b_mn=True)
        yield mma(128, 64, ("bf16", "f16"), span, a_mn=True, b_mn=True)
    for n in (16, 48, 128, 256):
        yield mma(128, n, ("bf16", "bf16"), 128)
    yield mma(64, 64, ("bf16", "bf16"), 128)
    yield mma(64, 24, ("f16", "bf16"), 64)
    yield mma(128, 32, ("bf16", "bf16"), 128, negate=True)
    yield mma(128, 64, ("bf16", "bf16"), 128, a_tmem=True)
    yield mma(128, 64, ("f16", "f16"), 128, a_tmem=True, b_mn=True)
    for span in (128, 32):
        yield mma(128, 64, ("tf32", "tf32"), span)
        yield mma(128, 64, ("e4m3", "e5m2"), span)
        yield mma(128, 64, ("s8", "u8"), span)
    yield mma(128, 64, ("e5m2", "e4m3"), 64)
    yield mma(64, 32, ("u8", "s8"), 64)
    yield mma(128, 128, ("e4m3", "e4m3"), 128, b_mn=True)


def programs():
    yield from _moves()
    yield from _copies()
    yield from _mma()
