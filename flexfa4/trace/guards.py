"""What a trace depended on, as a list of cheap checks.

`Walk(fn)` goes from a callable to everything its code can name: closure cells, defaults, globals, attributes, methods, and so on
recursively. Every value found becomes a guard, a line of `checks.Lines`, and a tensor a place (`TensorPlace`); numbers and
strings by value; containers by length and contents; functions by code. The guards hold no strong reference to tensors or user
objects: each starts again from the callable it is given, through registers, so equal closures made anew pass as well.

`unversioned` names the first thing that cannot be checked (a numpy array, an object with `__getattr__`, ...): such a mod is
traced on every call. Only kinds of objects that are known here are walked; any other makes the mod unversioned.
"""
from __future__ import annotations

import collections
import enum
import functools
import sys
import types
import weakref
from typing import NamedTuple

import numpy as np
import torch

from ..tensors import tensor_state
from .checks import Lines
from .codes import DYNAMIC_FUNCTIONS, NOTHING, reads
from .functions import FUNCTIONS

MISSING = object()
_EXACT = frozenset({type(None), bool, int, float, complex, str, bytes, type(Ellipsis), torch.dtype, torch.device, range, slice,
                    torch.Size, torch.layout, torch.memory_format, torch.finfo, torch.iinfo})
_TRUSTED = ("torch", "math", "cmath", "operator", "builtins", "numpy", "functools", "itertools", "typing", "enum", "collections",
            "dataclasses", "abc")
# Functions of torch, besides those with a row in the table, that give the same for the same arguments. Any other may read a
# state of torch's own: the grad mode, the number of threads, flags of torch.backends, ...
_PURE = frozenset({"full", "zeros", "ones", "is_tensor", "broadcast_shapes", "promote_types", "can_cast", "get_default_dtype"})
_CONTEXTS = frozenset({"no_grad", "inference_mode", "enable_grad", "set_grad_enabled", "Generator"})
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Methods of nn.Module that go through all that it holds.
_LISTINGS = frozenset({"parameters", "named_parameters", "buffers", "named_buffers", "children", "named_children", "modules",
                       "named_modules", "state_dict", "_parameters", "_buffers", "_modules", "extra_repr", "apply"})
# In a class's own dict, but no state that its methods or operators read.
_STRUCTURE = frozenset({"__module__", "__dict__", "__weakref__", "__doc__", "__qualname__", "__annotations__", "__slots__",
                        "__dataclass_fields__", "__dataclass_params__", "__parameters__", "__orig_bases__", "__hash__",
                        "__static_attributes__", "__firstlineno__", "__abstractmethods__", "__match_args__", "__annotate__",
                        "__annotate_func__", "__annotations_cache__", "__replace__", "__getnewargs__", "__subclasshook__"})
# Only called where the class itself is at hand.
_CREATION = frozenset({"__init__", "__new__", "__init_subclass__", "__class_getitem__", "__post_init__"})
# Looked up on the class by Python itself; one that a class comes to have changes what its operators and tests do.
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
SPECIAL = frozenset({"__getattr__", "__getattribute__", "__bool__", "__len__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__",
                     "__ge__", "__contains__", "__iter__", "__getitem__", "__get__", "__format__", "__str__", "__repr__",
                     "__call__", "__torch_function__", *(f"__{side}{name}__" for name in _BINARY for side in ("", "r", "i"))})
_BUILTINS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
             types.GetSetDescriptorType, np.ufunc)
# Homes of classes whose attributes nobody can set, or that hold no state.
_IMMUTABLE = frozenset({"builtins", "enum", "typing", "abc"})
_PURE_HOMES = ("torch.nn.functional", "torch.nn.modules", "torch.nn.attention.flex_attention", "torch.overrides")
MAX_GUARDS = 400
MAX_ITEMS = 64


class Unversioned(Exception):
    """Raised inside a walk at the first value whose changes no guard can see."""


class TensorPlace(NamedTuple):
    """Where a walk met the `number`-th of its tensors (numbered as they were first met), and `kind_of` that. Guards say whether
    one of its dtype and rank is there, and the same in all places of one number."""

    number: int
    kind: tuple

    def takes(self, v) -> bool:
        """Whether another tensor in this place gives the same trace, as far as that reads no values and no layout."""
        return kind_of(v) == self.kind


