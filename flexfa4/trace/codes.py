"""What a code object can read besides its arguments: global names, attribute names, modules.

From the bytecode, once a code object.
"""
from __future__ import annotations

import dis
import types
import weakref
from dataclasses import dataclass

# Calls that read state which no walk over closures and globals can see.
_DYNAMIC = frozenset({"vars", "globals", "locals", "eval", "exec", "__import__", "open", "input", "id",
                      "setattr", "delattr", "hash"})
_ATTRIBUTE_OPS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})
_GLOBAL_OPS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})

_known: dict[int, tuple[weakref.ref, "Reads"]] = {}


@dataclass(frozen=True)
class Reads:
    """`dynamic`: the code may read state by computed names, so nothing can be concluded from names."""

    names: tuple[str, ...]
    attributes: frozenset[str]
    imports: frozenset[str]
    dynamic: bool


def reads(code: types.CodeType) -> Reads:
    """The reads of a code object and of the functions and comprehensions nested in it."""
    found = _known.get(id(code))
    if found is not None and found[0]() is code:
        return found[1]
    result = _analyse(code)
    key = id(code)
    _known[key] = (weakref.ref(code, lambda _, key=key, known=_known: known.pop(key, None)), result)
    return result


def _analyse(code: types.CodeType) -> Reads:
    names: dict[str, None] = {}
    attributes, imports, dynamic = set(), set(), False
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBAL_OPS:
            names[instruction.argval] = None
        elif instruction.opname in _ATTRIBUTE_OPS:
            attributes.add(instruction.argval)
        elif instruction.opname == "IMPORT_NAME":
            imports.add(instruction.argval)
    if "getattr" in names or "hasattr" in names:
        attributes.update(c for c in code.co_consts if isinstance(c, str))
        dynamic = "getattr" in names and not any(isinstance(c, str) for c in code.co_consts)
    dynamic |= bool(_DYNAMIC & names.keys()) or "__dict__" in attributes
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = reads(constant)
            names.update(dict.fromkeys(inner.names))
            attributes |= inner.attributes
            imports |= inner.imports
            dynamic |= inner.dynamic
    return Reads(tuple(names), frozenset(attributes), frozenset(imports), dynamic)
