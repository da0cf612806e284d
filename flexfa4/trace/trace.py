"""`trace(fn, kind)`: call a mod once with traced arguments and keep what it wrote."""
from __future__ import annotations

import inspect
import linecache
import types
from functools import lru_cache

import torch

from ..errors import FlexError, TraceError
from ..ir import DType, Graph, Node, Op, cast, node
from ..ir.bound import BoundGraph, Origin
from ..ir.graph import ARGUMENTS, topological
from ..tensors import TO_TORCH
from . import arith, functions  # noqa: F401  (functions fills the table of methods)
from .arrays import adopt_arrays
from .codes import of_plain_values
from .lanes import Lanes, whole
from .mode import TracingMode
from .randomness import draws
from .recorder import Recorder, is_user_file, raised_at, recording, refuse
from .tracer import Traced

_MORE_ARGUMENTS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
SIGNATURES = {
    "score": "score_mod(score, b, h, q_idx, kv_idx)",
    "mask": "mask_mod(b, h, q_idx, kv_idx)",
    "out": "out_mod(out, lse, b, h, q_idx) or out_mod(out, lse, b, h, q_idx, d_idx)",
}


def trace(fn, kind: str, score_dtype: DType = DType.F32) -> BoundGraph:
    """The graph of a mod, with the tensors and literals that this call of it used.

    `kind` is "score", "mask" or "out"; `score_dtype` the type of score, out and lse (F32, or F64 for float64 inputs).
    Raises TraceError, naming the user's file and line, for what one kernel for all positions cannot do.
    """
    return record(fn, kind, score_dtype)[0]


def record(fn, kind: str, score_dtype: DType = DType.F32) -> tuple[BoundGraph, Recorder]:
    """`trace`, and the recorder that tells what the result depends on besides captured tensors."""
    file, line, name = describe(fn, kind)
    if not callable(fn):
        raise TraceError(f"{kind}_mod={fn!r}: expected a function {SIGNATURES[kind]}")
    _refuse_kind(fn, kind, name, f"{file}:{line}")
    recorder = Recorder(name, kind != "mask")
    recorder.outermost = record.__code__
    # Reading the states of generators takes a third of a trace.
    plain = of_plain_values(fn)
    drawing = None if plain else draws(fn)
    arguments = _arguments_of_plain(fn, kind, score_dtype)
    if arguments is None:
        with recording(recorder):
            arguments = _arguments(fn, kind, score_dtype, f"{file}:{line}")
    with recording(recorder), TracingMode(recorder):
        try:
            result = (fn if plain else adopt_arrays(fn))(*arguments)
            root = _root(result, kind, score_dtype, f"{file}:{line}", name)
        except FlexError:
            raise
        except Exception as error:
            raise _user_error(error, recorder, f"{file}:{line}") from error
    if drawing is not None and (drawn := drawing.found()):
        raise refuse(f"{name} draws random numbers ({drawn}): every position would get the same one, and the backward pass "
                     "another", "a captured tensor of random numbers drawn before the call", f"{file}:{line}")
    return _finish(recorder, kind, root, file, line), recorder


def describe(fn, kind: str) -> tuple[str, int, str]:
    """(file, line, name) of a callable, for messages. Its attribute `described` says it for one that stands for another."""
    if type(fn) is types.FunctionType and not fn.__dict__:
        code = fn.__code__
        return code.co_filename, code.co_firstlineno, fn.__name__ or fn.__qualname__
    known = getattr(fn, "described", None)
    if isinstance(known, tuple) and len(known) == 3:
        return known
    if isinstance(fn, type):
        return (*_place_of_class(fn), fn.__name__)
    code, inner = code_of(fn, kind)
    name = getattr(fn, "__name__", None) or getattr(inner, "__qualname__", f"{kind}_mod")
    return (code.co_filename, code.co_firstlineno, name) if code is not None else ("<built-in>", 0, name)


def code_of(fn, kind: str) -> tuple[types.CodeType | None, object]:
    """The code object that a call of `fn` runs, if it is Python's, and the function that has it."""
    if type(fn) is types.FunctionType and not fn.__dict__:       # nothing hangs on it that stands for it
        return fn.__code__, fn
    inner = fn
    for _ in range(8):
        if hasattr(inner, "func") and hasattr(inner, "keywords"):
            inner = inner.func
        elif hasattr(inner, "__func__"):
            inner = inner.__func__
        elif not hasattr(inner, "__code__") and hasattr(type(inner), "__call__"):
            method = getattr(type(inner), "forward", None) if isinstance(inner, torch.nn.Module) else None
            inner = method or type(inner).__call__
        elif hasattr(inner, "__wrapped__") and not is_user_file(inner.__code__.co_filename):     # a decorator of torch's
            inner = inner.__wrapped__
        else:
            break
    return getattr(inner, "__code__", None), inner


