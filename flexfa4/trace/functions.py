"""The table from torch functions and methods to what they record: one row each. A function without a row is refused by name."""
from __future__ import annotations

import difflib
from functools import partial
from typing import Callable

import torch

from ..ir import DType, Node, Op
from ..tensors import TO_TORCH
from . import arith, compose
from .arith import bitwise, compare, extremum, integer_like, lift, logical, rounding, shift, unary_float
from .lanes import Entry, Lanes, View, elementwise, index_view, missing_index, whole
from .mode import RANDOM, UNSET, refuse_random, refuse_unset
from .recorder import active, refuse
from .tracer import METHODS, Symbolic, Traced, set_operators


def _unary(op: Op) -> Callable:
    return lambda x: unary_float(op, x)


ELEMENTWISE: dict[str, Callable] = {
    "add": arith.add, "sub": arith.sub, "subtract": arith.sub, "mul": arith.mul, "multiply": arith.mul,
    "rsub": lambda a, b, *, alpha=1: arith.sub(b, a, alpha=alpha),
    "div": arith.div, "divide": arith.div, "true_divide": arith.true_div,
    "floor_divide": lambda a, b: integer_like(Op.FLOORDIV, a, b),
    "remainder": lambda a, b: integer_like(Op.MOD, a, b), "fmod": lambda a, b: integer_like(Op.FMOD, a, b),
    "pow": arith.power, "square": lambda x: arith.power(x, 2),
    "minimum": lambda a, b: extremum(Op.MIN, a, b), "maximum": lambda a, b: extremum(Op.MAX, a, b),
    "fmin": lambda a, b: compose.fmax(a, b, Op.MIN), "fmax": compose.fmax,
    "clamp": arith.clamp, "clip": arith.clamp,
    "clamp_min": lambda x, min: arith.clamp(x, min=min), "clamp_max": lambda x, max: arith.clamp(x, max=max),
    "bitwise_and": partial(bitwise, Op.AND), "bitwise_or": partial(bitwise, Op.OR),
    "bitwise_xor": partial(bitwise, Op.XOR), "bitwise_not": arith.invert,
    "bitwise_left_shift": lambda a, b: shift(Op.SHL, a, b), "bitwise_right_shift": lambda a, b: shift(Op.SHR, a, b),
    "logical_and": lambda a, b: logical(Op.AND, a, b), "logical_or": lambda a, b: logical(Op.OR, a, b),
    "logical_xor": lambda a, b: logical(Op.XOR, a, b), "logical_not": lambda x: arith.invert(arith.truth(x)),
    "lt": partial(compare, Op.LT), "le": partial(compare, Op.LE),
    "gt": partial(compare, Op.LT, swap=True), "ge": partial(compare, Op.LE, swap=True),
    "eq": partial(compare, Op.EQ), "ne": partial(compare, Op.NE),
    "where": arith.where, "masked_fill": compose.masked_fill,
    "neg": arith.negative, "positive": compose.positive, "abs": lambda x: arith.number_unary(Op.ABS, x),
    "sign": lambda x: arith.number_unary(Op.SIGN, x), "floor": lambda x: rounding(Op.FLOOR, x),
    "ceil": lambda x: rounding(Op.CEIL, x), "trunc": lambda x: rounding(Op.TRUNC, x), "frac": compose.frac,
    "round": lambda x, *, decimals=0: _round(x, decimals),
    "exp": _unary(Op.EXP), "exp2": _unary(Op.EXP2), "expm1": _unary(Op.EXPM1), "log": _unary(Op.LOG), "log2": _unary(Op.LOG2),
    "log10": _unary(Op.LOG10), "log1p": _unary(Op.LOG1P), "sqrt": _unary(Op.SQRT), "rsqrt": _unary(Op.RSQRT),
    "reciprocal": _unary(Op.RECIPROCAL), "tanh": _unary(Op.TANH), "sigmoid": compose.sigmoid, "erf": _unary(Op.ERF),
    "sin": _unary(Op.SIN), "cos": _unary(Op.COS), "tan": _unary(Op.TAN), "atan": _unary(Op.ATAN), "atan2": arith.atan2,
    "asin": compose.asin, "acos": compose.acos, "sinh": compose.sinh, "cosh": compose.cosh, "erfc": compose.erfc,
    "isnan": lambda x: arith.float_test(Op.ISNAN, x), "isinf": lambda x: arith.float_test(Op.ISINF, x),
    "isfinite": compose.isfinite, "isposinf": lambda x: compose.signed_inf(x, 1.0),
    "isneginf": lambda x: compose.signed_inf(x, -1.0), "nan_to_num": compose.nan_to_num,
    "relu": compose.relu, "silu": compose.silu, "gelu": compose.gelu, "softplus": compose.softplus,
    "logsigmoid": compose.logsigmoid, "leaky_relu": compose.leaky_relu, "elu": compose.elu, "relu6": compose.relu6,
    "hardtanh": compose.hardtanh, "hardsigmoid": compose.hardsigmoid, "hardswish": compose.hardswish,
    "softsign": compose.softsign, "mish": compose.mish, "logaddexp": compose.logaddexp, "xlogy": compose.xlogy,
    "hypot": compose.hypot, "lerp": compose.lerp, "addcmul": compose.addcmul, "addcdiv": compose.addcdiv,
    "float": lambda x: arith.to_dtype(x, torch.float32), "double": lambda x: arith.to_dtype(x, torch.float64),
    "half": lambda x: arith.to_dtype(x, torch.float16), "bfloat16": lambda x: arith.to_dtype(x, torch.bfloat16),
    "int": lambda x: arith.to_dtype(x, torch.int32), "long": lambda x: arith.to_dtype(x, torch.int64),
    "short": lambda x: arith.to_dtype(x, torch.int16), "char": lambda x: arith.to_dtype(x, torch.int8),
    "byte": lambda x: arith.to_dtype(x, torch.uint8), "bool": lambda x: arith.to_dtype(x, torch.bool),
}
ALIASES = {
    "absolute": "abs", "negative": "neg", "sgn": "sign", "fix": "trunc", "arctan": "atan", "arctan2": "atan2", "arcsin": "asin",
    "arccos": "acos", "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
    "special_expit": "sigmoid", "expit": "sigmoid", "special_erf": "erf", "special_exp2": "exp2", "special_expm1": "expm1",
    "special_log1p": "log1p", "special_erfc": "erfc", "special_xlogy": "xlogy", "__radd__": "add", "__rmul__": "mul",
    "__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor", "__lshift__": "bitwise_left_shift",
    "__rshift__": "bitwise_right_shift", "log_sigmoid": "logsigmoid",
}


