"""Compiles the GPU kernels. The only module of the runtime that imports the compiler; `kernels` imports it when a kernel is
needed that is neither in memory nor on the disk."""
from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Callable

import cutlass.cute as cute

from flexfa4.kernels.arguments import fake_arguments
from flexfa4.kernels.combine import Combine, fake_combine_arguments
from flexfa4.kernels.sm90.forward import Forward as Sm90Kernel
from flexfa4.kernels.sm100.forward import Forward as Sm100Kernel
from flexfa4.plan import Signature

from .room import with_room
from .store import FUNCTION

_KERNELS = {"sm90": (Sm90Kernel, "sm_90a"), "sm100": (Sm100Kernel, "sm_100a")}


def forward(signature: Signature, runs_here: bool) -> Callable:
    """The compiled host function of a forward kernel. runs_here: False for one that is only exported."""
    return _compile(_KERNELS[signature.plan.arch][0](signature), fake_arguments(signature, env_stream=True), signature, runs_here)


def combine(signature: Signature, runs_here: bool) -> Callable:
    """That of the kernel that combines the parts of split rows. signature: of the plan without graphs but the output's."""
    return _compile(Combine(signature), fake_combine_arguments(signature), signature, runs_here)


def _compile(kernel, arguments: tuple, signature: Signature, runs_here: bool) -> Callable:
    options = f"--enable-tvm-ffi --gpu-arch {_KERNELS[signature.plan.arch][1]}"
    return _quietly(kernel, arguments, options=options, no_jit_engine=not runs_here)


def _quietly(kernel, arguments: tuple, **options) -> Callable:
    """Without the compiler's warnings of deprecated names and of tuples as arguments, which no user can do anything about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return with_room(cute.compile, kernel, *arguments, **options)


def export(function: Callable, path: Path) -> None:
    """Writes an object file."""
    function.export_to_c(object_file_path=str(path), function_name=FUNCTION, export_only_tvm_ffi_symbols=True)


def cubin(signature: Signature) -> bytes:
    """The machine code of a forward kernel, an ELF file, for reading."""
    kernel, arch = _KERNELS[signature.plan.arch]
    with tempfile.TemporaryDirectory() as dumps:          # what the compiler keeps it also writes to a file
        options = f"--enable-tvm-ffi --gpu-arch {arch} --keep-cubin --dump-dir {dumps}"
        return _quietly(kernel(signature), fake_arguments(signature, True), options=options, no_jit_engine=True).__cubin__