def kind_of(t: torch.Tensor) -> tuple:
    """All of a tensor that a trace may read without its values being read or the trace being of use for that one call alone."""
    return type(t), t.dtype, t.shape, t.device, t.layout, t.requires_grad


class Walk:
    """The guards of one callable, and the places of its tensors. Where all guards hold and the same tensors are in the same
    places, another call of `trace` would write the same graph with the same literals."""

    def __init__(self, fn):
        self.tensors: dict[int, weakref.ref] = {}      # by id, in the order of their numbers
        self.places: list[TensorPlace] = []
        self.first_places: list[int] = []              # registers, in the order of the numbers
        self._met: list[tuple] = []                    # (register, tensor, its version) of each place
        self.unversioned: str | None = None
        self.attributes: frozenset[str] = frozenset()
        try:
            self._fixpoint(fn)
        except Unversioned as reason:
            self.unversioned = str(reason)
        except RecursionError:
            self.unversioned = "deeply nested state"

    def _fixpoint(self, fn) -> None:
        """Walks until no code found on the way names an attribute that the walk did not know of."""
        for _ in range(6):
            known = self.attributes
            self.guards, self._seen = Lines(), set()
            self.demand = self.guards.demand
            self.tensors, self.places, self.first_places, self._met = {}, [], [], []
            self.visit(fn, 0)
            if self.attributes == known:
                return
        raise Unversioned("too many indirections")

    def shaped(self) -> Lines:
        """Guards by shape and device, where a length was read."""
        lines = Lines()
        for at, t, _ in self._met:
            lines.demand(at, "{v}.shape == {shape} and {v}.device == {device}", shape=t.shape, device=t.device)
        return lines

    def strict(self) -> Lines:
        """Guards by version and data pointer, where values were read on the host; they never hold where it changed since."""
        lines = Lines()
        for at, t, version in self._met:
            state = tensor_state(t) if version is not None and t._version == version else None
            lines.demand(at, "{state} is not None and {now}({v}) == {state} and {v}.requires_grad is {trains}",
                         state=state, now=tensor_state, trains=t.requires_grad)
        return lines

    def take(self, at: int, template: str, **objects) -> int:
        """A register for what `template` reads of register `at`; see `checks.Lines`."""
        if len(self.guards.lines) > MAX_GUARDS:
            raise Unversioned("more state than is worth checking")
        return self.guards.take(at, template, **objects)

    def _own(self, at: int, name: str) -> int:
        """A register for the value of `name` in the dict of the object in register `at`."""
        return self.take(at, "{v}.__dict__.get({name}, {missing})", name=name, missing=MISSING)

    def _absent(self, names, at: int, namespace: str) -> None:
        """None of `names` is in the dict that `namespace` reads of register `at`: there it would hide what was found elsewhere
        (a global hides a builtin, an instance's attribute that of its class)."""
        names = frozenset(names)
        if names:
            self.demand(at, f"not (d := {namespace}) or d.keys().isdisjoint({{names}})", names=names)

    def _unhidden(self, cls: type, at: int) -> None:
        """No class of the class in register `at` has come to have an attribute that some code names: it would hide one found
        further up, or the default of a getattr."""
        wanted = []
        for i, base in enumerate(cls.__mro__):
            if not _trusted(base.__module__) and (names := (self.attributes | SPECIAL) - base.__dict__.keys()):
                wanted.append((i, names))
        count, wanted = len(cls.__mro__), tuple(wanted)
        if wanted:
            self.demand(at, "{unhidden}({v}.__mro__, {count}, {wanted})", unhidden=_none_in, count=count, wanted=wanted)

    def visit(self, value, at: int) -> None:
        """Adds the guards of `value`, which is in register `at`."""
        cls = type(value)
        if cls is torch.Tensor:
            self._tensor(value, at)
        elif cls is types.FunctionType:
            self._function(value, at)
        elif cls in _EXACT or isinstance(value, np.generic):
            self._constant(value, at)
        elif isinstance(value, enum.Enum):
            self._member(value, at)
        elif isinstance(value, torch.Tensor):
            self._tensor(value, at)
        elif isinstance(value, types.MethodType):
            self._class(value, at)
            self.visit(value.__func__, self.take(at, "{v}.__func__"))
            self.visit(value.__self__, self.take(at, "{v}.__self__"))
        elif cls is functools.partial:
            self._class(value, at)
            for name in ("func", "args", "keywords"):
                self.visit(getattr(value, name), self.take(at, f"{{v}}.{name}"))
        elif isinstance(value, (tuple, list)):
            self._sequence(value, at)
        elif cls in (dict, types.MappingProxyType, collections.OrderedDict):
            self._mapping(value, at)
        elif isinstance(value, types.ModuleType):
            self._module(value, at)
        elif isinstance(value, _BUILTINS):
            self._builtin(value, at)
        elif isinstance(value, type):
            self._type(value, at)
        else:
            self._object(value, at)

    def _constant(self, value, at: int) -> None:
        if isinstance(value, (float, complex, np.generic, slice)):
            self.demand(at, "{v} is {value} or type({v}) is {cls} and repr({v}) == {shown}", value=value, cls=type(value),
                        shown=repr(value))
        else:
            self.demand(at, "{v} is {value} or type({v}) is {cls} and {v} == {value}", value=value, cls=type(value))

    def _class(self, value, at: int) -> None:
        self.demand(at, "type({v}) is {cls}", cls=type(value))

    def _once(self, value) -> bool:
        """True the first time this object is met; its contents are guarded once, its place every time."""
        if id(value) in self._seen:
            return False
        self._seen.add(id(value))
        return True

    def _identity(self, value, at: int) -> None:
        try:
            ref = weakref.ref(value)
        except TypeError:
            raise Unversioned(f"a {type(value).__name__}") from None
        self.demand(at, "{v} is {ref}()", ref=ref)

    def _tensor(self, t: torch.Tensor, at: int) -> None:
        if t.is_nested:
            raise Unversioned("a nested tensor")
        self.tensors.setdefault(id(t), weakref.ref(t))
        number = list(self.tensors).index(id(t))
        self.places.append(TensorPlace(number, kind_of(t)))
        self.demand(at, "{v}.dtype is {dtype} and {v}.dim() == {rank}", dtype=t.dtype, rank=t.dim())
        if number == len(self.first_places):
            self.first_places.append(at)
        else:
            self.demand(at, f"{{v}} is r{self.first_places[number]}")
        if not _trusted(type(t).__module__):
            raise Unversioned(f"a {type(t).__name__}, a subclass of torch.Tensor")
        if self.attributes:                      # what the user hung on the tensor
            own = t.__dict__
            for name in sorted(self.attributes & own.keys()):
                self.visit(own[name], self._own(at, name))
            self._absent(self.attributes - own.keys(), at, "{v}.__dict__")
        self._met.append((at, t, None if t.is_inference() else t._version))

    def _function(self, fn: types.FunctionType, at: int) -> None:
        code = fn.__code__
        code_ref = weakref.ref(code)       # weak: the cache forgets its entries when a code object dies
        plain, seen = fn.__defaults__ is None and fn.__kwdefaults__ is None, not self._once(fn)
        cells = () if seen else fn.__closure__ or ()
        try:
            contents = [cell.cell_contents for cell in cells]
        except ValueError:
            raise Unversioned("an empty closure cell") from None
        self.demand(at, "type({v}) is {function} and {v}.__code__ is {code}()", function=types.FunctionType, code=code_ref)
        if plain:
            self.demand(at, "{v}.__defaults__ is None and {v}.__kwdefaults__ is None")
        if seen:
            self._identity(fn, at)
            return
        places = [self.take(at, f"{{v}}.__closure__[{i}].cell_contents") for i in range(len(cells))]
        for attribute, value in () if plain else (("__defaults__", fn.__defaults__), ("__kwdefaults__", fn.__kwdefaults__)):
            self.visit(value, self.take(at, f"{{v}}.{attribute}"))
        for value, place in zip(contents, places):
            self.visit(value, place)
        if self.attributes:
            for name in sorted(self.attributes & fn.__dict__.keys()):
                self.visit(fn.__dict__[name], self._own(at, name))
        if _trusted(home_of(fn)):
            return self._table_or_pure(fn)
        if self.attributes:
            self._absent(self.attributes - fn.__dict__.keys(), at, "{v}.__dict__")
        found = reads(code)
        if found is NOTHING:
            return
        if found.dynamic or any(not _trusted(name) for name in found.imports):
            raise Unversioned(f"state that {fn.__name__} reads by computed names or imports")
        self.attributes |= found.attributes
        for name in found.imports:
            self._members(sys.modules.get(name, torch))
        for name in found.names:
            if name in fn.__globals__:
                found_at = self.take(at, "{v}.__globals__.get({name}, {missing})", name=name, missing=MISSING)
                self.visit(fn.__globals__[name], found_at)
        self._absent(set(found.names) - fn.__globals__.keys(), at, "{v}.__globals__")

    def _sequence(self, items, at: int) -> None:
        length = len(items)
        if length > MAX_ITEMS:
            raise Unversioned(f"a {type(items).__name__} of {length} items")
        cls = type(items)
        self.demand(at, "type({v}) is {cls} and len({v}) == {length}", cls=cls, length=length)
        if not self._once(items):
            raise Unversioned(f"a {cls.__name__} reached twice")
        if cls not in (tuple, list) and not _trusted(cls.__module__):
            if not hasattr(cls, "_fields") or hasattr(items, "__dict__"):
                raise Unversioned(f"a {cls.__name__}, a subclass of {cls.__base__.__name__}")
            self._type(cls, self.take(at, "type({v})"))
        for i, item in enumerate(items):
            self.visit(item, self.take(at, f"{{v}}[{i}]"))

    def _mapping(self, mapping, at: int) -> None:
        if len(mapping) > MAX_ITEMS or not all(type(k) in (str, int) for k in mapping):
            raise Unversioned(f"a dict of {len(mapping)} items")
        keys = tuple(mapping)                    # their order too: a mod may go through them
        self._class(mapping, at)
        self.demand(at, "tuple({v}) == {keys}", keys=keys)
        if not self._once(mapping):
            raise Unversioned("a dict reached twice")
        for key, item in mapping.items():
            self.visit(item, self.take(at, "{v}.get({key}, {missing})", key=key, missing=MISSING))

    def _module(self, module: types.ModuleType, at: int) -> None:
        self._identity(module, at)
        if _trusted(module.__name__):
            return self._members(module)
        if not self._once(module):
            return
        if type(module) is not types.ModuleType or "__getattr__" in module.__dict__:
            raise Unversioned(f"the module {module.__name__}, which computes its attributes")
        self._absent((self.attributes | {"__getattr__"}) - module.__dict__.keys(), at, "{v}.__dict__")
        for name in sorted(self.attributes & module.__dict__.keys()):
            self.visit(module.__dict__[name], self._own(at, name))

    def _members(self, module: types.ModuleType) -> None:
        """A mod that may read more of torch's or numpy's modules than functions of their arguments is not versioned."""
        root = module.__name__.split(".", 1)[0]
        if root not in ("torch", "numpy") or not self._once(module):
            return
        for name in sorted(self.attributes & module.__dict__.keys()):
            value = module.__dict__[name]
            if name in _CONTEXTS or name == "backends":
                raise Unversioned(f"{module.__name__}.{name}")
            if isinstance(value, types.ModuleType):
                self._members(value)
            elif root == "torch" and not isinstance(value, type):
                self._table_or_pure(value)

    def _table_or_pure(self, value) -> None:
        """A function of torch must be one that is traced, or known to be a function of its arguments."""
        home = getattr(value, "__module__", None) or ""
        if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)) and not home.startswith(_PURE_HOMES):
            name = value.__name__
            if home_of(value).startswith("torch") and value not in FUNCTIONS and name not in _PURE:
                raise Unversioned(f"torch's {name}")

    def _builtin(self, value, at: int) -> None:
        if value in DYNAMIC_FUNCTIONS or isinstance(value, types.MethodWrapperType):
            raise Unversioned(f"the built-in {value.__name__}")
        self._table_or_pure(value)
        home = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", None)
        owner = getattr(value, "__self__", None)
        if not _trusted(home) and not (isinstance(owner, types.ModuleType) and _trusted(owner.__name__)) and (
                owner is not None or home is not None):
            raise Unversioned(f"the built-in {getattr(value, '__qualname__', value)!s}")
        if isinstance(value, (types.BuiltinFunctionType, np.ufunc)):
            return self._identity(value, at)
        self.demand(at, "{v} is {value}", value=value)      # part of a built-in class, without weak references

    def _type(self, cls: type, at: int) -> None:
        self._identity(cls, at)
        if _trusted(cls.__module__):
            if cls.__name__ in _CONTEXTS:
                raise Unversioned(f"torch.{cls.__name__}")
            return
        if not self._once(cls):
            return
        _known_metaclass(cls)
        self._unhidden(cls, at)
        for name in sorted(self.attributes | _specials(cls)):
            raw = _class_attribute(cls, name)
            if raw is not MISSING:
                self._class_value(raw, name, at)

    def _member(self, value: enum.Enum, at: int) -> None:
        """A member of an enumeration: itself, its class's methods, and what its class hung on it."""
        self.demand(at, "{v} is {value}", value=value)
        if not self._once(value):
            return
        self._type(type(value), self.take(at, "type({v})"))
        for name in sorted((self.attributes | {"_value_"}) & value.__dict__.keys()):
            self.visit(value.__dict__[name], self._own(at, name))

    def _class_value(self, raw, name: str, at: int) -> None:
        """An attribute found on a class, read again through register `at` (the class)."""
        if isinstance(raw, (staticmethod, classmethod)):
            self.visit(raw.__func__, self._of_class(at, name, ".__func__"))
        elif isinstance(raw, property):
            if not isinstance(raw.fget, types.FunctionType):
                raise Unversioned(f"the property {name}")
            self.visit(raw.fget, self._of_class(at, name, ".fget"))
        elif isinstance(raw, types.MemberDescriptorType):
            if name not in _slots(raw.__objclass__):
                raise Unversioned(f"the built-in attribute {name}")
        elif type(raw).__name__ != "_tuplegetter":       # a field of a named tuple, which is guarded as an item
            self.visit(raw, self._of_class(at, name))

    def _of_class(self, at: int, name: str, part: str = "") -> int:
        """A register for what `_class_attribute` finds on the class in register `at`, or for a part of it."""
        return self.take(at, f"{{attribute}}({{v}}, {{name}}){part}", attribute=_class_attribute, name=name)

    def _object(self, value, at: int) -> None:
        """An instance: its class's methods and the attributes that some code names."""
        cls = type(value)
        module = isinstance(value, torch.nn.Module)
        self._class(value, at)
        if _trusted(cls.__module__) and not module:
            if cls.__module__ == "torch._ops":
                return self._identity(value, at)
            raise Unversioned(f"a {cls.__name__}")
        if not self._once(value):
            return self._identity(value, at)
        _known_metaclass(cls)
        home = self.take(at, "type({v})")
        self._methods(cls, home, module)
        self._unhidden(cls, home)
        if module:
            self._submodule(value, at)
        own = getattr(value, "__dict__", {})
        names = self.attributes if not module else self.attributes | {"training", "forward"}
        if module and _trusted(cls.__module__):          # torch's own: its code is not read, so all its settings count
            names = names | {n for n in own if not n.startswith("_")}
        slots = {s for c in cls.__mro__ for s in _slots(c)}
        if hasattr(value, "__dict__"):
            self._absent(names - own.keys(), at, "{v}.__dict__")
        for name in sorted(names & (own.keys() | slots)):
            item = getattr(value, name, MISSING)
            found = self.take(at, "getattr({v}, {name}, {missing})", name=name, missing=MISSING)
            if item is not MISSING:
                self.visit(item, found)
            else:                                    # a slot that is not filled
                self.demand(found, "{v} is {missing}", missing=MISSING)

    def _methods(self, cls: type, home: int, module: bool) -> None:
        for base in cls.__mro__:
            if base in (object, types.SimpleNamespace) or (_trusted(base.__module__) and base.__module__ != "builtins"):
                continue
            if not _of_python(base):
                raise Unversioned(f"a {cls.__name__}, which is a {base.__name__}")
            for special in ("__getattr__", "__getattribute__"):
                if special in base.__dict__:
                    raise Unversioned(f"an object of {cls.__name__}, which has {special}")
            if base.__setattr__ is not object.__setattr__ and not module and "__setattr__" in base.__dict__ and not _frozen(base):
                raise Unversioned(f"an object of {cls.__name__}, which has __setattr__")
        for base in cls.__mro__:
            if any(_written(base, name) for name in base.__dict__):
                self.attributes |= base.__dataclass_fields__.keys()
        specials = _specials(cls) if "__class__" in self.attributes else _specials(cls) - _CREATION
        for name in sorted(self.attributes | specials | ({"forward"} if module else set())):
            raw = _class_attribute(cls, name)
            if raw is not MISSING and (module or not isinstance(raw, _BUILTINS)):
                self._class_value(raw, name, home)

    def _submodule(self, value: torch.nn.Module, at: int) -> None:
        """Parameters, buffers and child modules that some code names; all of them for torch's own module classes."""
        if any(value.__dict__.get(h) for h in _HOOKS):
            raise Unversioned("an nn.Module with hooks")
        self.demand(at, "not any(map({v}.__dict__.get, {hooks}))", hooks=_HOOKS)
        everything = _trusted(type(value).__module__) or not self.attributes.isdisjoint(_LISTINGS)
        for group in ("_parameters", "_buffers", "_modules"):
            self._absent(self.attributes - value.__dict__[group].keys(), at, f"{{v}}.__dict__[{group!r}]")
            if everything:
                keys = tuple(value.__dict__[group])
                self.demand(at, "tuple({v}.__dict__[{group}]) == {keys}", group=group, keys=keys)
            for name, item in value.__dict__[group].items():
                if everything or name in self.attributes:
                    found = self.take(at, "{v}.__dict__[{group}].get({name}, {missing})", group=group, name=name, missing=MISSING)
                    self.visit(item, found)


