"""flex_attention inside torch.compile: how a mod that Dynamo is tracing becomes a graph of ours.

Dynamo runs the mod on scalar stand-ins (`leaf`) inside the body of a higher-order operator, so it guards every number and lifts
every tensor that the mod closes over, intermediates of the outer function too: a mod whose closure changes is compiled again. The
body ends in `join`, which only says what is wanted. When the operator is reached, by the backend's tracing or at run time, the
body is run once more, on our tracer, and `flexfa4::attention` takes its place in the graph.

The operator is torch's `dynamo_bypassing_wrapper`, which hands a traced body to a function of ours. It is not among torch's
public names, and nothing that is would do: a custom op and `allow_in_graph` take no function, `nested_compile_region` traces the
body down to ATen before anyone sees it, and a constant result (`assume_constant_result`) cannot hold an intermediate that a mod
closes over.
"""
from __future__ import annotations

import functools
import inspect
import operator
import re
import threading
import types
from pathlib import Path
from typing import Callable

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from flexfa4.errors import UnsupportedError
from flexfa4.ir import DType, Op
from flexfa4.ir.bound import BoundGraph
from flexfa4.trace import bind, is_user_file, trace
from flexfa4.trace.recorder import Recorder, active

from . import internals
from .programs import Layout
from .torch_op import LIBRARY, Attention, attention

LIBRARY.define("leaf(Tensor like, str name) -> Tensor")
LIBRARY.define("join(Tensor query, Tensor key, Tensor value, Tensor? score, Tensor? mask, Tensor? out, float scale, int[] tiles, "
               "bool precise) -> (Tensor out, Tensor lse)")

_PACKAGE = str(Path(__file__).resolve().parents[1])
_MODS = str(Path(_PACKAGE, "mods"))
_FRAME = re.compile(r'File "(.*)", line (\d+), in (.*)')
_FLOAT_LEAVES = ("score", "out", "lse")
_ARGUMENTS = {"score": ("score", "b", "h", "q", "kv"), "mask": ("b", "h", "q", "kv"), "out": ("out", "lse", "b", "h", "q", "d")}


def _float_type(like: Tensor) -> torch.dtype:
    return torch.float64 if like.dtype is torch.float64 else torch.float32


def _leaf_fake(like, name):
    if name in _FLOAT_LEAVES:
        return like.new_empty((), dtype=_float_type(like))
    return like.new_empty((), dtype=torch.int64)


def _join_fake(query, key, value, score, mask, out, scale, tiles, precise):
    shape = (*query.shape[:3], value.shape[3])
    return query.new_empty(shape), query.new_empty(shape[:3], dtype=_float_type(query))


def _never(*_):
    raise RuntimeError("flexfa4::leaf and join stand for a mod inside torch.compile and are not run")


for _name, _fake in (("leaf", _leaf_fake), ("join", _join_fake)):
    LIBRARY.impl(_name, _never, "CompositeExplicitAutograd")
    torch.library.register_fake(f"flexfa4::{_name}", _fake, lib=LIBRARY)
# So that Dynamo sees an output that requires grad where an input does.
torch.library.register_autograd("flexfa4::join", _never, lib=LIBRARY)


class _Lookups(TorchFunctionMode):
    """Gives t[i] its shape without asking for the number that the stand-in i is: while a mod is traced there is none."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is Tensor.__getitem__ or func is operator.getitem:
            table, index = args
            parts = index if isinstance(index, tuple) else (index,)
            if any(_is_position(p) for p in parts):
                # Any index would do for the shape of what is left; an empty dimension has none.
                sizes = torch.empty([max(1, n) for n in table.shape], device="meta")
                return table.new_empty(sizes[tuple(0 if _is_position(p) else p for p in parts)].shape)
        return func(*args, **(kwargs or {}))


def _is_position(part) -> bool:
    return isinstance(part, FakeTensor) and part.dim() == 0 and part.dtype not in (torch.bool, torch.uint8)


_lookups = _Lookups()
_entered = threading.local()
_function_modes = internals.find("torch.overrides", "_get_current_function_mode_stack", None)
_replace_body = internals.find("torch._higher_order_ops.wrap", "dynamo_bypassing_wrapper", None)


# These two run as they are while Dynamo traces: torch has no public way to have a mode active then. A mod that fails leaves the
# mode to Dynamo's clean-up, which in torch 2.12 and later restores the modes by itself; 2.11 takes one left behind for a bug.
@torch.compiler.assume_constant_result
def _begin() -> int:
    # Outside Dynamo, where a mod broke the graph, nothing asks for shapes.
    if not _active() and _is_traced():
        _lookups.__enter__()
        _entered.here = True
        _at_clean_up(_leave)
    return 0


@torch.compiler.assume_constant_result
def _end() -> int:
    _leave()
    return 0


def _active() -> bool:
    return getattr(_entered, "here", False) if _function_modes is None else _lookups in _function_modes()


def _leave() -> None:
    if _active():
        _entered.here = False
        _lookups.__exit__(None, None, None)


_translator = internals.find("torch._dynamo.symbolic_convert", "InstructionTranslator", None)


def _is_traced() -> bool:
    """Whether this runs in the midst of Dynamo's tracing; True where torch does not tell."""
    try:
        return _translator is None or _translator.current_tx() is not None
    except AttributeError:
        return False