def _round(x, decimals):
    if decimals:
        raise refuse(f"round(decimals={decimals})", "torch.round(x * 10 ** n) / 10 ** n")
    return rounding(Op.ROUND, x)


_SCALARS = frozenset({Traced, bool, int, float})


def _vectorised(handler: Callable) -> Callable:
    def run(*args, **kwargs):
        if not kwargs and _SCALARS.issuperset(map(type, args)):
            return handler(*args)
        if kwargs.pop("out", None) is not None:
            raise refuse("out= in a mod (a write to a tensor)", "the returned value")
        vector = False
        for a in (*args, *kwargs.values()):
            if isinstance(a, Lanes) or (isinstance(a, torch.Tensor) and a.dim()):
                vector = True
        if not vector:
            return handler(*args, **kwargs)
        views = {k: _viewed(a) for k, a in kwargs.items()}
        return elementwise(handler, tuple(_viewed(a) for a in args), views)
    return run


def _viewed(a):
    return whole(a) if isinstance(a, torch.Tensor) and a.dim() else a


def _in_place(name: str) -> Callable:
    handler = METHODS[name]

    def run(self, *args, **kwargs):
        if not isinstance(self, Traced):
            target = self.origin if isinstance(self, Lanes) else "a captured tensor"
            raise refuse(f"in-place {name}_ on {target} (a write to a captured tensor)", f"x = x.{name}(...), a new value")
        result = handler(self, *args, **kwargs)
        if isinstance(result, Lanes):
            raise missing_index(result)
        old, new = self.node.dtype, result.node.dtype
        if (new.is_float and not old.is_float) or (old.is_bool and not new.is_bool):
            raise refuse(f"in-place {name}_ would change {self.dtype} to {result.dtype}, which torch does not do in place",
                         f"x = x.{name}(...)")
        return _written(self, arith.cast(result.node, old))
    return run


