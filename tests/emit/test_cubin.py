"""Reading a cubin: an ELF file put together here, byte by byte, with figures that are known."""
import struct

import pytest

from flexfa4.emit.cubin import KernelFacts, kernel_facts, ptx_counts

NOBITS = 8
REGISTERS, FRAME, MIN_STACK = 0x2F, 0x11, 0x12


def attribute(number: int, symbol: int, value: int) -> bytes:
    return struct.pack("<BBHII", 4, number, 8, symbol, value)


def names(*words: str) -> tuple[bytes, dict[str, int]]:
    """A string table and where each word begins in it."""
    table, at = b"\0", {}
    for word in words:
        at[word] = len(table)
        table += word.encode() + b"\0"
    return table, at


def elf(kernels: dict[str, tuple[int, int, int, bytes]], unsized: bytes = b"") -> bytes:
    """kernels: name -> (registers, frame, stack, code). `unsized`: records that carry no bytes, put first."""
    strings, at = names(*kernels)
    symtab = bytes(24) + b"".join(struct.pack("<IBBHQQ", at[k], 0, 0, 0, 0, 0) for k in kernels)
    info = unsized + b"".join(attribute(REGISTERS, i, r) + attribute(FRAME, i, f) + attribute(MIN_STACK, i, s)
                              for i, (r, f, s, _) in enumerate(kernels.values(), 1))
    parts = [("", 0, b""), (".strtab", 3, strings), (".symtab", 2, symtab), (".nv.info", 0x70000000, info),
             (".nv.shared", NOBITS, b"\1" * 64), *((f".text.{k}", 1, code) for k, (_, _, _, code) in kernels.items())]
    table, where = names(*(name for name, _, _ in parts), ".shstrtab")
    parts.append((".shstrtab", 3, table))
    body, headers = b"", b""
    for name, kind, data in parts:
        headers += struct.pack("<IIQQQQIIQQ", where.get(name, 0), kind, 0, 0, 64 + len(body), len(data), 0, 0, 1, 0)
        body += b"" if kind == NOBITS else data
    head = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64,
                                                     len(parts), len(parts) - 1)
    return head + body + headers


KERNELS = {"attend": (168, 0, 0, b"\xaa" * 320), "combine_long_name": (40, 24, 32, b"\xbb" * 48)}


def test_figures_of_every_kernel():
    assert kernel_facts(elf(KERNELS)) == [KernelFacts("attend", 168, 0, 0, 320), KernelFacts("combine_long_name", 40, 24, 32, 48)]


def test_records_without_bytes_are_stepped_over():
    flags = struct.pack("<BBH", 1, 0x30, 0) + struct.pack("<BBH", 3, REGISTERS, 255)
    assert kernel_facts(elf(KERNELS, flags)) == kernel_facts(elf(KERNELS))


def test_functions_that_are_no_kernels_are_left_out():
    data = elf({**KERNELS, "helper": (9, 0, 0, b"")}).replace(b".text.helper", b".data.helper")
    assert [f.name for f in kernel_facts(data)] == list(KERNELS)


@pytest.mark.parametrize("data", [b"", b".version 8.8\n.target sm_90a", b"\x7fEL"])
def test_other_bytes_are_refused(data):
    with pytest.raises(ValueError, match="not an ELF file: it begins with"):
        kernel_facts(data)


PTX = """
.version 8.8
.visible .entry kernel(.param .u64 p0) {
    .reg .b32 %r<9>;
    ld.param.b64 %rd1, [p0];
LOOP:
    @%p1 bra DONE;
    @!%p2 mul.f32 %f1, %f2, %f3;
    mul.f32 %f1, %f2, %f3;
    wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%f1}, %rd1, %rd2, 1, 1, 1, 0, 1;
    // mul.f32 in a comment
    bar.warp.sync 0xffffffff;
DONE:
    ret;
}
"""


def test_instructions_are_counted_with_their_suffixes():
    assert ptx_counts(PTX) == {"ld.param.b64": 1, "bra": 1, "mul.f32": 2, "bar.warp.sync": 1, "ret": 1,
                               "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16": 1}