def _place_of_class(cls: type) -> tuple[str, int]:
    try:
        return inspect.getsourcefile(cls) or "<built-in>", inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return "<built-in>", 0


def _refuse_kind(fn, kind: str, name: str, where: str) -> None:
    """Refuses callables whose result is no value: classes, generators and async functions."""
    if isinstance(fn, type):
        raise refuse(f"{name} is a class, and calling it would make an object",
                     f"an instance of it, {kind}_mod={name}(...), whose __call__ is {SIGNATURES[kind]}", where)
    code = code_of(fn, kind)[0]
    flags = code.co_flags if code is not None else 0
    if flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise refuse(f"{name} is an async function, and calling it computes nothing", "a plain `def`", where)
    if flags & inspect.CO_GENERATOR:
        raise refuse(f"{name} is a generator (it has a `yield`), and calling it computes nothing",
                     "`return` in place of `yield`", where)


def arity(fn, kind: str) -> int:
    """How many positional arguments a mod of this kind is called with. Raises TraceError where its signature cannot take them."""
    file, line, _ = describe(fn, kind)
    with recording(Recorder("")):
        return len(_arguments(fn, kind, DType.F32, f"{file}:{line}"))


def _arguments(fn, kind: str, score_dtype: DType, where: str) -> list[Traced]:
    leaves = _arguments_of_plain(fn, kind, score_dtype)
    if leaves is not None:
        return leaves
    leaves = [Traced.argument(n) for n in _leaves(kind, score_dtype)]
    try:
        signature = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)
    except (TypeError, ValueError):
        return leaves
    if kind == "out" and not _wants_column(signature):
        leaves = leaves[:-1]
    try:
        signature.bind(*leaves)
    except TypeError as error:
        raise TraceError(f"{where}: {kind}_mod has the signature {_shown(signature)}, which cannot take the {len(leaves)} "
                         f"positional arguments of {SIGNATURES[kind]} ({error}). Write instead: {_other_kind(signature, kind)}"
                         f"{SIGNATURES[kind]}, "
                         "with anything else bound by "
                         "a closure, a default value or functools.partial.") from None
    return leaves


@lru_cache(maxsize=16)
def _leaves(kind: str, score_dtype: DType) -> tuple[Node, ...]:
    return tuple(node(op, (), score_dtype if op in (Op.SCORE, Op.OUT, Op.LSE) else DType.I64) for op in ARGUMENTS[kind])


def _arguments_of_plain(fn, kind: str, score_dtype: DType) -> list[Traced] | None:
    """Those of a plain function of as many positional arguments, which most are: it needs no signature object. Else None."""
    if type(fn) is not types.FunctionType or kind == "out":
        return None
    code, leaves = fn.__code__, _leaves(kind, score_dtype)
    if code.co_argcount != len(leaves) or code.co_kwonlyargcount or code.co_flags & _MORE_ARGUMENTS:
        return None
    return [Traced.argument(n) for n in leaves]


def _other_kind(signature: inspect.Signature, kind: str) -> str:
    """Advice for a function that takes the arguments of another kind of mod; "" if it takes those of none."""
    first = next(iter(signature.parameters), "")
    for other, count in (("mask", 4), ("out", 6), ("out" if first in ("o", "out", "output") else "score", 5)):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return f"{other}_mod= to pass it by, if that is what it is, or " if other != kind else ""
    return ""


def _shown(signature: inspect.Signature) -> str:
    return f"({', '.join(signature.parameters)})"


def _wants_column(signature: inspect.Signature) -> bool:
    """True if a sixth positional argument can be taken and is either required or called d / d_idx."""
    positional = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
        return True
    return len(positional) >= 6 and (positional[5].default is positional[5].empty or positional[5].name in ("d", "d_idx"))