def _optional_write(name: str, at: int) -> Callable:
    """A function of torch.nn.functional that writes to its argument where `inplace` is True, its argument number `at`."""
    handler, write = METHODS[name], _in_place(name)

    def run(x, *args, inplace=False, **kwargs):
        inplace, args = args[at - 1] if len(args) >= at else inplace, args[:at - 1]
        return (write if inplace else handler)(x, *args, **kwargs)
    return run


def _written(x: Traced, node: Node) -> Traced:
    """x, which is `node` from now on, as what else is the same number."""
    if isinstance(x, Entry):
        x.place.write(node)
    else:
        x.node, x.number = node, None
    return x


def _to(x, *args, **kwargs):
    dtype = kwargs.get("dtype")
    for a in args:
        if isinstance(a, torch.dtype):
            dtype = a
        elif isinstance(a, (Symbolic, torch.Tensor)):
            dtype = a.dtype
    copies = kwargs.get("copy", [a for a in args if isinstance(a, bool)][1:])            # beside non_blocking, which comes first
    x = x if dtype is None else _cast(x, dtype)
    return _clone(x) if copies in (True, [True]) else x


def _type(x, dtype=None, non_blocking=False):
    if dtype is None:
        raise refuse(".type() without an argument", "x.dtype")
    if isinstance(dtype, str) or isinstance(dtype, type):
        raise refuse(f".type({dtype!r})", "x.to(torch.float32)")
    return _cast(x, dtype)


_cast = _vectorised(arith.to_dtype)


def _like(value) -> Callable:
    def run(x, *args, dtype=None, **kwargs):
        fill = value if value is not None else (args[0] if args else kwargs.get("fill_value"))
        number = arith.constant(fill, dtype or x.dtype)
        return Lanes(x.shape, [number] * len(x.items), x.origin) if isinstance(x, Lanes) else number
    return run


def _new(value) -> Callable:
    def run(x, size=(), *args, dtype=None, **kwargs):
        if isinstance(size, int) or len(size):
            raise refuse(f"a new tensor of size {size} inside a mod", "a captured tensor made outside")
        fill = value if value is not None else (args[0] if args else kwargs["fill_value"])
        return arith.constant(fill, dtype or x.dtype)
    return run


def _new_tensor(x, data, dtype=None, **kwargs):
    return arith.constant(data, dtype or x.dtype)


def _getitem(x, index):
    if isinstance(x, Traced):
        parts = index if isinstance(index, tuple) else (index,)
        if all(p is None or p is Ellipsis for p in parts):
            extra = sum(p is None for p in parts)
            return Lanes((1,) * extra, [x]) if extra else x
        raise refuse("an index into a traced value, which is one number", "the value itself, or an index into a captured tensor")
    if isinstance(x, torch.Tensor):
        if type(index) is Traced and index.node.dtype is DType.I64 and x.dim() == 1:
            rec = active()                   # as below, where most masks pass
            return Traced(rec.load(rec.capture(x), (index.node,)))
        return index_view(whole(x), index)
    return x[index]


def _setitem(x, index, value):
    name = active().capture_names[active().capture(x)] if isinstance(x, torch.Tensor) else "a traced value"
    raise refuse(f"assignment into `{name}` (a write to a captured tensor): positions run in parallel and in any order",
                 "the returned value; for the scores themselves, run the dense reference")


