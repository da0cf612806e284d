"""What a mod reads by roundabout ways: another trace must be made when it has changed, or the mod traced at each call."""
import collections
import ctypes
import dataclasses
import enum
import functools
import math
import operator
import sys
import types
import weakref
from typing import NamedTuple

import pytest
import torch

from flexfa4.trace import bind

GAIN = 2.5
get, every_global = getattr, globals
STATE = types.SimpleNamespace()          # what each case changes, beside the globals of this file


def gain_of(mod):
    """The literals of a mod and the number of its captured tensors, as `bind` finds them now."""
    found = bind(mod, "score")
    return found.literals, found.graph


class Config:
    def __init__(self, alpha):
        self.alpha = alpha


SPECIALS = {
    "__truediv__": lambda o: o / 2, "__gt__": lambda o: o > 1, "__ge__": lambda o: o >= 1, "__matmul__": lambda o: o @ 1,
    "__neg__": lambda o: -o, "__abs__": abs, "__round__": round, "__next__": next, "__enter__": lambda o: entered(o),
    "__str__": lambda o: float(str(o)), "__format__": lambda o: float(f"{o:3}"), "__rpow__": lambda o: 2 ** o,
    "__pos__": lambda o: +o, "__missing__": lambda o: o.__missing__(1), "__reversed__": reversed,
}


def entered(o):
    with o as value:
        return value


def object_with(name):
    def answer(self, *others):
        return str(GAIN) if name in ("__str__", "__format__") else GAIN
    return type("Answers", (), {name: answer, "__exit__": lambda self, *error: None})()


@pytest.mark.parametrize("name", SPECIALS)
def test_special_methods_that_read_a_global(name, monkeypatch):
    thing, use = object_with(name), SPECIALS[name]

    def mod(score, b, h, q, k):
        return score * use(thing)

    follows(mod, lambda: monkeypatch.setitem(globals(), "GAIN", 3.5))


class Described:
    def __get__(self, instance, owner):
        return GAIN


class HasDescriptor:
    gain = Described()


class Meta(type):
    @property
    def gain(cls):
        return GAIN


class OfMeta(metaclass=Meta):
    pass


class Pair(NamedTuple):
    one: float

    def gain(self):
        return self.one * GAIN


class Numbers(list):
    pass


class Whole(int):
    def gain(self):
        return int(self) * GAIN


class Real(float):
    pass


class Mode(enum.Enum):
    NEAR = 1

    def gain(self):
        return self.value * GAIN


class Base(torch.nn.Module):
    def forward(self, score, b, h, q, k):
        return score * 2.5


def borrowed(reference):
    def wrap(function):
        return functools.wraps(reference)(function)
    return wrap


@borrowed(math.exp)
def looks_like_math(x):
    return x * GAIN


@borrowed(torch.nn.functional.relu)
def looks_like_torch(x):
    return x * GAIN


class Level(enum.IntEnum):
    HIGH = 3

    @property
    def alpha(self):
        return self.value * 1.5


@dataclasses.dataclass
class Fields:
    alpha: float
    others: list = dataclasses.field(default_factory=list)


class Held(torch.nn.Module):
    def __init__(self, read):
        super().__init__()
        self.read, self.weight = read, torch.nn.Parameter(torch.zeros(3))

    def forward(self, score, b, h, q, k):
        return score * (self.read(self) + 1.5)


LISTINGS = {
    "parameters": lambda m: len(list(m.parameters())), "named_parameters": lambda m: len(dict(m.named_parameters())),
    "state_dict": lambda m: len(m.state_dict()),
}


@pytest.mark.parametrize("name", LISTINGS)
def test_what_a_module_holds(name):
    module = Held(LISTINGS[name])
    follows(module, lambda: setattr(module, "more", torch.nn.Parameter(torch.zeros(3))))


def test_the_length_of_a_list_of_parameters():
    weights = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(3))])
    follows(lambda score, b, h, q, k: score * (len(weights) + 1.5), lambda: weights.append(torch.nn.Parameter(torch.zeros(3))))


@pytest.mark.parametrize("read", [lambda f: f.alpha, lambda f: float(repr(f).split("=")[1].split(",")[0]),
                                  lambda f: dataclasses.asdict(f)["alpha"], lambda f: 2.5 if f == Fields(2.5) else 3.5])
def test_fields_of_a_dataclass(read):
    fields = Fields(2.5)
    follows(lambda score, b, h, q, k: score * read(fields), lambda: setattr(fields, "alpha", 3.5))


