"""flex_attention inside torch.compile: how a mod that Dynamo is tracing becomes a graph of ours.

Dynamo runs the mod on scalar stand-ins (`leaf`) inside the body of a higher-order operator, so it guards every number and lifts
every tensor that the mod closes over, intermediates of the outer function too: a mod whose closure changes is compiled again. The
body ends in `join`, which only says what is wanted. When the operator is reached, by the backend's tracing or at run time, the
body is run once more, on our tracer, and `flexfa4::attention` takes its place in the graph.
"""
from __future__ import annotations

from typing import Callable

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._higher_order_ops.base_hop import BaseHOP
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

from flexfa4.ir import DType, Op
from flexfa4.ir.bound import BoundGraph
from flexfa4.trace import trace

from .programs import Layout
from .torch_op import LIBRARY, Attention, attention

LIBRARY.define("leaf(Tensor like, str name) -> Tensor")
LIBRARY.define("join(Tensor query, Tensor key, Tensor value, Tensor? score, Tensor? mask, Tensor? out, float scale, int[] tiles) "
               "-> (Tensor out, Tensor lse)")

_FLOAT_LEAVES = ("score", "out", "lse")
_ARGUMENTS = {"score": ("score", "b", "h", "q", "kv"), "mask": ("b", "h", "q", "kv"), "out": ("out", "lse", "b", "h", "q", "d")}


def _float_type(like: Tensor) -> torch.dtype:
    return torch.float64 if like.dtype is torch.float64 else torch.float32


def _leaf_fake(like, name):
    if name in _FLOAT_LEAVES:
        return like.new_empty((), dtype=_float_type(like))
    # Indexing a tensor by a scalar asks for its value; Dynamo records the lookup whatever the value is, and 0 is in range.
    return torch.tensor(0, device=like.device)


def _join_fake(query, key, value, score, mask, out, scale, tiles):
    shape = (*query.shape[:3], value.shape[3])
    return query.new_empty(shape), query.new_empty(shape[:3], dtype=_float_type(query))


def _never(*_):
    raise RuntimeError("flexfa4::leaf and flexfa4::join stand for a mod inside torch.compile and are not run")


for _name, _fake in (("leaf", _leaf_fake), ("join", _join_fake)):
    LIBRARY.impl(_name, _never, "CompositeExplicitAutograd")
    torch.library.register_fake(f"flexfa4::{_name}", _fake, lib=LIBRARY)
# So that Dynamo sees an output that requires grad where an input does.
torch.library.register_autograd("flexfa4::join", _never, lib=LIBRARY)


class _Attend(BaseHOP):
    """operator(body, *tensors): the attention that the body's `join` describes."""

    def __init__(self):
        torch._ops.HigherOrderOperator.__init__(self, "flexfa4_attend")
        self.py_autograd_impl(_attend)
        self.py_impl(DispatchKey.CompositeExplicitAutograd)(_attend)
        self.py_impl(FakeTensorMode)(lambda mode, *args: _under(mode, *args))
        self.py_impl(ProxyTorchDispatchMode)(lambda mode, *args: _under(mode, *args))
        self.py_functionalize_impl(_functional)


def _under(mode, body, *tensors):
    with mode:
        return _attend(body, *tensors)


def _functional(ctx, body, *tensors):
    with ctx.redispatch_to_next():
        return ctx.wrap_tensors(_attend(body, *ctx.unwrap_tensors(tensors)))


def _attend(body: torch.fx.GraphModule, *tensors):
    """Runs the body on our tracer, and the attention that it describes."""
    placeholders = [n for n in body.graph.nodes if n.op == "placeholder"]
    given = dict(zip(placeholders, tensors))
    (join,) = [n for n in body.graph.nodes if n.target is torch.ops.flexfa4.join.default or n.target is torch.ops.flexfa4.join]
    query, key, value, *parts, scale, tiles = join.args
    run = _Body(body, given)
    q, k, v = run.values((query, key, value))
    float_type = DType.F64 if q.dtype is torch.float64 else DType.F32
    bound = [None if part is None else trace(run.function(part, kind), kind, float_type)
             for part, kind in zip(parts, ("score", "mask", "out"))]
    layout = _layout(bound[1], q, tiles)
    return attention(q, k, v, Attention(bound[0], bound[1], bound[2], layout, None, float(scale)))


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

    def values(self, nodes, leaves: dict | None = None) -> list:
        """The values of nodes, running only what they need."""
        known = dict(self.given)

        def value(n):
            if n not in known:
                known[n] = self._run(n, torch.fx.node.map_arg(n.args, value), torch.fx.node.map_arg(n.kwargs, value), leaves)
            return known[n]

        for n in self._needed(nodes):
            value(n)
        return [value(n) for n in nodes]

    def _needed(self, nodes) -> list:
        """The ancestors of nodes, in the order of the body."""
        needed, stack = set(), list(nodes)
        while stack:
            n = stack.pop()
            if n not in needed:
                needed.add(n)
                stack.extend(n.all_input_nodes)
        return [n for n in self.body.graph.nodes if n in needed]

    def _run(self, n, args, kwargs, leaves):
        if n.target is torch.ops.flexfa4.leaf.default or n.target is torch.ops.flexfa4.leaf:
            return leaves[args[1]]
        if n.op == "call_function":
            return n.target(*args, **kwargs)
        if n.op == "call_method":
            return getattr(args[0], n.target)(*args[1:], **kwargs)
        if n.op == "get_attr":
            return getattr(self.body, n.target)
        raise RuntimeError(f"{n.op} {n.target} in a mod under torch.compile")

    def function(self, result, kind: str) -> Callable:
        """`result` as a plain function of the arguments of its kind."""
        names = _ARGUMENTS[kind]
        run = self

        def score_mod(score, b, h, q, kv):
            return run.values((result,), dict(zip(names, (score, b, h, q, kv))))[0]

        def mask_mod(b, h, q, kv):
            return run.values((result,), dict(zip(names, (b, h, q, kv))))[0]

        def out_mod(out, lse, b, h, q, d):
            return run.values((result,), dict(zip(names, (out, lse, b, h, q, d))))[0]

        return {"score": score_mod, "mask": mask_mod, "out": out_mod}[kind]


attend = _Attend()


def call(tensors: tuple[Tensor, Tensor, Tensor], mods: tuple, scale: float, tiles: list[int]):
    """What flex_attention does while Dynamo traces it. mods: (score_mod, mask_mod, out_mod), each a function or None; tiles:
    query tile where heads share a mask row, query tile where they do not, key tile. Returns (out, lse)."""
    score_mod, mask_mod, out_mod = mods

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
            column = (leaf("d"),) if _parameters(out_mod) == 6 else ()
            out = out_mod(leaf("out"), leaf("lse"), *at[:3], *column)
        return torch.ops.flexfa4.join(query, key, value, score, mask, out, scale, tiles)

    return attend(body, *tensors)


def _parameters(fn: Callable) -> int:
    """Positional parameters of a function, closed over or not; inspect.signature is beyond Dynamo."""
    return fn.__code__.co_argcount if hasattr(fn, "__code__") else 5