def home_of(fn) -> str:
    """The module whose globals a function reads: functools.wraps copies `__module__`, not these."""
    if isinstance(fn, types.FunctionType):
        home = fn.__globals__.get("__name__") or ""
        return "collections" if home.startswith("namedtuple_") else home       # the __new__ that collections writes
    home = getattr(fn, "__module__", None)
    return home if isinstance(home, str) else ""       # of the class of Cython's functions it is the slot of its instances


def _known_metaclass(cls: type) -> None:
    if not _trusted(type(cls).__module__):
        raise Unversioned(f"the class {cls.__name__} of the metaclass {type(cls).__name__}")


def _of_python(cls: type) -> bool:
    """True for a class that a `class` statement made, whose state is in dicts and slots."""
    return bool(cls.__flags__ & 1 << 9) and not any(             # Py_TPFLAGS_HEAPTYPE
        isinstance(v, (types.MethodDescriptorType, types.BuiltinFunctionType)) and getattr(v, "__objclass__", cls) is cls
        for v in cls.__dict__.values())


def _specials(cls: type) -> set[str]:
    """The special methods that a class has from its user's code."""
    return {name for base in cls.__mro__ if not _trusted(base.__module__) and base is not types.SimpleNamespace
            for name in base.__dict__ if name.startswith("__") and name.endswith("__")
            and not _written(base, name)} - _STRUCTURE


def _written(cls: type, name: str) -> bool:
    """True where `dataclasses` wrote a special method of the class that reads the fields and nothing else."""
    method = cls.__dict__.get(name)
    if "__dataclass_fields__" not in cls.__dict__ or name in _CREATION or not isinstance(method, types.FunctionType):
        return False
    return method.__code__.co_filename == "<string>" or home_of(method) in ("dataclasses", "reprlib")


def _frozen(cls: type) -> bool:
    parameters = getattr(cls, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def _slots(cls: type):
    found = cls.__dict__.get("__slots__", ())
    return (found,) if isinstance(found, str) else found


def _class_attribute(cls: type, name: str):
    for base in cls.__mro__:
        if name in base.__dict__ and base is not torch.nn.Module and base.__module__.split(".", 1)[0] not in _IMMUTABLE:
            return base.__dict__[name]
    return MISSING


def _trusted(module: object) -> bool:
    return isinstance(module, str) and module.split(".", 1)[0] in _TRUSTED


def _none_in(mro: tuple, count: int, wanted: tuple) -> bool:
    """Whether there are `count` classes, and those at the wanted places have none of the names there."""
    return len(mro) == count and all(mro[i].__dict__.keys().isdisjoint(names) for i, names in wanted)