def follows(mod, change):
    """`change` makes another number of what the mod reads; the trace of before must not be handed out again."""
    before = gain_of(mod)
    assert gain_of(mod) == before
    change()
    assert gain_of(mod) != before


def made(value):
    """(an object whose `alpha` is 2.5, what makes it 3.5)"""
    thing = Config(value)
    return thing, lambda: setattr(thing, "alpha", 3.5)


def case_class_pattern(cfg):
    match cfg:
        case Config(alpha=found):
            return found


COMPUTED = {
    "computed name": lambda c: getattr(c, "".join(("al", "pha"))),
    "name beside a string": lambda c: getattr(c, "al" + "pha", "nothing"),
    "alias of getattr": lambda c: get(c, "alpha"),
    "attrgetter": lambda c: operator.attrgetter("alpha")(c),
    "functools.reduce": lambda c: functools.reduce(getattr, ("alpha",), c),
    "object.__getattribute__": lambda c: object.__getattribute__(c, "alpha"),
    "class pattern": case_class_pattern,
    "vars": lambda c: vars(c)["alpha"],
    "weak reference": lambda c: weakref.ref(c)().alpha,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_attributes_by_computed_names(name):
    cfg, change = made(2.5)
    read = COMPUTED[name]

    def mod(score, b, h, q, k):
        return score * read(cfg)

    follows(mod, change)


def test_a_weak_reference_that_is_captured():
    cfg, change = made(2.5)
    ref = weakref.ref(cfg)
    follows(lambda score, b, h, q, k: score * ref().alpha, change)


def test_globals_by_an_alias(monkeypatch):
    follows(lambda score, b, h, q, k: score * every_global()["GAIN"], lambda: monkeypatch.setitem(globals(), "GAIN", 3.5))


@pytest.mark.parametrize("read", [
    lambda: HasDescriptor().gain, lambda: OfMeta.gain, lambda: Pair(2.0).gain(), lambda: Mode.NEAR.gain(),
    lambda: looks_like_math(2.0), lambda: looks_like_torch(2.0)],
    ids=["descriptor", "metaclass", "named tuple made inside", "enumeration", "wraps math", "wraps torch"])
def test_a_global_behind_a_class_or_a_borrowed_name(read, monkeypatch):
    follows(lambda score, b, h, q, k: score * read(), lambda: monkeypatch.setitem(globals(), "GAIN", 3.5))


@pytest.mark.parametrize("thing", [HasDescriptor(), Whole(3), Pair(2.0), Mode.NEAR], ids=lambda t: type(t).__name__)
def test_a_global_behind_a_captured_object(thing, monkeypatch):
    read = (lambda t: t.gain) if isinstance(thing, HasDescriptor) else (lambda t: t.gain())
    follows(lambda score, b, h, q, k: score * read(thing), lambda: monkeypatch.setitem(globals(), "GAIN", 3.5))


@pytest.mark.parametrize("thing", [Numbers([1.0]), Real(1.0)], ids=lambda t: type(t).__name__)
def test_attributes_of_instances_of_builtin_subclasses(thing):
    thing.alpha = 2.5
    follows(lambda score, b, h, q, k: score * thing.alpha, lambda: setattr(thing, "alpha", 3.5))


def test_a_ctypes_value():
    number = ctypes.c_double(2.5)
    follows(lambda score, b, h, q, k: score * number.value, lambda: setattr(number, "value", 3.5))


def test_a_class_that_a_mod_makes_instances_of(monkeypatch):
    class Holder:
        def __init__(self):
            self.alpha = GAIN

    follows(lambda score, b, h, q, k: score * Holder().alpha, lambda: monkeypatch.setitem(globals(), "GAIN", 3.5))


def test_an_operator_that_a_class_comes_to_have():
    class Thing:
        pass

    thing = Thing()
    follows(lambda score, b, h, q, k: score * (2.5 if thing else 3.5), lambda: setattr(Thing, "__bool__", lambda self: False))


def test_the_order_of_a_dict():
    table = {"a": 2.5, "b": 3.5}
    mod = lambda score, b, h, q, k: score * list(table.values())[0]  # noqa: E731
    follows(mod, lambda: table.update(a=table.pop("a")))
    ordered = collections.OrderedDict(a=2.5, b=3.5)
    follows(lambda score, b, h, q, k: score * next(iter(ordered.values())), lambda: ordered.move_to_end("a"))


def test_a_module_that_computes_its_attributes(monkeypatch):
    module = types.ModuleType("computes")
    module.__getattr__ = lambda name: GAIN
    monkeypatch.setitem(sys.modules, "computes", module)
    follows(lambda score, b, h, q, k: score * module.alpha, lambda: monkeypatch.setitem(globals(), "GAIN", 3.5))


def test_states_of_torch():
    follows(lambda score, b, h, q, k: score * (2.5 if torch.is_grad_enabled() else 3.5),
            lambda: torch.set_grad_enabled(False))
    torch.set_grad_enabled(True)
    threads = torch.get_num_threads()
    follows(lambda score, b, h, q, k: score * (torch.get_num_threads() + 2), lambda: torch.set_num_threads(threads + 1))
    torch.set_num_threads(threads)
    flag = torch.backends.cudnn.benchmark
    follows(lambda score, b, h, q, k: score * (2.5 if torch.backends.cudnn.benchmark else 3.5),
            lambda: setattr(torch.backends.cudnn, "benchmark", not flag))
    torch.backends.cudnn.benchmark = flag


def hook_added(module):
    module.register_forward_hook(lambda module, args, result: result * 3.5)


def forward_replaced(module):
    module.forward = lambda score, b, h, q, k: score * 3.5


def pre_hook_added(module):
    module.register_forward_pre_hook(lambda module, args: (args[0] * 3.5, *args[1:]))


@pytest.mark.parametrize("change", [hook_added, forward_replaced, pre_hook_added])
@pytest.mark.parametrize("nested", [False, True])
def test_modules_that_change_after_a_trace(change, nested):
    inner = Base()
    assert bind(inner, "score") is bind(inner, "score")
    follows((lambda score, b, h, q, k: inner(score, b, h, q, k)) if nested else inner, lambda: change(inner))


def test_settings_of_torchs_own_modules():
    act = torch.nn.LeakyReLU(0.25)
    follows(lambda score, b, h, q, k: act(score), lambda: setattr(act, "negative_slope", 0.125))


PROPERTIES = {
    "requires_grad": (lambda t: t.requires_grad, lambda t: t.requires_grad_()),
    "grad": (lambda t: t.grad is None, lambda t: setattr(t, "grad", torch.zeros(3))),
    "stride": (lambda t: t.stride(0) == 1, lambda t: t.set_(torch.zeros(6)[::2])),
    "storage_offset": (lambda t: t.storage_offset() == 0, lambda t: t.set_(torch.zeros(6)[3:])),
    "_version": (lambda t: t._version == 0, lambda t: t.add_(1)),
    "is_contiguous": (lambda t: t.is_contiguous(), lambda t: t.set_(torch.zeros(6)[::2])),
    "format": (lambda t: "0., 0." in f"{t}", lambda t: t.add_(1)),
    "repr": (lambda t: "0., 0." in repr(t), lambda t: t.add_(1)),
    "str": (lambda t: "0., 0." in str(t), lambda t: t.add_(1)),
    "own attribute": (lambda t: t.near, lambda t: setattr(t, "near", False)),
    "attribute that comes": (lambda t: hasattr(t, "far"), lambda t: setattr(t, "far", True)),
    "nbytes": (lambda t: t.nbytes == 12, lambda t: t.resize_(5)),
}


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_of_captured_tensors(name, kind):
    t = torch.zeros(3)
    t = t if kind is torch.Tensor else torch.nn.Parameter(t, requires_grad=False)
    t.near = True
    read, change = PROPERTIES[name]
    follows(lambda score, b, h, q, k: score * (2.5 if read(t) else 3.5) + t[h], lambda: change(t))


def test_versions_are_still_told_for_plain_ways():
    """None of this costs a mod its place in the cache that reads by plain names."""
    cfg, table = Config(2.5), {"a": 2.5}
    weight = torch.nn.Parameter(torch.zeros(3))

    def mod(score, b, h, q, k):
        return score * getattr(cfg, "alpha") * getattr(cfg, "beta", 1.5) * table["a"] * Mode.NEAR.value + weight[h] * math.pi

    assert bind(mod, "score") is bind(mod, "score")
    for kept in (Fields(2.5), types.SimpleNamespace(alpha=2.5), Level.HIGH):
        plain = lambda score, b, h, q, k: score * kept.alpha  # noqa: B023, E731
        assert bind(plain, "score") is bind(plain, "score"), kept
    norm = torch.nn.Sequential(torch.nn.LeakyReLU(0.25), torch.nn.Tanh())
    over = lambda score, b, h, q, k: norm(score) + Pair(2.0).one  # noqa: E731
    assert bind(over, "score") is bind(over, "score")
