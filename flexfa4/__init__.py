"""flexfa4: programmable attention. Public names load on first use, so importing the package is cheap."""
from importlib import import_module

_HOMES = {
    "flex_attention": "flexfa4.api",
    "BlockMask": "flexfa4.sparsity",
    "FixedMask": "flexfa4.sparsity",
    "create_block_mask": "flexfa4.sparsity",
    "block_mask_from_tiles": "flexfa4.sparsity",
    "and_masks": "flexfa4.sparsity",
    "or_masks": "flexfa4.sparsity",
    "not_mask": "flexfa4.sparsity",
    "wait_for_kernels": "flexfa4.runtime.apart",
}

# Modules that users name: flexfa4.mods.causal_mask, flexfa4.reference.attention, except flexfa4.errors.TraceError.
_MODULES = frozenset({"errors", "mods", "reference"})

__all__ = sorted(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str):
    if name in _MODULES:
        return import_module(f"flexfa4.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'flexfa4' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
