"""Boolean algebra on masks: functions in, a function out, traced like any other."""
from __future__ import annotations

from typing import Callable

MaskMod = Callable


def and_masks(*mask_mods: MaskMod) -> MaskMod:
    """The mask that is True where every given mask is. Raises TypeError for none, or for what is not callable."""
    return _fold(mask_mods, "and_masks", lambda a, b: a & b)


def or_masks(*mask_mods: MaskMod) -> MaskMod:
    """The mask that is True where any given mask is. Raises TypeError for none, or for what is not callable."""
    return _fold(mask_mods, "or_masks", lambda a, b: a | b)


def not_mask(mask_mod: MaskMod) -> MaskMod:
    """The mask that is True where the given one is False. Raises TypeError for what is not callable."""
    _check((mask_mod,), "not_mask")

    def inverted(b, h, q, kv):
        return mask_mod(b, h, q, kv) == False  # noqa: E712  (`~` of a Python bool would be -1 or -2)

    return inverted


def _fold(mask_mods: tuple[MaskMod, ...], name: str, combine) -> MaskMod:
    _check(mask_mods, name)

    def combined(b, h, q, kv):
        result = mask_mods[0](b, h, q, kv)
        for mask_mod in mask_mods[1:]:
            result = combine(result, mask_mod(b, h, q, kv))
        return result

    return combined


def _check(mask_mods: tuple[MaskMod, ...], name: str) -> None:
    if not mask_mods:
        raise TypeError(f"{name}() got no masks; pass one or more functions (b, h, q, kv) -> bool")
    for i, mask_mod in enumerate(mask_mods):
        if not callable(mask_mod):
            raise TypeError(f"{name}: argument {i} is {type(mask_mod).__name__}, expected a function (b, h, q, kv) -> bool"
                            + ("; combine the masks' functions (mask.mask_mod) and call create_block_mask on the result"
                               if type(mask_mod).__name__ == "BlockMask" else ""))