def _at_clean_up(leave: Callable[[], None]) -> None:
    try:
        _translator.current_tx().output.add_cleanup_hook(leave)
    except AttributeError:
        pass             # a mod that fails then leaves the mode to Dynamo


def _replaced(body: torch.fx.GraphModule | Callable) -> Callable:
    """What runs in the place of a body that Dynamo has traced; of one that it could not, since a mod breaks the graph, the body
    itself is here, between two graphs."""
    return functools.partial(_attend if isinstance(body, torch.fx.GraphModule) else _attend_apart, body)


def _attend_apart(body: Callable, query: Tensor, key: Tensor, value: Tensor):
    """The attention of a body as `call` writes it, whose mods are traced as outside torch.compile."""
    given = inspect.getclosurevars(body).nonlocals
    float_type = DType.F64 if query.dtype is torch.float64 else DType.F32
    bound = [None if (mod := given[f"{kind}_mod"]) is None else bind(mod, kind, float_type) for kind in _ARGUMENTS]
    layout = _layout(bound[1], query, given["tiles"])
    return attention(query, key, value, Attention(*bound, layout, None, given["scale"], precise=given["precise"]))


def _attend(body: torch.fx.GraphModule, *tensors):
    """Runs the body on our tracer, and the attention that it describes."""
    placeholders = [n for n in body.graph.nodes if n.op == "placeholder"]
    given = dict(zip(placeholders, tensors))
    (join,) = [n for n in body.graph.nodes if n.target is torch.ops.flexfa4.join.default or n.target is torch.ops.flexfa4.join]
    query, key, value, *parts, scale, tiles, precise = join.args
    run = _Body(body, given)
    q, k, v, scale = run.values((query, key, value, scale))
    float_type = DType.F64 if q.dtype is torch.float64 else DType.F32
    bound = [None if part is None else trace(run.function(part, kind), kind, float_type)
             for part, kind in zip(parts, ("score", "mask", "out"))]
    layout = _layout(bound[1], q, tiles)
    return attention(q, k, v, Attention(bound[0], bound[1], bound[2], layout, None, float(scale), precise=precise))


def _layout(mask: BoundGraph | None, query: Tensor, tiles) -> Layout | None:
    if mask is None:
        return None
    shared, alone, kv_tile = tiles
    per_batch, per_head = mask.graph.uses(Op.B), mask.graph.uses(Op.H)
    return Layout(alone if per_head else shared, kv_tile, int(query.shape[0]) if per_batch else 1,
                  int(query.shape[1]) if per_head else 1)


class _Body:
    """Evaluates nodes of a Dynamo body, with chosen values for its leaves."""

    def __init__(self, body: torch.fx.GraphModule, given: dict):
        self.body, self.given = body, given

    def values(self, nodes, leaves: dict | None = None, recorder: Recorder | None = None) -> list:
        """The values of nodes, running only what they need. `recorder` is told where each stands in the user's code."""
        known = dict(self.given)

        def value(n):
            if n not in known:
                if recorder is not None and (place := _place(n)) is not None:
                    recorder.at = place[:2]
                known[n] = self._run(n, torch.fx.node.map_arg(n.args, value), torch.fx.node.map_arg(n.kwargs, value), leaves)
            return known[n]

        for n in self._needed((*nodes, *self._read_on_the_host(leaves or {}))):
            value(n)
        return [value(n) if isinstance(n, torch.fx.Node) else n for n in nodes]

    def _read_on_the_host(self, leaves: dict) -> list:
        """Where the mod asked for the number that a position is, and Dynamo went on with the one its stand-in has: our tracer
        refuses that."""
        reads = [n for n in self.body.graph.nodes if n.op == "call_method" and n.target in ("item", "tolist")]
        return [n for n in reads if {a.args[1] for a in self._needed((n,)) if _is_leaf(a)} <= leaves.keys()]

    def _needed(self, nodes) -> list:
        """The ancestors of nodes, in the order of the body."""
        needed, stack = set(), [n for n in nodes if isinstance(n, torch.fx.Node)]
        while stack:
            n = stack.pop()
            if n not in needed:
                needed.add(n)
                stack.extend(n.all_input_nodes)
        return [n for n in self.body.graph.nodes if n in needed]

    def _run(self, n, args, kwargs, leaves):
        if _is_leaf(n):
            return leaves[args[1]]
        if n.op == "call_function":
            return n.target(*args, **kwargs)
        if n.op == "call_method":
            return getattr(args[0], n.target)(*args[1:], **kwargs)
        if n.op == "get_attr":
            return getattr(self.body, n.target)
        raise RuntimeError(f"{n.op} {n.target} in a mod under torch.compile")

    def function(self, result: torch.fx.Node, kind: str) -> Callable:
        """`result` as a plain function of the arguments of its kind, which says where the user wrote it."""
        names = _ARGUMENTS[kind]

        def mod(*arguments):
            recorder = active()
            recorder.names = {id(t): _called(n) for n, t in self.given.items()}
            return self.values((result,), dict(zip(names, arguments)), recorder)[0]

        places = [_place(n) for n in (result, *reversed(self._needed((result,))))]
        mod.described = next((p for p in places if p is not None), (__file__, 0, f"{kind}_mod"))
        mod.__signature__ = inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in names])
        return mod


