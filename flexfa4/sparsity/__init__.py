"""Which tiles of the score matrix hold anything: BlockMask, its spans, and how masks are made and combined."""
from .block_mask import BlockMask, block_mask_from_tiles, create_block_mask
from .compose import and_masks, not_mask, or_masks
from .fixed import FixedMask
from .spans import Kind, Spans

__all__ = ["BlockMask", "FixedMask", "Kind", "Spans", "and_masks", "block_mask_from_tiles", "create_block_mask", "not_mask",
           "or_masks"]
