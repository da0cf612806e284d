"""cp.async, bulk and tensor copies with swizzles, reductions, and the mbarriers they signal."""

import itertools
import struct
from dataclasses import dataclass

import numpy as np

from .program import Program

RNG = np.random.default_rng(13)
TYPES = {np.dtype(np.uint8): 0, np.dtype(np.uint16): 1, np.dtype(np.uint32): 2, np.dtype(np.uint64): 4, np.dtype(np.float16): 6,
         np.dtype(np.float32): 7}
SPANS = {16: 0, 32: 1, 64: 2, 128: 3}


@dataclass(frozen=True, eq=False)
class TensorMap:
    """How a copy engine sees `array` (dense, last dimension contiguous). box: extents, innermost first; span: swizzle, bytes."""

    array: np.ndarray
    box: tuple
    span: int

    def __call__(self, address: int) -> bytes:
        """The 128 bytes for the array at `address`, as the emulator reads them."""
        sizes, strides = self.array.shape[::-1], self.array.strides[::-1]
        rank = len(sizes)
        words = [0] * 16
        words[0] = address
        kind, large = TYPES[self.array.dtype], self.array.nbytes >= 1 << 17
        words[1] = 2 | (rank - 1) << 4 | kind << 7 | SPANS[self.span] << 13 | 1 << 18 | large << 21
        high = [s >> 4 for s in strides[1:]] + [0] * (5 - rank)
        words[1] |= (high[0] & 0xFFFFFFFF) << 32
        words[2] = (high[1] & 0xFFFFFFFF) | (high[2] & 0xFFFFFFFF) << 32
        words[3] = high[3] & 0xFFFFFFFF
        extents = [n - 1 for n in sizes] + [0] * (5 - rank)
        words[4], words[5], words[6] = extents[0] | extents[1] << 32, extents[2] | extents[3] << 32, extents[4]
        boxes = [b - 1 for b in self.box] + [0] * (5 - rank)
        words[6] |= boxes[0] << 56
        words[7] = boxes[1] | boxes[2] << 8 | boxes[3] << 16 | boxes[4] << 24
        return struct.pack("<16Q", *words)

    def from_driver(self, driver, address: int) -> bytes:
        """The 128 bytes that cuTensorMapEncodeTiled writes. driver: cuda.bindings.driver."""
        sizes, rank = self.array.shape[::-1], self.array.ndim
        error, found = driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType(TYPES[self.array.dtype]), rank, address,
            [driver.cuuint64_t(n) for n in sizes], [driver.cuuint64_t(s) for s in self.array.strides[::-1][1:]],
            [driver.cuuint32_t(b) for b in self.box], [driver.cuuint32_t(1)] * rank,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, driver.CUtensorMapSwizzle(SPANS[self.span]),
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
        assert error == driver.CUresult.CUDA_SUCCESS, error
        return struct.pack("<16Q", *(int(word) for word in found.opaque))


def swizzled(tile: bytes, span: int) -> bytes:
    """The shared memory image of densely packed bytes: 16-byte chunks exchanged by bits of their address."""
    mask = {16: 0, 32: 1, 64: 3, 128: 7}[span]
    out = bytearray(len(tile))
    for at in range(0, len(tile), 16):
        to = at ^ (at >> 7 & mask) << 4
        out[to : to + 16] = tile[at : at + 16]
    return bytes(out)


WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r11], 0; @!%p9 bra W;\n"


def setup(bytes_in: int, align: int = 1024) -> str:
    """buf (%r10) and an mbarrier (%r11) with one arrival, which thread 0 makes with the expected bytes; %p1: not thread 0."""
    return (f".shared .align {align} .b8 buf[{max(bytes_in, 128)}];\n.shared .align 8 .b8 bar[8];\nmov.u32 %r0, %tid.x;"
            "mov.b32 %r10, buf; mov.b32 %r11, bar; setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;"
            f"mbarrier.init.shared::cta.b64 [%r11], 1; fence.mbarrier_init.release.cluster;"
            f" mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], {bytes_in};\n")


