"""Loads and stores of every width and space, atomics and reductions, ldmatrix and stmatrix."""

import numpy as np

from .exact import BF16, F16, add
from .program import Program

RNG = np.random.default_rng(11)
BYTES = RNG.integers(0, 256, 32 * 64, dtype=np.uint8)


def bytes_program(name, body, size_in, want: np.ndarray, module="", **more) -> Program:
    """%rd51: input bytes, %rd50: output bytes, lane number in %r0."""
    return Program(name, "mov.u32 %r0, %tid.x;\n" + body, (np.zeros_like(want), BYTES[:size_in].copy()), {0: want}, **more)


def _widths():
    for kind, size, registers in (("b8", 1, "%h"), ("b16", 2, "%h"), ("b32", 4, "%r"), ("b64", 8, "%rd")):
        for n in (1, 2, 4):
            if size * n > 16:
                continue
            regs = ", ".join(f"{registers}{20 + i}" for i in range(n))
            regs = f"{{{regs}}}" if n > 1 else regs
            vec = f".v{n}" if n > 1 else ""
            step = size * n
            start = f"mad.wide.u32 %rd1, %r0, {step}, %rd51; mad.wide.u32 %rd2, %r0, {step}, %rd50;\n"
            want = BYTES[: 32 * step].copy()
            yield bytes_program(f"ld st global {vec}.{kind}",
                                start + f"ld.global{vec}.{kind} {regs}, [%rd1]; st.global{vec}.{kind} [%rd2], {regs};",
                                32 * step, want)
            shared = (f".shared .align 16 .b8 buf[{32 * step}];\n" + start
                      + f"mov.b32 %r1, buf; mad.lo.u32 %r2, %r0, {step}, %r1;"
                      f"ld.global{vec}.{kind} {regs}, [%rd1]; st.shared{vec}.{kind} [%r2], {regs}; bar.sync 0;"
                      f"xor.b32 %r3, %r0, 1; mad.lo.u32 %r2, %r3, {step}, %r1; ld.shared{vec}.{kind} {regs}, [%r2];"
                      f"st.global{vec}.{kind} [%rd2], {regs};")
            swapped = want.reshape(16, 2, step)[:, ::-1].reshape(-1).copy()
            yield bytes_program(f"ld st shared {vec}.{kind}", shared, 32 * step, swapped)
    extend = "add.s64 %rd1, %rd51, 0; cvt.u64.u32 %rd3, %r0; add.s64 %rd1, %rd1, %rd3; mad.wide.u32 %rd2, %r0, 4, %rd50;\n"
    yield bytes_program("ld.global.s8", extend + "ld.global.s8 %r5, [%rd1]; st.global.b32 [%rd2], %r5;", 32,
                        BYTES[:32].view(np.int8).astype(np.int32).view(np.uint8))
    yield bytes_program("ld.global.u8", extend + "ld.global.u8 %r5, [%rd1]; st.global.b32 [%rd2], %r5;", 32,
                        BYTES[:32].astype(np.int32).view(np.uint8))
    generic = (".shared .align 16 .b8 buf[128];\nmov.b32 %r1, buf; shl.b32 %r2, %r0, 2; add.u32 %r1, %r1, %r2;"
               " cvt.u64.u32 %rd3, %r1;"
               "cvta.shared.u64 %rd4, %rd3; mad.wide.u32 %rd1, %r0, 4, %rd51; mad.wide.u32 %rd2, %r0, 4, %rd50;"
               "ld.global.b32 %r5, [%rd1]; st.b32 [%rd4], %r5; ld.shared.b32 %r6, [%r1]; isspacep.shared %p1, %rd4;"
               "isspacep.global %p2, %rd2; @!%p1 mov.b32 %r6, 0; @!%p2 mov.b32 %r6, 0; st.b32 [%rd2], %r6;")
    yield bytes_program("generic addresses", generic, 128, BYTES[:128].copy())
    local = (".local .align 16 .b8 depot[16];\nmad.wide.u32 %rd1, %r0, 4, %rd51; mad.wide.u32 %rd2, %r0, 4, %rd50;"
             " and.b32 %r7, %r0, 3;"
             "mov.b64 %rd5, depot; mad.wide.u32 %rd6, %r7, 4, %rd5; ld.global.b32 %r5, [%rd1]; st.local.b32 [%rd6], %r5;"
             "bar.warp.sync -1; cvta.local.u64 %rd7, %rd6; ld.b32 %r6, [%rd7]; st.global.b32 [%rd2], %r6;")
    yield bytes_program("local memory", local, 128, BYTES[:128].copy())


