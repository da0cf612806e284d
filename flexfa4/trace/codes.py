"""What a code object can read besides its arguments: global names, attribute names, modules.

From the bytecode, once a code object.
"""
from __future__ import annotations

import builtins
import dis
import types
import weakref
from dataclasses import dataclass

import torch

# Built-in functions that read state which no walk over closures and globals can see.
_DYNAMIC = frozenset({"vars", "globals", "locals", "eval", "exec", "compile", "__import__", "open", "input", "id", "setattr",
                      "delattr", "hash", "dir", "breakpoint", "help"})
# They are known to read one attribute where it is written as a string; under another name they are dynamic.
_NAMED_READS = frozenset({"getattr", "hasattr"})
# The functions themselves: whoever reaches one by another name than its own calls it unseen.
DYNAMIC_FUNCTIONS = tuple(getattr(builtins, n) for n in sorted(_DYNAMIC | _NAMED_READS) if hasattr(builtins, n))
_DYNAMIC_ATTRIBUTES = _DYNAMIC - {"id", "hash", "compile", "open", "input", "help"} | _NAMED_READS | frozenset({
    "__dict__", "__getattribute__", "__getattr__", "__globals__", "__closure__", "__builtins__", "__code__", "__subclasses__",
    "cell_contents", "attrgetter", "methodcaller", "getattr_static", "getmembers", "_getframe", "f_globals", "f_locals"})
_ATTRIBUTE_OPS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"})
_GLOBAL_OPS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"})
_CALLS = frozenset({"CALL", "PRECALL", "CALL_FUNCTION"})
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_MATCH_CLASS = dis.opmap.get("MATCH_CLASS", -1)            # since Python 3.10

# Values that run no code of their own when a mod uses them, and hold no array.
_PLAIN = (torch.Tensor, bool, int, float, type(None), torch.dtype)

_known: dict[int, tuple[weakref.ref, "Reads"]] = {}


@dataclass(frozen=True)
class Reads:
    """`dynamic`: the code may read state by computed names, so nothing can be concluded from names."""

    names: tuple[str, ...]
    attributes: frozenset[str]
    imports: frozenset[str]
    dynamic: bool


NOTHING = Reads((), frozenset(), frozenset(), False)


def reads(code: types.CodeType) -> Reads:
    """The reads of a code object and of the functions and comprehensions nested in it."""
    # Globals, attributes and modules are all named in co_names, which is empty for most lambdas: reading instructions is slow.
    unnamed = not code.co_names and _MATCH_CLASS not in code.co_code[::2]
    if unnamed and types.CodeType not in map(type, code.co_consts):
        return NOTHING
    found = _known.get(id(code))
    if found is not None and found[0]() is code:
        return found[1]
    result = _analyse(code, unnamed)
    key = id(code)
    _known[key] = (weakref.ref(code, lambda _, key=key, known=_known: known.pop(key, None)), result)
    return result


def is_empty(cell: types.CellType) -> bool:
    """True for a variable that a function closes over and that has no value yet."""
    try:
        cell.cell_contents
    except ValueError:
        return True
    return False


def of_plain_values(fn) -> bool:
    """Whether a callable is a function that names no globals or modules and closes over plain values alone, as most masks are:
    nothing else is in its reach."""
    if type(fn) is not types.FunctionType:
        return False
    found = reads(fn.__code__)
    if found is not NOTHING and (found.names or found.imports or found.dynamic):
        return False
    cells = [None if is_empty(c) else c.cell_contents for c in fn.__closure__ or ()]
    return all([isinstance(x, _PLAIN) for x in (*cells, *(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())])


def _analyse(code: types.CodeType, unnamed: bool) -> Reads:
    names: dict[str, None] = {}
    attributes, imports, dynamic = set(), set(), False
    instructions = [] if unnamed else list(dis.get_instructions(code))
    for i, instruction in enumerate(instructions):
        if instruction.opname in _GLOBAL_OPS:
            names[instruction.argval] = None
            if instruction.argval in _NAMED_READS:
                attribute = _attribute_of_call(instructions, i)
                dynamic |= attribute is None
                attributes.add(attribute)
        elif instruction.opname in _ATTRIBUTE_OPS:
            attributes.add(instruction.argval)
        elif instruction.opname == "IMPORT_NAME":
            imports.add(instruction.argval)
        elif instruction.opname == "MATCH_CLASS":         # case C(alpha=a): the names are constants; by position they are not
            dynamic |= instruction.arg != 0
            attributes.update(n for c in code.co_consts if isinstance(c, tuple) for n in c if isinstance(n, str))
    attributes.discard(None)
    if "type" in names:                                   # type(x) is x.__class__
        attributes.add("__class__")
    dynamic |= bool(_DYNAMIC & names.keys()) or bool(_DYNAMIC_ATTRIBUTES & (attributes | names.keys() - _NAMED_READS))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = reads(constant)
            names.update(dict.fromkeys(inner.names))
            attributes |= inner.attributes
            imports |= inner.imports
            dynamic |= inner.dynamic
    return Reads(tuple(names), frozenset(attributes), frozenset(imports), dynamic)


def _attribute_of_call(instructions: list[dis.Instruction], at: int) -> str | None:
    """The attribute that `getattr(x, "name")` or `getattr(x, "name", default)` reads, whose `getattr` is loaded at index `at`:
    the string where the second argument is one as it stands, else None."""
    base = depth = 0                       # the stack's depth, counted from where the function lies on it
    before = []
    for instruction in instructions[at + 1:]:
        if instruction.opcode in _JUMPS:
            return None
        before.append((depth, instruction))
        depth += dis.stack_effect(instruction.opcode, instruction.arg)
        if depth <= base:
            if not any(d > base for d, _ in before):
                return None                # it was stored or handed on, not called
            break
    else:
        return None
    if instruction.opname not in _CALLS or instruction.arg not in (2, 3):
        return None
    starts = [i for i, (d, _) in enumerate(before) if d == base + 1]
    if not starts or before[starts[-1]][1].opname != "LOAD_CONST":
        return None
    # With the string on the stack, one instruction follows: the call, or the first of the default; a second one would change it.
    later = [i for i, (d, _) in enumerate(before) if d == base + 2 and i > starts[-1]]
    name = before[starts[-1]][1].argval
    return name if later == [starts[-1] + 1] and isinstance(name, str) else None
