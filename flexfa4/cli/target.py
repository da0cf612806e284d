"""From "FILE.py:NAME", or a name of the gallery, to mods and their kinds."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import types
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Callable, Iterator, NamedTuple

import torch

from .. import mods
from ..errors import FlexError, TraceError, UnsupportedError
from ..trace import bind

KINDS = ("score", "mask", "out")


class TargetError(FlexError):
    """The command line does not name a mod. The message says what was found there and what to write."""


class Target(NamedTuple):
    """What a command line names: mods by kind, of `KINDS`, and the example of the gallery that they are, None for one of a
    file."""

    name: str
    mods: dict[str, Callable]
    example: mods.Example | None = None


def find(where: str, kind: str | None, **sizes: int) -> Target:
    """FILE.py:NAME, or a name of the gallery at `sizes` (as `mods.Example` takes them); kind: the one that is wanted, None for
    what it is, or all that an example has. Raises TargetError, or what tracing raises of one that is no factory."""
    if where.endswith(".py") and Path(where).is_file():
        raise TargetError(f"{where}: expected FILE.py:NAME; it defines {_defined(_run(Path(where)))}")
    if ".py:" in where:
        mod, name = load(where), where.partition(".py:")[2].strip()
        kind = kind or kind_of(mod, name)
        try:
            bind(mod, kind)
        except TraceError:
            refuse_factory(mod, name, kind)
            raise
        return Target(name, {kind: mod})
    entry = next((e for e in mods.GALLERY if e.name == where), None)
    if entry is None:
        raise TargetError(f"{where!r}: expected FILE.py:NAME, such as mods/window.py:sliding_window(256), or of the gallery "
                          f"{', '.join(sorted(e.name for e in mods.GALLERY))}")
    example = entry(**sizes)
    made = example.make()
    found = {k: made[f"{k}_mod"] for k in KINDS if made.get(f"{k}_mod") is not None and kind in (None, k)}
    if not found:
        raise TargetError(f"{where} of the gallery has no {kind}_mod")
    return Target(where, found, example)


def load(target: str) -> Callable:
    """The object that `FILE.py:NAME` names; NAME may be an expression over the file's names and torch: sliding_window(256).

    Runs the file. Raises TargetError.
    """
    path, colon, expression = target.partition(".py:")
    if not colon or not expression.strip():
        raise TargetError(f"{target!r}: expected FILE.py:NAME, such as mods/window.py:sliding_window(256)")
    module = _run(Path(path + ".py"))
    try:
        found = eval(compile(expression.strip(), "<command line>", "eval"), {"torch": torch, **vars(module)})
    except NameError as error:
        raise TargetError(f"{error} in {path}.py; it defines {_defined(module)}") from error
    except (Exception, SystemExit) as error:
        raise TargetError(f"{expression.strip()} fails: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise TargetError(
            f"{expression.strip()} is {type(found).__name__}: expected a function (b, h, q, kv) or (score, b, h, q, kv)"
        )
    return found


def _defined(module: ModuleType) -> str:
    own = (n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", None) == module.__name__)
    return ", ".join(sorted(own)) or "no function"


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        raise TargetError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise TargetError(f"{path} fails when it is run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    return module


def kind_of(mod: Callable, name: str) -> str:
    """ "mask" for 4 arguments, "score" for 5, "out" for 6, or for 5 of which the first is called out.

    Raises TargetError for another number, with what a factory's call would look like.
    """
    try:
        function = mod.forward if isinstance(mod, torch.nn.Module) else mod
        parameters = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    except (TypeError, ValueError) as error:
        raise TargetError(f"{name}: its arguments cannot be read ({error}); give --kind") from error
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(names) == 4:
        return "mask"
    if len(names) == 6 or len(names) == 5 and names[0] in ("out", "o", "output"):
        return "out"
    if len(names) == 5:
        return "score"
    example = f"{name}({', '.join(f'{n}=...' for n in names)})"
    advice = "Where it takes them by * or by defaults, say which it is: --kind mask, score or out."
    if isinstance(mod, (types.FunctionType, type)):
        advice = f"If it is a factory that returns a mod, write the call: FILE.py:{example}. {advice}"
    raise TargetError(
        f"{name} takes ({', '.join(str(p).partition(':')[0] for p in parameters)}): a mask_mod takes (b, h, q, kv), a score_mod "
        f"(score, b, h, q, kv), an out_mod (out, lse, b, h, q). {advice}"
    )


def refuse_factory(mod: Callable, name: str, kind: str) -> None:
    """For a callable that could not be traced. Raises TargetError where calling it on numbers gives another function."""
    floats = {"mask": 0, "score": 1, "out": 2}[kind]
    try:
        result = mod(*[0.0] * floats, *[0] * (3 if kind == "out" else 4))
    except Exception:
        return  # tracing has told this better, with the line
    if callable(result):
        raise TargetError(f"{name} returns a function: it is a factory. Write the call that makes the mod: FILE.py:{name}(...)")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around the saving of a picture. Raises TargetError where the file cannot be written."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise TargetError(f"--out {path}: {str(error).splitlines()[0]}") from None


def refuse_picture(path: Path) -> None:
    """Before work whose picture is to be saved at `path`. Raises TargetError where the folder or the format will not do,
    UnsupportedError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise UnsupportedError("pictures need matplotlib: pip install 'flexfa4[draw]'") from missing
    formats = Figure().canvas.get_supported_filetypes()
    if path.is_dir() or not path.parent.is_dir():
        raise TargetError(f"--out {path}: " + ("is a folder: expected a file" if path.is_dir() else "No such file or directory"))
    if path.suffix and path.suffix[1:].lower() not in formats:
        raise TargetError(f"--out {path}: Format {path.suffix[1:]!r} is not supported: expected one of "
                          + ", ".join(sorted(formats)))