def _reduction(name: str, lanes: Callable | None) -> Callable:
    def run(x, *args, **kwargs):
        x = whole(x) if isinstance(x, torch.Tensor) and x.dim() else x
        if name in ("max", "min") and args and isinstance(args[0], (Symbolic, torch.Tensor)):
            return METHODS["maximum" if name == "max" else "minimum"](x, args[0])
        if isinstance(x, Lanes) and lanes is not None:
            dim = kwargs.get("dim", args[0] if args else None)
            if x.ndim == 1 and dim in (None, 0, -1, (0,), (-1,)) and not kwargs.get("keepdim"):
                if name in ("max", "min") and dim is not None:
                    raise refuse(f"{name}(dim=...), which also gives positions", f"x.a{name}(dim=-1)")
                return lanes(x)
        raise refuse(f"{name}() is a reduction, and a mod sees one score, not its row (what a mod gets is a scalar)",
                     "the reduction outside the mod; capture its result and index it")
    return run


def _matmul(a, b):
    return compose.dot(_viewed(a), _viewed(b))


def _stack(tensors, dim=0):
    items = [lift(t) if not isinstance(t, Lanes) else t for t in tensors]
    if any(isinstance(t, Lanes) for t in items):
        raise refuse("torch.stack of vectors", "torch.stack of numbers")
    dtype = arith.dtype_of(*items)
    return Lanes((len(items),), [Traced(arith.as_node(i, dtype)) for i in items])


def _embedding(input, weight, padding_idx=None, max_norm=None, *args, **kwargs):
    """torch.nn.functional.embedding. torch.embedding has the first two the other way round."""
    if max_norm is not None:
        raise refuse("embedding with max_norm (a write to a captured tensor)", "weights that were scaled before the call")
    if padding_idx is not None and isinstance(weight, torch.Tensor) and weight.requires_grad:
        raise refuse("embedding with padding_idx, which would keep a gradient from one row", "a where around the lookup")
    return index_view(whole(weight), (input, Ellipsis))


def _unsqueeze(x, dim):
    if isinstance(x, Traced):
        return Lanes((1,), [x])
    at = dim if dim >= 0 else x.ndim + 1 + dim
    if isinstance(x, View):
        return View(x.capture, x.fixed, x.free, [*x.order[:at], None, *x.order[at:]], x.row)
    return Lanes((*x.shape[:at], 1, *x.shape[at:]), x.items, x.origin)


def _squeeze(x, *dims):
    if isinstance(x, Traced):
        return x
    return x.items[0] if len(x.items) == 1 else x


def _isin(elements, test_elements, **kwargs):
    return compose.any_lane(METHODS["eq"](elements, _viewed(test_elements)))


def _bucketize(input, boundaries, *, right=False, out_int32=False, side=None, sorter=None):
    """How many boundaries are not at or above the value (with right=True: not above it). A NaN is past all of them."""
    if sorter is not None:
        raise refuse("searchsorted with a sorter", "a tensor sorted before the call")
    above = METHODS["gt" if right or side == "right" else "ge"](_viewed(boundaries), input)
    total = compose.sum_lanes(METHODS["logical_not"](above))
    return arith.to_dtype(total, torch.int32) if out_int32 else total


def _size(x, dim=None):
    if dim is not None and isinstance(x, Traced):
        raise refuse(f".size({dim}) of an argument: it is a scalar (one number a position), of shape ()",
                     "the length as a captured number, or the shape of a captured tensor")
    return x.shape if dim is None else x.shape[dim]


def _same(x, *args, **kwargs):
    return x


def _clone(x, *, memory_format=None):
    x = _viewed(x)
    return arith.copied(x) if isinstance(x, Traced) else Lanes(x.shape, [arith.copied(i) for i in x.items], x.origin)


def _as_tensor(data, dtype=None, **kwargs):
    if isinstance(data, Traced):
        return data if dtype is None else arith.to_dtype(data, dtype)
    return arith.constant(data, dtype)


