"""BlockMask: a mask function and a shape; which tiles it keeps is worked out when an engine asks, at the tile size it
asks for."""
from __future__ import annotations

import warnings
from operator import is_
from typing import Callable

import numpy as np
import torch

from flexfa4.errors import ShapeError, StaleMaskError
from flexfa4.ir import Op
from flexfa4.ir.bound import BoundGraph
from flexfa4.trace import Entry, bind, fingerprint_of, parts_of, traced

from . import halves
from .build import build_spans, build_work_spans, check_lookups
from .cells import evaluate_at
from .compose import and_masks
from .data import TileData, tile_data
from .draw import picture
from .fixed import FixedMask
from .host import on_host
from .refine import Work
from .spans import Kind, Spans, Tiling, check_tiles
from .torch_interop import function_of, to_torch
from .work_spans import WorkSpans, has_label_tests

MaskMod = Callable

_CPU = torch.device("cpu")
_current_device = getattr(torch._C, "_cuda_getDevice", None) or torch.cuda.current_device
# Ops of masks that tell batches or heads apart.
_ROWS = frozenset({"B", "H"})
# Tile size of what is printed and drawn; engines ask for their own.
_SHOWN_TILE = 128


class BlockMask:
    """Which (query, key) pairs may attend. Make one with `create_block_mask` or `block_mask_from_tiles`.

    shape: (B, H, Q_LEN, KV_LEN). mask_mod: the function it came from. device: where its spans are put. bound: the traced mask.
    revision: how often `check_fresh()` found a captured tensor changed; spans are built on first use and kept while it stays.
    """

    def __init__(self, mask_mod: MaskMod, shape: tuple[int, int, int, int], device: torch.device, bound: BoundGraph,
                 data: TileData | None = None, own_mod: MaskMod | None = None, trace: Entry | None = None):
        self.mask_mod = mask_mod
        self._shape = shape
        self.device = device
        self.bound = bound
        self._data = data
        self._own_mod = own_mod
        # Of the trace that `bound` is of, where it is kept, a question says sooner than `fingerprint_of` what changed; and before
        # the first one nothing was made of the captures' values that could be wrong now.
        self._trace = trace
        self._state = None if trace is not None else fingerprint_of(bound)
        self._spans: dict[tuple, Spans | WorkSpans] = {}
        self.revision = 0
        # What the latest build of spans took.
        self.work: Work | None = None

    def __reduce__(self):
        # What was worked out stays behind, since it holds of these tensors in this process alone.
        return _restored, (None if self._data else self.mask_mod, self._own_mod, self._data, self.shape, self.device)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, Q_LEN, KV_LEN), for good: what was built holds of them. `resize` makes another mask."""
        return self._shape

    @property
    def mask_shape(self) -> tuple[int, int]:
        """(Bm, Hm): how many batches and heads are told apart; 1 where the mask ignores them."""
        ops = self.bound.graph.ops
        return self.shape[0] if "B" in ops else 1, self.shape[1] if "H" in ops else 1

    def spans(self, q_tile: int = 128, kv_tile: int = 128, transposed: bool = False,
              device: torch.device | str | None = None) -> Spans:
        """The spans at a tile size, on `device` (default: the mask's own). Built once a tile size, and again where `check_fresh`
        finds a change.

        Raises ShapeError for tile sizes that are no positive numbers, LookupOutOfRange where the mask reads past a captured
        tensor on a position that it does not mask away itself, and as `check_fresh` does.
        """
        check_tiles(q_tile, kv_tile)
        self.check_fresh()
        return self.kept_spans(q_tile, kv_tile, transposed, device)

    def kept_spans(self, q_tile: int, kv_tile: int, transposed: bool = False,
                   device: torch.device | str | None = None) -> Spans:
        """`spans` for a caller that has just called `check_fresh` itself."""
        device = self.device if device is None else torch.device(device)
        key = (q_tile, kv_tile, transposed, device)
        if key not in self._spans:
            tiling = Tiling(q_tile, kv_tile, *self.shape[2:], *self.mask_shape)
            spans, self.work = build_spans(self.bound, tiling, transposed, self._data, self._own_mod is None, device=device)
            self._spans[key] = spans if spans.device == device else spans.to(device)
        return self._spans[key]

    def work_spans(self, q_tile: int, kv_tile: int, halved: bool = False) -> Spans | WorkSpans:
        """What a kernel's work tiles walk, on the CPU: for a mask of documents tiles that may begin with them, else `spans`;
        halved: with kinds for two halves of the queries of a tile (`halves`). For a caller that has just called `check_fresh`;
        raises LookupOutOfRange as `spans` does."""
        key = (q_tile, kv_tile, "halves" if halved else "work")
        if key not in self._spans:
            if has_label_tests(self.bound):
                tiling = Tiling(q_tile, kv_tile, *self.shape[2:], *self.mask_shape)
                self._spans[key] = build_work_spans(self.bound, tiling, halved=halved)
            elif halved:
                self._spans[key] = halves.halved(self.kept_spans(q_tile // 2, kv_tile, device="cpu"))
            else:
                return self.kept_spans(q_tile, kv_tile, device="cpu")
        return self._spans[key]

    def has_spans(self, q_tile: int, kv_tile: int, for_work: bool, halved: bool = False) -> bool:
        """Whether `kept_spans` on the CPU, or `work_spans`, would build nothing. For a caller that has just called
        `check_fresh`."""
        if for_work and (halved or has_label_tests(self.bound)):
            return (q_tile, kv_tile, "halves" if halved else "work") in self._spans
        return (q_tile, kv_tile, False, torch.device("cpu")) in self._spans

    def reserve(self, capacity: int | None = None) -> FixedMask:
        """This mask for `flex_attention(..., block_mask=...)` with its spans in buffers that never move, which a CUDA graph
        writes anew in each replay. capacity: how many runs a buffer holds, at least one for each row of tiles; None: as many as
        there are tiles, beyond 2**22 tiles 64 a row.

        Raises ShapeError where the capacity is no positive number; the calls do where it is below the rows at their tiles."""
        return FixedMask(self, capacity)

    def rebuild_into(self, fixed: FixedMask) -> None:
        """Writes the spans that the captured tensors mean now into the buffers from `reserve` that calls have used, on the
        device and without waiting for it, so that it can be captured in a CUDA graph. An overflow is raised by
        `fixed.check()`."""
        if not isinstance(fixed, FixedMask) or fixed.mask is not self:
            raise ShapeError(f"fixed={fixed!r}: expected what reserve() of this very mask returned")
        self.check_fresh()
        fixed.rebuild()

    def check_lookups(self, tiling: Tiling) -> None:
        """Raises LookupOutOfRange as `spans` does. For a caller that has just called `check_fresh`."""
        check_lookups(self.bound, tiling, self._data, self._own_mod is None)

    def check_fresh(self) -> None:
        """Makes the mask true to its captured tensors again: where one changed, or the function closes over others now, it is
        traced anew and the spans are rebuilt at their next use.

        Raises StaleMaskError where that is impossible: the captures moved to another device than the mask's.
        """
        if self._trace is not None:
            captures, state = self._trace.captures_of(self.mask_mod), self._state
            if state is not None:
                if state.has(captures):
                    return
            elif captures is not None and all(map(is_, captures, self.bound.tensors)):
                self._state = fingerprint_of(self.bound)
                return
            else:
                self._state = fingerprint_of(self.bound)
        bound = bind(self.mask_mod, "mask")
        state = fingerprint_of(bound)
        self._trace = None
        if state == self._state:
            graph, literals, _, trace = parts_of(self.mask_mod, "mask", {})
            if graph is self.bound.graph and literals is self.bound.literals:
                self._trace = trace
            return
        wrong = [t for t in bound.tensors if t.ndim and t.device.type != self.device.type]
        if wrong:
            raise StaleMaskError(f"the captures of {bound.origin.name} moved to {wrong[0].device} after its BlockMask was made "
                                 f"on {self.device}; call create_block_mask again")
        self.bound, self._state = bound, state
        self._spans.clear()
        self.revision += 1

    def resize(self, q_len: int, kv_len: int) -> "BlockMask":
        """The same function over other lengths. Raises ShapeError for a mask given as data, which has only its own."""
        if self._data is not None:
            raise ShapeError(f"this mask is a table of tiles for Q_LEN={self.shape[2]}, KV_LEN={self.shape[3]}; make another one "
                             f"for {q_len} and {kv_len} with block_mask_from_tiles")
        q_len, kv_len = _number(q_len), _number(kv_len)
        _check_lengths(*self.shape[:2], q_len, kv_len)
        self.check_fresh()
        return BlockMask(self.mask_mod, (*self.shape[:2], q_len, kv_len), self.device, self.bound, trace=self._trace)

    def to_dense(self) -> torch.Tensor:
        """The exact mask of every position: bool [B, H, Q_LEN, KV_LEN] (a stride is 0 where the mask ignores the axis).

        Raises LookupOutOfRange as `spans` does.
        """
        self.check_fresh()
        B, H, Q, K = self.shape
        Bm, Hm = self.mask_shape
        b, h, q, k = (np.arange(n) for n in (Bm, Hm, Q, K))
        dense = evaluate_at(on_host(self.bound), b[:, None, None, None], h[:, None, None], q[:, None], k, checked=True)
        return torch.as_tensor(dense, device=self.device).expand(Bm, Hm, Q, K).expand(B, H, Q, K)

    def sparsity(self) -> float:
        """Percent of 128 x 128 tiles that are EMPTY."""
        counts = self.spans(_SHOWN_TILE, _SHOWN_TILE).counts()
        return 100.0 * counts[Kind.EMPTY] / max(1, sum(counts.values()))

    def to_torch(self, BLOCK_SIZE: int | tuple[int, int] = 128) -> torch.nn.attention.flex_attention.BlockMask:
        """torch's BlockMask of the same mask, at the given tile size (q, kv)."""
        sizes = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
        if not (isinstance(sizes, (tuple, list)) and len(sizes) == 2):
            raise ShapeError(f"BLOCK_SIZE={BLOCK_SIZE!r}: expected a number of positions, or two, (q, kv)")
        q_tile, kv_tile = sizes
        return to_torch(self.spans(q_tile, kv_tile), self.mask_mod, *self.shape[:2])

    @classmethod
    def from_torch(cls, mask: torch.nn.attention.flex_attention.BlockMask) -> "BlockMask":
        """A BlockMask that means what torch does with its own: full blocks are taken whole, partial ones where its
        mask_mod allows, and blocks in neither list not at all, whatever the mask_mod says there.

        Raises ShapeError for a mask whose lists and lengths do not fit, TraceError where its mask_mod cannot be traced.
        """
        mask_mod, (partial, _) = function_of(mask)
        q_len, kv_len = mask.seq_lengths
        q_tile, kv_tile = mask.BLOCK_SIZE
        tiles = (-(-q_len // q_tile), -(-kv_len // kv_tile))
        if tuple(partial.shape[2:]) != tiles:
            raise ShapeError(f"torch's BlockMask has {tuple(partial.shape[2:])} blocks of {mask.BLOCK_SIZE}; its lengths "
                             f"{(q_len, kv_len)} need {tiles}")
        bound = bind(mask_mod, "mask")
        return cls(mask_mod, (*partial.shape[:2], q_len, kv_len), _device_of(bound, partial.device), bound)

    def picture(self, path: str | None = None, q_tile: int = _SHOWN_TILE, kv_tile: int = _SHOWN_TILE):
        """A tile map as a matplotlib figure, saved to `path` if given. Raises UnsupportedError without matplotlib."""
        return picture(self.spans(q_tile, kv_tile), self.bound.origin.name, path)

    def __repr__(self) -> str:
        B, H, Q, K = self.shape
        counts = self.spans(_SHOWN_TILE, _SHOWN_TILE).counts()
        total = max(1, sum(counts.values()))
        tiles = ", ".join(f"{100 * counts[k] / total:.2f}% {k.name.lower()}" for k in (Kind.FULL, Kind.PARTIAL, Kind.EMPTY))
        per = [name for name, op in (("batch", Op.B), ("head", Op.H)) if self.bound.graph.uses(op)]
        return (f"BlockMask({self.bound.origin.name}, B={B}, H={H}, Q_LEN={Q}, KV_LEN={K}, device={self.device}, "
                f"{'one mask per ' + ' and '.join(per) if per else 'one mask for all'}, "
                f"{_SHOWN_TILE}x{_SHOWN_TILE} tiles: {tiles})")


def create_block_mask(mask_mod: MaskMod, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int,
                      device: torch.device | str | None = None, BLOCK_SIZE: int | tuple[int, int] | None = None) -> BlockMask:
    """A BlockMask from a function (b, h, q, kv) -> bool, with torch's signature.

    B, H: batches and query heads; None means any where the mask ignores them, else one, with a warning. device: default that of
    the captured tensors, else the CPU. BLOCK_SIZE is accepted and not needed: each engine asks for the tiles it wants. Nothing is
    evaluated here but the trace.
    Raises ShapeError for lengths or devices that do not fit, TraceError for a function that cannot be traced.
    """
    del BLOCK_SIZE
    if not callable(mask_mod):
        raise ShapeError(f"mask_mod is {type(mask_mod).__name__}: expected a function (b, h, q, kv) -> bool")
    given = B, H
    B, H, Q_LEN, KV_LEN = map(_number, (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN))
    _check_lengths(B, H, Q_LEN, KV_LEN)
    bound, trace = traced(mask_mod, "mask")
    if not bound.graph.ops.isdisjoint(_ROWS):
        _warn_of_one(bound, given)
    return BlockMask(mask_mod, (B, H, Q_LEN, KV_LEN), _device_of(bound, device), bound, trace=trace)


def block_mask_from_tiles(tiles: torch.Tensor, q_len: int, kv_len: int, tile: tuple[int, int] | int = (64, 64),
                          mask_mod: MaskMod | None = None) -> BlockMask:
    """A BlockMask that keeps the tiles marked in a table, and inside them what `mask_mod` allows (default: everything).

    tiles: bool [B, H, q tiles, kv tiles], or integer [B, H, q tiles, n] of the key tiles each row keeps, padded with negatives;
    leading dimensions may be missing or 1. tile: positions of one tile, (q, kv); it need not be any engine's tile size.
    Raises ShapeError where the table does not fit the lengths.
    """
    q_len, kv_len = _number(q_len), _number(kv_len)
    for name, length in (("q_len", q_len), ("kv_len", kv_len)):
        if not _at_least(1, length):
            raise ShapeError(f"{name}={length!r}: expected a positive number of positions")
    data = tile_data(tiles, q_len, kv_len, tile)
    combined = _with_data(data, mask_mod)
    bound = bind(combined, "mask")
    shape = (*data.kept.shape[:2], q_len, kv_len)
    for axis, op, name in ((0, Op.B, "batch"), (1, Op.H, "head")):
        if bound.graph.uses(op) and shape[axis] == 1:
            raise ShapeError(f"mask_mod depends on the {name}, and tiles of shape {tuple(tiles.shape)} do not say how many "
                             f"there are: expand its {name} dimension")
    return BlockMask(combined, shape, _device_of(bound, data.kept.device), bound, data, mask_mod)


def _with_data(data: TileData, mask_mod: MaskMod | None) -> MaskMod:
    return data.mask_mod() if mask_mod is None else and_masks(data.mask_mod(), mask_mod)


def _restored(mask_mod: MaskMod | None, own_mod: MaskMod | None, data: TileData | None, shape: tuple[int, int, int, int],
              device: torch.device) -> BlockMask:
    """A BlockMask from what its `__reduce__` keeps."""
    if data is not None:
        mask_mod = _with_data(data, own_mod)
    return BlockMask(mask_mod, shape, device, bind(mask_mod, "mask"), data, own_mod)


def _warn_of_one(bound: BoundGraph, given: tuple[int | None, int | None]) -> None:
    """torch takes None for one batch or head without a word, also where the mask depends on it."""
    for value, op, name, what in zip(given, (Op.B, Op.H), "BH", ("batch entry", "head")):
        if value is None and bound.graph.uses(op):
            warnings.warn(f"{bound.origin.where()}: {bound.origin.name} depends on the {what}, and {name}=None makes its "
                          f"BlockMask for one {what}, number 0: give {name} as a number", stacklevel=3)


def _number(x):
    """A length or count that may come out of a numpy array."""
    return int(x) if isinstance(x, np.integer) else x


def _at_least(least: int, x) -> bool:
    return x >= least if type(x) is int else isinstance(x, int) and not isinstance(x, bool) and x >= least


def _check_lengths(B, H, q_len, kv_len) -> None:
    if type(B) is type(H) is type(q_len) is type(kv_len) is int and B >= 0 and H >= 1 and q_len >= 0 and kv_len >= 0:
        return
    for name, value, least in (("B", B, 0), ("H", H, 1), ("Q_LEN", q_len, 0), ("KV_LEN", kv_len, 0)):
        if not _at_least(least, value):
            raise ShapeError(f"{name}={value!r}: expected a whole number of at least {least}"
                             + (" or None" if name in "BH" else ""))


def _device_of(bound: BoundGraph, device: torch.device | str | None) -> torch.device:
    """The device of the mask: that of its captures, which must all be on one (0-d ones may be on the CPU)."""
    home = None
    for t in bound.tensors:
        if t.ndim and home != t.device:
            if home is not None:
                raise ShapeError(f"{bound.origin.name} captures tensors on "
                                 f"{' and '.join(sorted({str(t.device) for t in bound.tensors if t.ndim}))}; "
                                 "move them to one device")
            home = t.device
    if device is None:
        return home or _CPU
    asked = device
    try:
        device = torch.device(asked)
    except (RuntimeError, TypeError) as error:
        raise ShapeError(f"device={asked!r}: {str(error).splitlines()[0]}") from None
    if device.type == "cuda":
        if (home is None or home.type != "cuda") and not (torch.cuda.is_initialized() or torch.cuda.is_available()):
            raise ShapeError(f"device={str(asked)!r}: torch finds no CUDA device here; leave device out for the CPU")
        if device.index is None:
            # Where a capture is on a GPU, CUDA runs in this process: no more is to be made ready.
            if home is not None and home.type == "cuda" and home.index == _current_device():
                return home
            device = torch.device("cuda", torch.cuda.current_device())
    if home is not None and home != device:
        raise ShapeError(f"{bound.origin.name} captures tensors on {home}, and device={device} was asked for; move one of them")
    return device