def _is_leaf(n: torch.fx.Node) -> bool:
    return n.target is torch.ops.flexfa4.leaf.default or n.target is torch.ops.flexfa4.leaf


def _place(n: torch.fx.Node) -> tuple[str, int, str] | None:
    """(file, line, function) of the innermost frame that is the user's, for a node that Dynamo recorded."""
    for file, line, function in reversed(_FRAME.findall(n.meta.get("stack_trace") or "")):
        if is_user_file(file) and not (file.startswith(_PACKAGE) and not file.startswith(_MODS)):
            return file, int(line), function
    return None


def _called(placeholder: torch.fx.Node) -> str:
    """What the user calls a tensor: of the line where Dynamo met it, the word in which Dynamo's name for it ends."""
    name = placeholder.name.strip("_").lower()
    lines = [line for line in (placeholder.meta.get("stack_trace") or "").splitlines() if line.strip(" ^~")]
    words = [w for w in re.findall(r"\w+", lines[-1] if lines else "") if name.endswith(w.strip("_").lower())]
    return max(words, key=len, default=re.sub(r"^[lg]_", "", name))


def call(tensors: tuple[Tensor, Tensor, Tensor], mods: tuple, scale: float, tiles: list[int], precise: bool = False):
    """What flex_attention does while Dynamo traces it. mods: (score_mod, mask_mod, out_mod), each a function or None; tiles:
    query tile where heads share a mask row, query tile where they do not, key tile. Returns (out, lse)."""
    score_mod, mask_mod, out_mod = mods
    if _replace_body is None:
        raise UnsupportedError(f"torch {torch.__version__} has no dynamo_bypassing_wrapper, by which flex_attention becomes part "
                               "of a compiled graph: use torch 2.11 to 2.13, or torch.compiler.disable(flexfa4.flex_attention)")

    def body(query, key, value):
        def leaf(name):
            return torch.ops.flexfa4.leaf(query, name)

        score = mask = out = None
        at = [leaf(name) for name in ("b", "h", "q", "kv")]
        if score_mod is not None:
            score = score_mod(leaf("score"), *at)
        if mask_mod is not None:
            mask = mask_mod(*at)
        if out_mod is not None:
            column = (leaf("d"),) if _wants_column(out_mod) else ()
            out = out_mod(leaf("out"), leaf("lse"), *at[:3], *column)
        parts = [part if part is None or isinstance(part, Tensor) else torch.full((), part, device="cpu")
                 for part in (score, mask, out)]
        return torch.ops.flexfa4.join(query, key, value, *parts, scale, tiles, precise)

    _begin()
    found = _replace_body(_replaced, body, *tensors)
    _end()
    return found


def _apart(reason: str) -> Callable:
    """Calls function(*arguments) as outside torch.compile: the graph breaks there, and with fullgraph=True Dynamo refuses by that
    reason."""
    def run(function: Callable, *arguments):
        return function(*arguments)

    return torch.compiler.disable(run, reason=f"inside torch.compile {reason}; without fullgraph=True the call runs between two "
                                              "graphs")


with_fixed_mask = _apart("block_mask is a FixedMask, whose buffers a compiled graph does not read: pass the BlockMask it was "
                         "reserved from")
with_torch_mask = _apart("block_mask is torch's, whose lists a compiled graph does not read: convert it outside by "
                         "BlockMask.from_torch")
with_debug = _apart("debug=True calls Python at every position, which no graph holds: leave it out")


def _wants_column(fn: Callable) -> bool:
    """Whether an output hook is called with a sixth argument, as `flexfa4.trace` decides it, in what Dynamo can follow:
    inspect.signature is beyond it, and so are the defaults of a function made in the compiled code."""
    bound, named = 0, ()
    while isinstance(fn, functools.partial):
        bound, named, fn = bound + len(fn.args), (*named, *fn.keywords), fn.func
    if isinstance(fn, types.MethodType):
        bound, fn = bound + 1, fn.__func__
    elif not isinstance(fn, types.FunctionType):
        bound, fn = bound + 1, type(fn).forward if isinstance(fn, torch.nn.Module) else type(fn).__call__
    code = fn.__code__
    count = next((i for i, name in enumerate(code.co_varnames[:code.co_argcount]) if name in named), code.co_argcount)
    if code.co_flags & inspect.CO_VARARGS and not named:
        return True
    if count < bound + 6:
        return False
    return code.co_varnames[bound + 5] in ("d", "d_idx") or len(fn.__defaults__ or ()) < code.co_argcount - bound - 5