def read_out(n: int) -> str:
    """Copies n bytes of buf to %rd50, four a thread and turn (32 threads)."""
    return (f"mov.b32 %r20, %r0; O: setp.ge.u32 %p2, %r20, {n // 4}; @%p2 bra E; shl.b32 %r21, %r20, 2; add.u32 %r22, %r10, %r21;"
            "ld.shared.b32 %r23, [%r22]; mad.wide.u32 %rd3, %r20, 4, %rd50; st.global.b32 [%rd3], %r23; add.u32 %r20, %r20, 32;"
            "bra O; E:\n")


def read_in(n: int) -> str:
    """Copies n bytes of %rd51 to buf, then makes them visible to the asynchronous proxy."""
    return (f"mov.b32 %r20, %r0; I: setp.ge.u32 %p2, %r20, {n // 4}; @%p2 bra F; shl.b32 %r21, %r20, 2; add.u32 %r22, %r10, %r21;"
            "mad.wide.u32 %rd3, %r20, 4, %rd51; ld.global.b32 %r23, [%rd3]; st.shared.b32 [%r22], %r23; add.u32 %r20, %r20, 32;"
            "bra I; F: fence.proxy.async.shared::cta; bar.sync 0;\n")


def _cp_async():
    data = RNG.integers(0, 256, 512, dtype=np.uint8)
    for op, size in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
        for have in (size, size // 2, 0):
            want = data[: 32 * size].reshape(32, size).copy()
            want[:, have:] = 0
            body = (f".shared .align 16 .b8 buf[{32 * size}];\nmov.u32 %r0, %tid.x; mov.b32 %r10, buf;"
                    f"mad.lo.u32 %r1, %r0, {size}, %r10; mad.wide.u32 %rd1, %r0, {size}, %rd51; mov.b32 %r2, {have};"
                    f"cp.async.{op}.shared.global [%r1], [%rd1], {size}, %r2;"
                    "cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;\n")
            yield Program(f"cp.async.{op} {size} of which {have}", body + read_out(32 * size),
                          (np.zeros(32 * size, np.uint8), data[: 32 * size].copy()), {0: want.reshape(-1)})
    body = (".shared .align 16 .b8 buf[512];\n.shared .align 8 .b8 bar[8];\nmov.u32 %r0, %tid.x; mov.b32 %r10, buf;"
            " mov.b32 %r11, bar;"
            "setp.ne.u32 %p1, %r0, 0; @%p1 bra READY; mbarrier.init.shared::cta.b64 [%r11], 32; READY: bar.sync 0;"
            "mad.lo.u32 %r1, %r0, 16, %r10; mad.wide.u32 %rd1, %r0, 16, %rd51; cp.async.cg.shared.global [%r1], [%rd1], 16;"
            "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r11];\n")
    yield Program("cp.async.mbarrier.arrive.noinc", body + WAIT + read_out(512), (np.zeros(512, np.uint8), data), {0: data})


def _bulk():
    data = RNG.integers(0, 256, 1024, dtype=np.uint8)
    load = setup(1024) + ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r10], [%rd51], 1024, [%r11];"
                          "READY: bar.sync 0;\n") + WAIT + read_out(1024)
    yield Program("cp.async.bulk to shared", load, (np.zeros(1024, np.uint8), data), {0: data})
    start = (".shared .align 128 .b8 buf[1024];\nmov.u32 %r0, %tid.x; mov.b32 %r10, buf; setp.ne.u32 %p1, %r0, 0;\n"
             + read_in(1024))
    finish = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
    yield Program("cp.async.bulk to global", start + "@%p1 ret; cp.async.bulk.global.shared::cta.bulk_group [%rd50], [%r10],"
                                        " 1024;"
                  + finish, (np.zeros(1024, np.uint8), data), {0: data})
    f = [RNG.standard_normal(256).astype(np.float32) for _ in range(2)]
    u = [RNG.integers(0, 2**32, 256, dtype=np.uint32) for _ in range(2)]
    s = [x.view(np.int32) for x in u]
    h = [RNG.standard_normal(512).astype(np.float16) for _ in range(2)]
    w = [RNG.integers(0, 2**64, 128, dtype=np.uint64) for _ in range(2)]
    cases = {
        "add.f32": (f[0] + f[1], f), "add.u32": (u[0] + u[1], u), "min.u32": (np.minimum(*u), u), "max.u32": (np.maximum(*u), u),
        "min.s32": (np.minimum(*s), s), "max.s32": (np.maximum(*s), s), "and.b32": (u[0] & u[1], u), "or.b32": (u[0] | u[1], u),
        "xor.b32": (u[0] ^ u[1], u), "add.u64": (w[0] + w[1], w), "min.u64": (np.minimum(*w), w), "max.u64": (np.maximum(*w), w),
        "add.noftz.f16": (h[0] + h[1], h), "min.f16": (np.minimum(*h), h), "max.f16": (np.maximum(*h), h),
    }
    for op, (want, (old, add)) in cases.items():
        yield Program(f"cp.reduce.async.bulk {op}", start + "@%p1 ret; cp.reduce.async.bulk.global.shared::cta.bulk_group."
                      f"{op} [%rd50], [%r10], 1024;" + finish, (old, add), {0: want})