def _atomics():
    values = RNG.integers(0, 2**32, 32, dtype=np.uint32)
    begin = RNG.integers(0, 2**32, 32, dtype=np.uint32)
    signed = (values.view(np.int32), begin.view(np.int32))
    ops = {
        "add.u32": begin + values, "max.u32": np.maximum(begin, values), "min.u32": np.minimum(begin, values),
        "max.s32": np.maximum(*signed).view(np.uint32), "min.s32": np.minimum(*signed).view(np.uint32),
        "and.b32": begin & values, "or.b32": begin | values, "xor.b32": begin ^ values, "exch.b32": values,
        "inc.u32": np.where(begin >= values, 0, begin + np.uint32(1)).astype(np.uint32),
        "dec.u32": np.where((begin == 0) | (begin > values), values, begin - np.uint32(1)).astype(np.uint32),
    }
    where = ("mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 4, %rd50; mad.wide.u32 %rd2, %r0, 4, %rd51; mad.wide.u32 %rd3, %r0,"
             " 4, %rd52;")
    for op, want in ops.items():
        yield Program(f"atom.global.{op}", where + f"ld.global.b32 %r1, [%rd2]; atom.global.{op} %r2, [%rd1], %r1;"
                      "st.global.b32 [%rd3], %r2;", (begin, values, np.zeros(32, np.uint32)), {0: want, 2: begin})
        if op != "exch.b32":
            yield Program(f"red.relaxed.gpu.global.{op}", where + f"ld.global.b32 %r1, [%rd2];"
                                        f" red.relaxed.gpu.global.{op} [%rd1], %r1;",
                          (begin, values, np.zeros(32, np.uint32)), {0: want})
    shared = (".shared .align 16 .b8 total[8];\nmov.u32 %r0, %tid.x; mov.b32 %r3, total; setp.ne.u32 %p1, %r0, 0;"
              "@!%p1 st.shared.b32 [%r3], 5; bar.sync 0; mad.wide.u32 %rd2, %r0, 4, %rd51; ld.global.b32 %r1, [%rd2];"
              "red.shared.add.u32 [%r3], %r1; bar.sync 0; @!%p1 ld.shared.b32 %r4, [%r3]; @!%p1 st.global.b32 [%rd50], %r4;")
    yield Program("red.shared.add.u32", shared, (np.zeros(1, np.uint32), values),
                  {0: np.array([int(values.sum(dtype=np.uint64)) + 5 & 0xFFFFFFFF], np.uint32)})
    swap = where + ("ld.global.b32 %r1, [%rd2]; and.b32 %r4, %r0, 1; add.u32 %r5, %r1, %r4; atom.global.cas.b32 %r2, [%rd1],"
                    " %r5, 77; "
                    "st.global.b32 [%rd3], %r2;")
    even = np.arange(32) % 2 == 0
    yield Program("atom.global.cas.b32", swap, (values, values, np.zeros(32, np.uint32)),
                  {0: np.where(even, np.uint32(77), values), 2: values})
    wide = RNG.integers(0, 2**64, 32, dtype=np.uint64)
    yield Program("atom.global.add.u64", "mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 8, %rd50; mad.wide.u32 %rd2, %r0, 8,"
                                        " %rd51;"
                  "ld.global.b64 %rd3, [%rd2]; atom.global.add.u64 %rd4, [%rd1], %rd3;", (wide, wide[::-1].copy()),
                  {0: wide + wide[::-1]})
    floats = [RNG.standard_normal(128).astype(np.float32) for _ in range(2)]
    yield Program("red.global.add.v4.f32", "mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 16, %rd50; mad.wide.u32 %rd2, %r0,"
                                        " 16, %rd51;"
                  "ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd2]; red.global.add.v4.f32 [%rd1], {%r1, %r2, %r3, %r4};",
                  tuple(floats), {0: floats[0] + floats[1]})
    for t, f in (("f16", F16), ("bf16", BF16)):
        a, b = ([int(x) & 0xBFFF for x in RNG.integers(0, 2**16, 64)] for _ in range(2))
        a, b = ([x & ~0x4000 | 0x2000 for x in v] for v in (a, b))  # ordinary sizes
        want = np.array([add(f, x, y) for x, y in zip(a, b)], np.uint16)
        yield Program(f"red.global.add.noftz.{t}x2", "mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 4, %rd50;"
                      f"mad.wide.u32 %rd2, %r0, 4, %rd51; ld.global.b32 %r1, [%rd2]; red.global.add.noftz.{t}x2 [%rd1], %r1;",
                      (np.array(a, np.uint16), np.array(b, np.uint16)), {0: want})
        yield Program(f"red.global.add.noftz.v2.{t}x2", "mov.u32 %r0, %tid.x; setp.ge.u32 %p1, %r0, 16; @%p1 ret;"
                      "mad.wide.u32 %rd1, %r0, 8, %rd50; mad.wide.u32 %rd2, %r0, 8, %rd51; ld.global.v2.b32 {%r1, %r2}, [%rd2];"
                      f"red.global.add.noftz.v2.{t}x2 [%rd1], {{%r1, %r2}};",
                      (np.array(a, np.uint16), np.array(b, np.uint16)), {0: want})