def _root(result, kind: str, score_dtype: DType, where: str, name: str) -> Node:
    """The mod's result as a node of the right type, or the refusal of its shape or dtype."""
    if kind == "mask" and type(result) is Traced and result.node.dtype is DType.BOOL:
        return result.node
    if result is None:
        raise refuse(f"{name} returns None", "a `return` of the new score" if kind != "mask" else "a `return` of a bool", where)
    if isinstance(result, (tuple, list, dict, set, str)):
        raise refuse(f"{name} returns a {type(result).__name__}, not one number", f"one value, as {SIGNATURES[kind]} must", where)
    if isinstance(result, torch.Tensor) and result.dim():
        result = whole(result)
    if isinstance(result, Lanes):
        inner = f"`{result.origin}` is used with one index missing" if result.origin else "it has a dimension"
        raise refuse(f"{name} returns a vector of shape {tuple(result.shape)} where a scalar (one number a position) "
                     f"is wanted: {inner}",
                     f"an index for every dimension of {result.origin or 'each captured tensor'}", where)
    value = arith.lift(result)
    dtype = arith.dtype_of(value)
    if kind == "mask":
        if not dtype.is_bool:
            advice = ("score_mod for an additive mask (0 / -inf), or a comparison such as x > 0" if dtype.is_float
                      else "a comparison, such as x != 0")
            raise refuse(f"{name} is a mask_mod and returns dtype {TO_TORCH[dtype]}; it must return a bool: "
                         "True = attend", advice, where)
        return arith.as_node(value, DType.BOOL)
    if dtype.is_bool:
        article = "an" if kind == "out" else "a"
        raise refuse(f"{name} is {article} {kind}_mod and returns a bool where a float is wanted",
                     "the argument mask_mod= for it, or torch.where(condition, score, float('-inf'))", where)
    return cast(arith.as_node(value, dtype if isinstance(value, Traced) else score_dtype), score_dtype)


def _finish(recorder: Recorder, kind: str, root: Node, file: str, line: int) -> BoundGraph:
    """Drops captures and slots that the result does not use, and renumbers the rest in order of first use by the code."""
    lines = recorder.lines
    graph, loads, slots = _graph(kind, root, tuple(recorder.captures), tuple(recorder.slots))
    if len(loads) < len(recorder.tensors) or len(slots) < len(recorder.slots):
        new = {Op.LOAD: {old: i for i, old in enumerate(loads)}, Op.SLOT: {old: i for i, old in enumerate(slots)}}
        moved: dict[Node, int] = {}

        def replace(n: Node) -> Node:
            return node(n.op, n.args, n.dtype, new[n.op][n.attr]) if n.op in new else n

        memo: dict[Node, Node] = {}
        for n in topological(root):
            memo[n] = replace(node(n.op, tuple(memo[a] for a in n.args), n.dtype, n.attr))
            if n in lines:
                moved[memo[n]] = lines[n]
        lines = moved
        graph, *_ = _graph(kind, memo[root], tuple([recorder.captures[i] for i in loads]),
                           tuple([recorder.slots[i] for i in slots]))
    origin = Origin(recorder.name, file, line, tuple([recorder.capture_names[i] for i in loads]), dict(lines))
    return BoundGraph(graph, tuple([recorder.tensors[i] for i in loads]), tuple([recorder.literals[i] for i in slots]), origin)


@lru_cache(maxsize=1024)
def _graph(kind: str, root: Node, captures: tuple, slots: tuple) -> tuple[Graph, list[int], list[int]]:
    """The Graph, and the numbers of the captures (LOAD) and slots (SLOT) in it, ascending; of one structure the same object."""
    graph = Graph(kind, root, captures, slots)
    return graph, *[sorted({n.attr for n in graph.nodes if n.op is op}) for op in (Op.LOAD, Op.SLOT)]


def _user_error(error: Exception, recorder: Recorder, where: str) -> TraceError:
    """An exception raised by the user's code while it was traced, placed at the user's line."""
    name = recorder.name
    if at := recorder.at or raised_at(error):
        where = f"{at[0]}:{at[1]}"
    if "does not support ufuncs" in str(error):
        return refuse(f"{name} calls a numpy function on a traced value", "the torch function of the same name", where)
    path, _, number = where.rpartition(":")
    if isinstance(error, IndexError) and ".shape[" in linecache.getline(path, int(number)):
        return refuse(f"{name} asks for a length by .shape[...]: the arguments are scalars (one number a position), of shape ()",
                      "the length as a captured number, or the shape of a captured tensor", where)
    said = f"{name} raises {type(error).__name__} while it is traced: {str(error).rstrip('.')}"
    for kinds, advice in _ADVICE:
        if isinstance(error, kinds):
            return refuse(said, advice, where)
    return refuse(f"{said}. A mod is called once with traced values that stand for all positions",
                  "torch functions and arithmetic on the arguments, and indices into captured tensors", where)


# Errors that have little to do with tracing.
_ADVICE = (
    ((NameError, ImportError), "a name that exists where the mod is defined"),
    (RecursionError, "a loop with a fixed number of rounds: what would end the recursion is not known while the mod is traced"),
    (AttributeError, "the name of something that exists"),
)