def _tiles(array: np.ndarray, at: tuple, box: tuple) -> np.ndarray:
    """The box at coordinates `at` (innermost first), zero outside the array."""
    tile = np.zeros(box[::-1], array.dtype)
    for index in itertools.product(*(range(b) for b in box)):
        where = [a + i for a, i in zip(at, index)]
        if all(0 <= x < n for x, n in zip(where, array.shape[::-1])):
            tile[index[::-1]] = array[tuple(where[::-1])]
    return tile


def _tensor_copies():
    for rank, span, dtype in ((1, 16, np.uint32), (2, 128, np.uint16), (2, 64, np.uint16), (2, 32, np.uint16), (2, 16, np.uint16),
                              (3, 128, np.float32), (3, 64, np.uint8), (4, 128, np.uint16), (5, 32, np.uint16)):
        item = np.dtype(dtype).itemsize
        box = ((span if span > 16 else 64) // item, 8, 4, 2, 2)[:rank]
        shape = (2 * box[0], 13, 5, 3, 2)[:rank]
        array = RNG.integers(1, 100, shape[::-1]).astype(dtype)
        n = int(np.prod(box)) * item
        coordinates = ", ".join(f"%r{30 + i}" for i in range(rank))
        for name, at in (("inside", (0, 2, 1, 1, 0)), ("beyond the end", (box[0] + box[0] // 2, 9, 3, 2, 1)),
                         ("before the start", (-box[0] // 2, -3, -1, 0, -1))):
            at = at[:rank]
            set_up = "".join(f"mov.b32 %r{30 + i}, {c};" for i, c in enumerate(at))
            set_up += "mov.b64 %rd8, m0; cvta.param.u64 %rd8, %rd8;"
            tile = _tiles(array, at, box)
            image = np.frombuffer(swizzled(tile.tobytes(), span), np.uint8).copy()
            maps = ((1, TensorMap(array, box, span)),)
            load = setup(n) + set_up + (
                f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r10], [%rd8,"
                f" {{{coordinates}}}],"
                " [%r11]; READY: bar.sync 0;\n") + WAIT + read_out(n)
            title = f"{rank}d {np.dtype(dtype).name} swizzle {span}, {name}"
            yield Program(f"cp.async.bulk.tensor load {title}", load, (np.zeros(n, np.uint8), array), {0: image}, maps=maps)
            if name == "before the start":  # an H200 refuses to store there: test_micro.py
                continue
            # Stores: the image goes to an array of zeros; what lies outside is not written.
            target = np.zeros_like(array)
            for index in itertools.product(*(range(b) for b in box)):
                where = [a + i for a, i in zip(at, index)]
                if all(0 <= x < m for x, m in zip(where, array.shape[::-1])):
                    target[tuple(where[::-1])] = array[tuple(where[::-1])]
            store = (f".shared .align 1024 .b8 buf[{max(n, 128)}];\nmov.u32 %r0, %tid.x; mov.b32 %r10, buf; setp.ne.u32 %p1,"
                     f" %r0, 0;\n"
                     + read_in(n) + "@%p1 ret;" + set_up + f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
                     f" [%rd8, {{{coordinates}}}], [%r10]; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;")
            out_maps = ((0, TensorMap(array, box, span)),)
            yield Program(f"cp.async.bulk.tensor store {title}", store, (np.zeros_like(array), image), {0: target}, maps=out_maps)
    a, b = (RNG.standard_normal((8, 32)).astype(np.float32) for _ in range(2))
    for op, want in (("add", a + b),):
        reduce = (".shared .align 1024 .b8 buf[1024];\nmov.u32 %r0, %tid.x; mov.b32 %r10, buf; setp.ne.u32 %p1, %r0, 0;\n"
                  + read_in(1024) + "@%p1 ret; mov.b32 %r30, 0; mov.b64 %rd8, m0; cvta.param.u64 %rd8, %rd8;"
                  f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{op}.tile.bulk_group [%rd8, {{%r30, %r30}}], [%r10];"
                  "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;")
        image = np.frombuffer(swizzled(b.tobytes(), 128), np.uint8).copy()
        yield Program(f"cp.reduce.async.bulk.tensor {op} f32", reduce, (a, image), {0: want},
                      maps=((0, TensorMap(a, (32, 8), 128)),))


def _barriers():
    """mbarrier state without copies: phases, counts, test_wait, arrive_drop."""
    start = (".shared .align 8 .b8 bar[8];\nmov.u32 %r0, %tid.x; mov.b32 %r11, bar; setp.ne.u32 %p1, %r0, 0;"
             "mad.wide.u32 %rd2, %r0, 4, %rd50; mov.b32 %r9, 0;"
             "@!%p1 mbarrier.init.shared::cta.b64 [%r11], 32; bar.sync 0;\n")
    poll = ("mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r11], {parity}; selp.b32 %r1, {bit}, 0, %p2; or.b32 %r9, %r9, %r1;"
            "bar.warp.sync -1;")
    body = start + poll.format(parity=0, bit=1) + poll.format(parity=1, bit=2) + "bar.sync 0;" + (
        "mbarrier.arrive.shared::cta.b64 %rd5, [%r11]; bar.sync 0;" + poll.format(parity=0, bit=4) + poll.format(parity=1, bit=8)
        + "mbarrier.test_wait.shared::cta.b64 %p3, [%r11], %rd5; selp.b32 %r1, 16, 0, %p3; or.b32 %r9, %r9, %r1;")
    yield Program("mbarrier phases", body + "st.global.b32 [%rd2], %r9;", (np.zeros(32, np.uint32),),
                  {0: np.full(32, 2 | 4 | 16, np.uint32)})
    # Half of the threads leave for good: afterwards 16 arrivals end a phase.
    drop = start + ("setp.lt.u32 %p4, %r0, 16; @%p4 mbarrier.arrive_drop.shared::cta.b64 _, [%r11];"
                    "@!%p4 mbarrier.arrive.shared::cta.b64 _, [%r11]; bar.sync 0;" + poll.format(parity=0, bit=1) + "bar.sync 0;"
                    "@!%p4 mbarrier.arrive.shared::cta.b64 _, [%r11]; bar.sync 0;" + poll.format(parity=1, bit=2))
    yield Program("mbarrier.arrive_drop", drop + "st.global.b32 [%rd2], %r9;", (np.zeros(32, np.uint32),),
                  {0: np.full(32, 3, np.uint32)})
    count = start.replace("], 32;", "], 40;") + ("setp.lt.u32 %p4, %r0, 8; @%p4 mbarrier.arrive.shared::cta.b64 _, [%r11], 2;"
                                                 "@!%p4 mbarrier.arrive.shared::cta.b64 _, [%r11]; bar.sync 0;"
                                                 + poll.format(parity=0, bit=1))
    yield Program("mbarrier.arrive with a count", count + "st.global.b32 [%rd2], %r9;", (np.zeros(32, np.uint32),),
                  {0: np.full(32, 1, np.uint32)})


def programs():
    yield from _cp_async()
    yield from _bulk()
    yield from _tensor_copies()
    yield from _barriers()