def _matrices():
    """ldmatrix: lane 8 i + r gives row r of matrix i; lane l gets elements (l / 4, 2 (l % 4) + {0, 1}), transposed or not."""
    for n in (1, 2, 4):
        tiles = RNG.integers(0, 2**16, (n, 8, 8), dtype=np.uint16)
        order = RNG.permutation(8 * n)  # rows lie in shared memory in any order
        memory = np.zeros((8 * n, 8), np.uint16)
        memory[order] = tiles.reshape(8 * n, 8)
        regs = ", ".join(f"%r{20 + i}" for i in range(n))
        copy_in = (f".shared .align 128 .b8 buf[{128 * n}];\nmov.u32 %r0, %tid.x; mov.b32 %r1, buf; setp.ge.u32 %p1, %r0,"
                   f" {8 * n};"
                   "mad.wide.u32 %rd1, %r0, 16, %rd51; mad.lo.u32 %r2, %r0, 16, %r1; @%p1 bra READY;"
                   "ld.global.v4.b32 {%r3, %r4, %r5, %r6}, [%rd1]; st.shared.v4.b32 [%r2], {%r3, %r4, %r5, %r6};"
                   " READY: bar.sync 0;"
                   "mad.wide.u32 %rd2, %r0, 4, %rd52; ld.global.u32 %r7, [%rd2]; mad.lo.u32 %r8, %r7, 16, %r1;\n")
        rows = np.resize(order.astype(np.uint32), 32)
        for trans in (False, True):
            view = tiles.transpose(0, 2, 1) if trans else tiles
            want = np.zeros((32, n, 2), np.uint16)
            for lane in range(32):
                want[lane] = view[:, lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
            t = ".trans" if trans else ""
            out = "".join(f"mad.wide.u32 %rd3, %r0, {4 * n}, %rd50; st.global.b32 [%rd3+{4 * i}], %r{20 + i};" for i in range(n))
            yield Program(f"ldmatrix x{n}{t}", copy_in
                          + f"ldmatrix.sync.aligned.m8n8.x{n}{t}.shared.b16 {{{regs}}}, [%r8];" + out,
                          (np.zeros(64 * n, np.uint16), memory, rows), {0: want.reshape(-1)})
            fragments = np.zeros((32, n, 2), np.uint16)
            for lane in range(32):
                fragments[lane] = view[:, lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
            load = "".join(f"mad.wide.u32 %rd3, %r0, {4 * n}, %rd51; ld.global.b32 %r{20 + i}, [%rd3+{4 * i}];" for i in range(n))
            store = (f".shared .align 128 .b8 buf[{128 * n}];\nmov.u32 %r0, %tid.x; mov.b32 %r1, buf; {load}"
                     "mad.wide.u32 %rd2, %r0, 4, %rd52; ld.global.u32 %r7, [%rd2]; mad.lo.u32 %r8, %r7, 16, %r1;"
                     f"stmatrix.sync.aligned.m8n8.x{n}{t}.shared.b16 [%r8], {{{regs}}}; bar.sync 0; setp.ge.u32 %p1, %r0,"
                     f" {8 * n};"
                     "@%p1 ret; mad.lo.u32 %r2, %r0, 16, %r1; ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];"
                     "mad.wide.u32 %rd1, %r0, 16, %rd50; st.global.v4.b32 [%rd1], {%r3, %r4, %r5, %r6};")
            yield Program(f"stmatrix x{n}{t}", store, (np.zeros((8 * n, 8), np.uint16), fragments, rows), {0: memory})
    tile = RNG.integers(0, 2**16, (8, 8), dtype=np.uint16)
    turn = ("mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 4, %rd51; ld.global.b32 %r1, [%rd1];"
            "movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r1; mad.wide.u32 %rd2, %r0, 4, %rd50; st.global.b32 [%rd2], %r2;")
    yield Program("movmatrix", turn, (np.zeros((8, 8), np.uint16), tile), {0: tile.T.copy()})


def programs():
    yield from _widths()
    yield from _atomics()
    yield from _matrices()