def _detach(x):
    if isinstance(x, Traced) and not x.node.dtype.is_float:
        return x
    raise refuse("detach() of a traced value: a mod's gradient is exact everywhere", "capture a detached tensor instead")


def _item(x):
    raise refuse(".item() on a traced value: its number is not known while the mod is traced",
                 "the value itself; torch.where(condition, a, b) where a decision hangs on it")


def _dropout(name: str) -> Callable:
    """The identity where it drops nothing: outside training, or with probability 0."""
    def run(x, p=0.5, training=True, inplace=False, *, train=None):
        if p == 0 or not (training if train is None else train):
            return x
        raise refuse_random(name)
    return run


def _approximate_tanh(x):
    """attention-gym's custom op: tanh by the tanh.approx instruction, with tanh's own gradient around it."""
    rec = active()
    rec.own_gradient_allowed = True
    try:
        return unary_float(Op.TANH, x)
    finally:
        rec.own_gradient_allowed = False


OTHERS: dict[str, Callable] = {
    "to": _to, "type": _type, "type_as": lambda x, other: _cast(x, other.dtype),
    "zeros_like": _like(0), "ones_like": _like(1), "full_like": _like(None),
    "new_zeros": _new(0), "new_ones": _new(1), "new_full": _new(None), "new_tensor": _new_tensor,
    "getitem": _getitem, "__getitem__": _getitem, "__setitem__": _setitem, "index_put_": _setitem,
    "any": _reduction("any", compose.any_lane), "all": _reduction("all", compose.all_lanes),
    "sum": _reduction("sum", compose.sum_lanes), "mean": _reduction("mean", compose.mean_lanes),
    "amax": _reduction("amax", compose.max_lanes), "amin": _reduction("amin", compose.min_lanes),
    "max": _reduction("max", compose.max_lanes), "min": _reduction("min", compose.min_lanes),
    **{name: _reduction(name, None) for name in (
        "topk", "softmax", "log_softmax", "sort", "argsort", "argmax", "argmin", "cumsum", "cumprod", "prod", "norm", "std",
        "var", "median", "logsumexp", "kthvalue", "unique", "nonzero", "count_nonzero", "quantile",
        "aminmax", "mode", "histc")},
    "dot": _matmul, "matmul": _matmul, "inner": _matmul, "stack": _stack, "embedding": _embedding,
    "unsqueeze": _unsqueeze, "squeeze": _squeeze, "isin": _isin, "bucketize": _bucketize,
    "searchsorted": lambda boundaries, x, **kw: _bucketize(x, boundaries, **kw),
    "clone": _clone, "contiguous": _same, "cpu": _same, "cuda": _same, "requires_grad_": _same, "alias": _same,
    "detach": _detach, "item": _item, "tolist": _item, "numpy": _item, "__bool__": bool, "__int__": int, "__float__": float,
    "__index__": lambda x: x.__index__(),
    "dim": lambda x: x.ndim, "ndimension": lambda x: x.ndim, "size": _size,
    "numel": lambda x: x.shape.numel(), "nelement": lambda x: x.shape.numel(),
    "is_floating_point": lambda x: x.dtype.is_floating_point,
    "is_complex": lambda x: False, "result_type": lambda a, b: TO_TORCH[arith.dtype_of(lift(a), lift(b))],
    "__len__": len, "__rpow__": lambda a, b: METHODS["pow"](b, a), "__rsub__": lambda a, b: METHODS["sub"](b, a),
    "__rdiv__": lambda a, b: METHODS["div"](b, a), "__rtruediv__": lambda a, b: METHODS["div"](b, a),
    "__rfloordiv__": lambda a, b: METHODS["floor_divide"](b, a), "__rmod__": lambda a, b: METHODS["remainder"](b, a),
    "__rlshift__": lambda a, b: METHODS["bitwise_left_shift"](b, a),
    "__rrshift__": lambda a, b: METHODS["bitwise_right_shift"](b, a),
    "tensor": lambda data, dtype=None, **kw: arith.constant(data, dtype),
    "as_tensor": _as_tensor,
    "scalar_tensor": lambda data, dtype=None, **kw: arith.constant(data, dtype),
    "approx::tanh": _approximate_tanh,
    **{name: _dropout(name) for name in ("dropout", "alpha_dropout", "feature_alpha_dropout")},
}
IN_PLACE = ("add", "sub", "mul", "div", "floor_divide", "remainder", "pow", "clamp", "clamp_min", "clamp_max", "bitwise_and",
            "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "masked_fill", "neg", "abs", "exp", "exp2",
            "log", "sqrt", "rsqrt", "tanh", "sigmoid", "relu", "floor", "ceil", "round", "trunc", "square", "lerp", "addcmul",
            "addcdiv", "logical_not", "fmod", "sin", "cos", "erf", "true_divide", "multiply", "subtract", "divide", "clip",
            "silu", "logical_and", "logical_or", "logical_xor", "reciprocal", "log2", "log1p", "expm1", "sign", "nan_to_num")

