"""flexfa4: programmable attention. Public names load on first use, so importing the package is cheap."""
from importlib import import_module

_HOMES = {
    "flex_attention": "flexfa4.api",
    "BlockMask": "flexfa4.sparsity",
    "create_block_mask": "flexfa4.sparsity",
    "block_mask_from_tiles": "flexfa4.sparsity",
    "and_masks": "flexfa4.sparsity",
    "or_masks": "flexfa4.sparsity",
    "not_mask": "flexfa4.sparsity",
}

__all__ = sorted(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str):
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'flexfa4' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
