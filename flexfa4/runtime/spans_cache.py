"""Spans of masks that come without a BlockMask (a mask_mod given to the call, or a compiled graph), kept while they hold.

An entry is good for the same graph, literals and lengths, and for the very same captured tensors at the same version; it holds
them weakly, so that nothing of the user's is kept alive.
"""
from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from flexfa4.ir.bound import BoundGraph
from flexfa4.sparsity import Spans, halves
from flexfa4.sparsity.build import build_spans, build_work_spans
from flexfa4.sparsity.spans import Tiling
from flexfa4.sparsity.work_spans import WorkSpans, has_label_tests
from flexfa4.tensors import TensorKey
from flexfa4.threads import make_lock

from . import capture
from .programs import Layout

_KEPT = 32

_entries: "OrderedDict[tuple, tuple[tuple, Spans | WorkSpans]]" = OrderedDict()
_lock = make_lock()


def spans_of(bound: BoundGraph, layout: Layout, q_len: int, kv_len: int, for_work: bool = False,
             halved: bool = False) -> Spans | WorkSpans:
    """The spans of a mask at the layout's tiles, on the CPU; for_work, halved: those of a kernel's work tiles
    (`BlockMask.work_spans`).

    Raises UnsupportedError as `capture.refuse_contents` does, and LookupOutOfRange where the mask reads past a capture on a
    position that it does not mask away itself.
    """
    key = (bound.graph, bound.literals, tuple(map(type, bound.literals)), layout, q_len, kv_len, for_work, halved)
    with _lock:
        entry = _entries.get(key)
    if entry is not None and entry[0] == tuple(map(TensorKey, bound.tensors)):
        return entry[1]
    capture.refuse_contents(bound)
    tiling = Tiling(layout.q_tile, layout.kv_tile, q_len, kv_len, layout.batches, layout.heads)
    if for_work and has_label_tests(bound):
        spans = build_work_spans(bound, tiling, halved=halved)
    elif halved:
        spans = halves.halved(build_spans(bound, replace(tiling, q_tile=tiling.q_tile // 2))[0])
    else:
        spans = build_spans(bound, tiling)[0]
    with _lock:
        _entries[key] = (tuple(map(TensorKey, bound.tensors)), spans)
        _entries.move_to_end(key)
        while len(_entries) > _KEPT:
            _entries.popitem(last=False)
    return spans