# Which argument of these functions is `inplace`.
INPLACE_AT = {"relu": 1, "relu6": 1, "silu": 1, "mish": 1, "hardsigmoid": 1, "hardswish": 1, "leaky_relu": 2, "elu": 2,
              "hardtanh": 3}


def _zero_(self):
    return _fill_(self, 0)


def _fill_(self, value):
    if not isinstance(self, Traced):
        raise refuse("in-place fill of a captured tensor (a write to it)", "torch.full_like(x, value)")
    return _written(self, arith.as_node(lift(value), self.node.dtype))


def unknown(shown: str, name: str):
    """The refusal of an operation without a row."""
    if name.rstrip("_") in RANDOM:
        return refuse_random(name)
    if name in UNSET:
        return refuse_unset(name)
    if shown.startswith(".") and not hasattr(torch.Tensor, name):
        near = difflib.get_close_matches(name, [n for n in METHODS if hasattr(torch.Tensor, n)], 1)
        return refuse(f"there is no method {shown}", f".{near[0]}" if near else "a method of torch.Tensor")
    return refuse(f"{shown} is not supported in a mod",
                  "a composition of torch.where, arithmetic and the functions listed in docs/writing_mods.md, or, outside "
                  "the mod, compute and capture the result")


def dispatch(func, args, kwargs):
    """Entry of every torch function that meets a traced value."""
    handler = FUNCTIONS.get(func)
    if handler is None:
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            return _attribute(func.__self__.__name__, args[0])
        if hasattr(func, "_qualified_op_name"):
            name = func._qualified_op_name.removeprefix("aten::")
        handler = METHODS.get(name) if name != "dispatch" else None
        if handler is None:
            raise unknown(f"torch's {name}", name)
    return handler(*args, **kwargs)


def _attribute(name: str, x):
    return getattr(x, name)


def _fill_tables() -> dict:
    METHODS.update({name: _vectorised(handler) for name, handler in ELEMENTWISE.items()})
    METHODS.update(OTHERS)
    METHODS.update({name: _optional_write(name, at) for name, at in INPLACE_AT.items()})
    METHODS.update({alias: METHODS[name] for alias, name in ALIASES.items()})
    METHODS.update({f"{name}_": _in_place(name) for name in IN_PLACE})
    METHODS.update({"zero_": _zero_, "fill_": _fill_, "dispatch": dispatch, "unknown": unknown})
    set_operators()
    table = {}
    for home in (torch.Tensor, torch, torch.nn.functional, torch.special):
        for name, handler in METHODS.items():
            func = getattr(home, name, None)
            if callable(func) and not isinstance(func, type):
                table.setdefault(func, handler)
    table[torch.embedding] = lambda weight, indices, padding_idx=-1, *_, **__: _embedding(
        indices, weight, padding_idx if padding_idx >= 0 else None)
    return table


FUNCTIONS = _fill_tables()
