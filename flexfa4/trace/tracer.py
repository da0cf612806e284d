"""`Traced`: the value a mod is called with. It looks like a 0-d tensor and writes a graph node for everything done to it."""
from __future__ import annotations

import linecache
import re

import torch

from ..ir import Node
from ..ir.dtypes import FLOATS
from ..tensors import TO_TORCH
from .recorder import active, refuse, refuse_own_gradient, user_frame

# name -> handler, filled by functions.py; kept here so that methods of Traced need no import of the table.
METHODS: dict[str, object] = {}


class Symbolic:
    """What scalars (`Traced`) and short vectors (`Lanes`, `View`) have in common: operators, methods and refusals."""

    __slots__ = ()
    __array_ufunc__ = None          # numpy scalars on the left hand over to the reflected operator
    __array_priority__ = 1000

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return METHODS["dispatch"](func, args, kwargs or {})

    def __getattr__(self, name: str):
        handler = METHODS.get(name)
        if handler is None or name == "dispatch":
            if name.startswith("__"):
                raise AttributeError(name)
            raise METHODS["unknown"](f".{name}", name)
        return lambda *args, **kwargs: handler(self, *args, **kwargs)

    def __hash__(self):
        raise refuse("a traced value as a key of a dict or a member of a set: its number is not known while the mod is traced",
                     "a look-up in a captured tensor: capture a tensor of the values, t, and write t[i]; torch.isin for a set")

    def __bool__(self):
        raise _branch_refusal()

    def __iter__(self):
        raise refuse("a traced value is iterated over", "an index, such as t[b, 0]; a score is one number")

    def __len__(self):
        raise refuse("len() of a traced value, which is one number", "nothing: it has no length")

    def __int__(self):
        raise _host_refusal("int()", "x.long() or x.to(torch.int64)")

    def __float__(self):
        raise _host_refusal("float() or a function of the math module", "x.float(), or the torch function (torch.exp, ...)")

    def __complex__(self):
        raise _host_refusal("complex()", "real arithmetic")

    def __index__(self):
        raise _host_refusal("use as a Python index (range(), a list or a numpy array)",
                            "a captured tensor: t = torch.as_tensor(values) outside the mod, then t[i]")

    def __array__(self, *args, **kwargs):
        raise _host_refusal("a numpy function", "the torch function of the same name")

    def __round__(self, ndigits=None):
        raise _host_refusal("round()", "torch.round(x)")

    def __floor__(self):
        raise _host_refusal("math.floor()", "torch.floor(x)")

    def __ceil__(self):
        raise _host_refusal("math.ceil()", "torch.ceil(x)")

    def __trunc__(self):
        raise _host_refusal("math.trunc()", "torch.trunc(x)")

    def __setitem__(self, index, value):
        raise refuse("assignment into a value read from a captured tensor (a write to it)",
                     "a new value: x = torch.where(condition, new, x)")

    def __contains__(self, item):
        raise refuse_contains()

    def __divmod__(self, other):
        return METHODS["floor_divide"](self, other), METHODS["remainder"](self, other)

    def __rdivmod__(self, other):
        return METHODS["floor_divide"](other, self), METHODS["remainder"](other, self)

    def __pos__(self):
        return METHODS["positive"](self)

    def __copy__(self):
        return self                  # torch's shares its memory

    def __deepcopy__(self, memo):
        return METHODS["clone"](self)


class Traced(Symbolic):
    """One number. `node` is what it is; in-place methods rebind it, as torch changes the tensor. `number` is the Python
    number that a `torch.tensor(8)` inside the mod was made of, so that it can still serve as a static divisor."""

    __slots__ = ("node", "number", "__weakref__")

    def __init__(self, node: Node, number=None):
        self.node = node
        self.number = number
        refuse_own_gradient(node.dtype in FLOATS)

    @classmethod
    def argument(cls, node: Node) -> "Traced":
        """An argument of the mod, made before any code of the user's runs."""
        made = object.__new__(cls)
        made.node, made.number = node, None
        return made

    shape = torch.Size(())
    ndim = 0
    is_cuda = False
    requires_grad = False
    is_leaf = False
    is_sparse = False
    is_nested = False
    grad_fn = None
    layout = torch.strided
    names = ()

    @property
    def dtype(self) -> torch.dtype:
        return TO_TORCH[self.node.dtype]

    @property
    def device(self) -> torch.device:
        return current_device()

    @property
    def data(self):
        raise refuse(".data of a traced value", "the value itself")

    @property
    def T(self):
        return self

    def __repr__(self) -> str:
        return f"Traced({short(self.node)}, dtype={self.dtype})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)


def short(n: Node, depth: int = 4) -> str:
    """A node as a nested call, cut off at a depth, so that print() in a mod shows something readable."""
    from_attr = "" if n.attr is None else f"{n.op!r}{n.attr}" if n.op.name in ("SLOT", "LOAD") else repr(n.attr)
    if not n.args:
        return from_attr or repr(n.op)
    if depth == 0:
        return "..."
    return f"{from_attr or repr(n.op)}({', '.join(short(a, depth - 1) for a in n.args)})"


def current_device() -> torch.device:
    """What `.device` of an argument says: the device of the first tensor captured so far, as a mod uses it to make constants
    beside its captures."""
    tensors = active().tensors
    return tensors[0].device if tensors else torch.device("cpu")


def _reflected(handler):
    return lambda self, other: handler(other, self)


_BINARY = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "pow": "pow",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift", "matmul": "matmul",
}
_SAME = {**{name: name for name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "abs", "getitem")}, "invert": "bitwise_not"}


def set_operators() -> None:
    """Makes the handlers of operators, which are functions, the methods that Python looks up; once the table is filled."""
    for dunder, name in _BINARY.items():
        setattr(Symbolic, f"__{dunder}__", METHODS[name])
        setattr(Symbolic, f"__r{dunder}__", _reflected(METHODS[name]))
        if dunder != "matmul":
            setattr(Symbolic, f"__i{dunder}__", METHODS[name + "_"])
    for dunder, name in _SAME.items():
        setattr(Symbolic, f"__{dunder}__", METHODS[name])


def _host_refusal(what: str, instead: str):
    return refuse(f"{what} on a traced value: its number is not known while the mod is traced", instead)


def refuse_contains():
    return refuse("`in` on a traced value (it branches on a comparison)",
                  "torch.isin(x, values), with a captured tensor of the values, or comparisons joined by |")


def _source_line() -> str:
    frame = user_frame()
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() if frame is not None else ""


def _branch_refusal():
    """The wording of `bool(traced)`, by the word on the user's line that asked for it."""
    line = _source_line()
    if re.search(r"^(?!.*\bfor\b).*\bin\b", line):
        return refuse_contains()
    for word, what, instead in (
        (r"\bwhile\b", "`while` on a traced value: one kernel runs for all positions, so control flow cannot depend on one",
         "a loop with a fixed number of rounds, and torch.where"),
        (r"\bassert\b", "`assert` on a traced value", "the check outside the mod"),
        (r"\b(min|max)\(", "Python's min()/max() on a traced value (it branches on a comparison)",
         "torch.minimum(a, b) / torch.maximum(a, b), or x.clamp(min=..., max=...)"),
        (r"\bif\b", "`if` on a traced value: one kernel runs for all positions, so control flow cannot branch on one",
         "torch.where(condition, a, b), or join conditions with & and |"),
        (r"\band\b|\bor\b", "`and` / `or` on a traced value (Python turns it into a bool)",
         "& / | with each comparison in parentheses: (a < b) & (c < d)"),
        (r"\bnot\b", "`not` on a traced value (Python turns it into a bool)", "~condition"),
        (r"<.*<|>.*>", "a chained comparison on traced values (it is an `and`)", "(a < b) & (b < c)"),
    ):
        if re.search(word, line):
            return refuse(what, instead)
    return refuse("bool() of a traced value (`if`, `and`, `or`, `not`, all(), any(), min(), max())",
                  "torch.where, & | ~, torch.minimum, torch.maximum")
