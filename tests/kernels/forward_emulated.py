"""A forward kernel in the emulator against dense float64 attention; run by the tests beside it, in processes of its own.

Arguments: the architecture (sm90, sm100; sm100-pairs for pairs of CTAs, sm100-turns for softmax warps that take turns, whatever
the plan would choose; sm100-pairs-turns; sm90-wide for three warpgroups; sm90-gpu on the GPU, see places.py), then names of
cases, or i/n for a share of them and names that it leaves out.
Prints one JSON list, a row for each run: what it was, the largest errors, and the findings of the place where it ran."""
import json
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable

warnings.simplefilter("ignore")
TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS)]
KERNEL, *WANTED = sys.argv[1:]
KERNEL, *CHOICES = KERNEL.split("-")
PAIRS, TURNS, WIDE = (word in CHOICES for word in ("pairs", "turns", "wide"))
sys.argv = sys.argv[:1]  # the DSL parses the options of the process
import conftest  # noqa: E402, F401
import places  # noqa: E402

ARCH, COMPLETIONS = places.ARCHS[KERNEL], places.COMPLETIONS
PLACE = places.place_of(KERNEL, CHOICES)
CHOICES = [word for word in CHOICES if word not in places.PLACES]
import far_scores  # noqa: E402
import torch  # noqa: E402

from flexfa4 import create_block_mask, mods, reference  # noqa: E402
from flexfa4.plan import BudgetError  # noqa: E402
from flexfa4.plan.build import sm90_tiles, sm100_pair  # noqa: E402
from flexfa4.runtime import engine, kernels  # noqa: E402
from flexfa4.runtime.lists import NO_MASK, Lists, dense_schedule, heads_of, make_lists, work_of  # noqa: E402
from flexfa4.schedule import make_schedule  # noqa: E402
from flexfa4.sparsity.work_spans import WorkSpans  # noqa: E402
from flexfa4.trace import bind  # noqa: E402

torch.set_num_threads(1)


class NotCovered(Exception):
    """The kernel takes no such call; the message says why."""


@dataclass(frozen=True)
class Case:
    """One call. lengths: (q, kv); heads: (query, key). ordered: with a work list in the schedule's order; workers: CTAs, None
    for one a work item. split_over: rows are split over KV for this many workers. pack: what the plan is to say, None for
    anything. by_document: work tiles begin with documents, where the kernel takes such. scheduler: of Blackwell; Hopper's CTAs
    draw their work, as every call on a GPU does, but for "clc" and a single CTA."""

    name: str
    lengths: tuple = (200, 300)
    heads: tuple = (2, 1)
    dims: tuple = (128, 128)
    batch: int = 1
    dtype: torch.dtype = torch.bfloat16
    score_mod: Callable | None = None
    mask_mod: Callable | None = None
    out_mod: Callable | None = None
    ordered: bool = False
    workers: int | None = None
    split_over: int = 0
    runs: int = 3
    pack: int | None = None
    by_document: bool = False
    scheduler: str = "static"
    precise: bool = False


def inputs(case: Case, seed: int = 0):
    g = torch.Generator().manual_seed(seed)

    def make(heads, length, dim):
        return torch.randn(case.batch, heads, length, dim, generator=g).to(case.dtype)

    return (make(case.heads[0], case.lengths[0], case.dims[0]), make(case.heads[1], case.lengths[1], case.dims[0]),
            make(case.heads[1], case.lengths[1], case.dims[1]))


def lists_of(case: Case, plan, q, k) -> Lists:
    heads = heads_of(plan, q, k)
    if case.mask_mod is None:
        tiles = (-(-case.lengths[0] // plan.q_tile), -(-case.lengths[1] // plan.tiles.kv_tile))
        grid = plan.q_tile, case.lengths[0]
        return make_lists(None, dense_schedule(tiles, heads, case.split_over), q.device, grid) if case.split_over else NO_MASK
    mask = create_block_mask(case.mask_mod, case.batch, case.heads[0], *case.lengths)
    spans = mask.work_spans(plan.q_tile, plan.tiles.kv_tile, plan.halves)
    placed, schedule = isinstance(spans, WorkSpans), None
    assert PAIRS or not case.by_document or placed and spans.by_document, f"{case.name}: {spans}"
    if case.ordered or case.split_over or placed:
        schedule = make_schedule(work_of(spans, heads), case.split_over or 2, 1, split=case.split_over > 0)
    lists = make_lists(spans, schedule, q.device)
    assert (lists.parts > 0) == (case.split_over > 0), f"{case.name}: {lists.parts} parts"
    return lists


def run(case: Case) -> list[dict]:
    bounds = [None if mod is None else bind(mod, kind)
              for mod, kind in ((case.score_mod, "score"), (case.mask_mod, "mask"), (case.out_mod, "out"))]
    return [row for seed in range(PLACE.inputs) for row in run_on(case, inputs(case, seed), bounds)]


def run_on(case: Case, tensors: tuple, bounds: list, explained: tuple = ()) -> list[dict]:
    """The case with these q, k and v. bounds: its mods as they are handed to the kernel. explained: what the arithmetic of the
    graphs may change of the output and its logarithm, element by element; errors are counted beyond it. A key may then outweigh
    the others, as it does among few: its P and the output are rounded by half a unit, and no other rounding evens that out."""
    print(f"call: {case.name}", file=sys.stderr, flush=True)
    q, k, v = PLACE.placed(tensors)
    scale, bounds = case.dims[0] ** -0.5, places.placed_graphs(PLACE, bounds)
    choice = engine.choose(KERNEL, q, k, v, scale, bounds, case.precise)
    if choice.plan is None:
        raise NotCovered(choice.reason)
    assert case.pack in (None, choice.plan.pack), f"{case.name}: {choice.plan.pack} places for heads"
    plan = choice.plan
    if PAIRS:
        try:
            plan = replace(plan, tiles=replace(sm100_pair(*case.dims), scheduler=case.scheduler))
        except BudgetError as reason:
            raise NotCovered(str(reason)) from reason
    if WIDE:
        if plan.tiles.consumers == 1:
            raise NotCovered("few rows")
        plan = replace(plan, tiles=sm90_tiles(*case.dims, wide=True))
    if TURNS:
        try:
            plan = replace(plan, tiles=replace(plan.tiles, out_of_step=120))
        except BudgetError as reason:
            raise NotCovered(str(reason)) from reason
    if KERNEL == "sm100" and case.scheduler == "clc":
        plan = replace(plan, tiles=replace(plan.tiles, scheduler="clc"))
    lists = lists_of(case, plan, q, k)
    out64, lse64 = reference.attention(*tensors, case.score_mod, case.mask_mod, scale, case.out_mod)
    # P is rounded before it meets V, whose signs differ: the error follows the sum of sizes.
    sizes, _ = reference.attention(*tensors[:2], tensors[2].abs(), case.score_mod, case.mask_mod, scale)
    largest = max(out64.abs().max(), (out64.abs().max() + sizes.max()) / 2).item()
    if explained or case.lengths[1] < 8:
        largest *= 2
    of_out, of_lse = explained or (0.0, 0.0)
    rows = []
    for seed in range(PLACE.runs(case.runs)):
        drawn = case.scheduler != "clc" and case.workers != 1 if KERNEL == "sm90" else case.scheduler == "counter"
        counter = torch.zeros(1, dtype=torch.int32, device=q.device) if drawn else None
        items = kernels.work_items(plan, q, k, lists)
        workers = items if case.scheduler == "clc" and KERNEL == "sm100" else case.workers or items
        out, lse, how = PLACE.run(lambda crew: kernels.forward(plan, (q, k, v), scale, bounds, lists, crew),
                                  seed, workers, counter)
        assert counter is None or counter.item() == 0, f"{case.name}: the work counter is not left at zero"
        rows.append(dict(case=case.name, seed=seed, half=str(case.dtype).split(".")[1], largest=largest,
                         out=error(out, out64, of_out), lse=error(lse, lse64, of_lse),
                         largest_lse=finite_most(lse64), **how))
    return rows


def finite_most(lse) -> float:
    return lse.masked_fill(lse == float("-inf"), 0.0).abs().max().item()


def error(got, want, explained=0.0) -> float:
    """The largest absolute error beyond what is explained; infinite where NaN or infinities differ."""
    got, want = got.double(), want.double()
    same = got == want
    difference = ((got - want).abs().masked_fill(same, 0.0) - explained).clamp(min=0.0)
    return float("inf") if torch.isnan(difference).any() else difference.max().item()


def gallery() -> list[Case]:
    """Every mod of the gallery at a length that no tile divides, in work list order every other time."""
    cases = []
    for i, entry in enumerate(mods.GALLERY):
        example = entry(seq_len=330, heads=4, kv_heads=2, batch=2)
        made = {name: mod for name, mod in example.make().items() if name.endswith("_mod")}
        cases.append(Case(f"mod {entry.name}", (example.q_len, example.kv_len), (4, 2), batch=2, dims=(64, 64),
                          ordered=i % 2 == 0 and made["mask_mod"] is not None, workers=3, runs=2, **made))
    return cases


def nothing(b, h, q, kv):
    return (q < 0) | (kv < 0)


def upper_half(b, h, q, kv):
    """Query tiles without keys, with a few, and with all."""
    return q < kv - 150


def seldom(b, h, q, kv):
    """Row 7 sees every key; of the others some see keys of the first tile only, some of the last only, some none."""
    return (q == 7) | ((q % 3 == 0) & (kv < 128)) | ((q % 3 == 1) & (kv > 1900))


def scaled(out, lse, b, h, q):
    return torch.where(q % 2 == 0, out, out * 0.5) + 0.25


def documents(*lengths: int, more: Callable | None = None, order: Callable = torch.arange) -> dict:
    """Lengths and mask of documents one after the other, their labels in some order, with another mask."""
    ids = torch.repeat_interleave(order(len(lengths)), torch.tensor(lengths))

    def mask(b, h, q, kv):
        same = ids[q] == ids[kv]
        return same if more is None else same & more(b, h, q, kv)

    return dict(lengths=(sum(lengths),) * 2, mask_mod=mask, by_document=True)


def back_and_forth(count: int) -> torch.Tensor:
    """Labels that come back: no document is in one piece."""
    return torch.arange(count) % max(1, count // 2)


def at_some(b, h, q, kv):
    """Beside the labels: whole tiles of a document without keys, rows without keys."""
    return (q >= kv) & (q - kv < 150) & (q % 7 != 3) & (kv > 130)


UNEVEN = (1, 128, 129, 300, 2, 77, 5)
PACKED = torch.stack([torch.repeat_interleave(torch.arange(3), torch.tensor(n)) for n in ((200, 130, 100), (17, 1, 412))])


def gated(out, lse, b, h, q):
    return out * (0.25 + 0.125 * h) + 0.01 * lse


def by_distance(heads: int, length: int) -> Callable:
    """A bias for each head and distance of q and kv."""
    table = torch.randn(heads, 2 * length, generator=torch.Generator().manual_seed(2)).bfloat16()
    return lambda score, b, h, q, kv: score + table[h, q - kv + length]


def wrapping(score, b, h, q, kv):
    """Above the diagonal the index is negative and counts from the end."""
    return score + RAMP[q - kv]


def falling(score, b, h, q, kv):
    """The first key of all has the largest score, and a tile's are far below those of the tile before."""
    return score - 0.5 * kv


def rising(score, b, h, q, kv):
    return score + 0.25 * (kv - q - 220)


def one_key_above(score, b, h, q, kv):
    """Exponentials below the other keys' maximum overflow."""
    return torch.where(kv == 3, score, score - 1000.0)


def compared_as_floats(b, h, q, kv):
    near = (kv.float() - q.float()).abs() < 40.5
    return (kv.float() * 1.1 <= q) & (-kv.float() < -2.5) | near & (kv / 2 < q) | (kv.half() * 2 < q) & (kv.float() * 1.5 > 31)


def compared(b, h, q, kv):
    """Comparisons of positions in both directions, their logic, and numbers that belong to the row alone."""
    near = (kv > q - 60) & (kv - 40 <= q) & ~(kv == q - 1)
    return (near ^ (kv + 5 == q)) | (q + kv < 64) & (kv != 7) | ((q % 5 == 0) & (200 - kv >= h * 100))


def labelled(b, h, q, kv):
    """Limits as far as 64 bits go; labels of 64 and of 8 bits that change at every key."""
    return (kv <= LIMITS[q]) & (kv >= -LIMITS[q]) & ((WIDE_LABELS[kv] == WIDE_LABELS[q]) | (LABELS[kv] != LABELS[q + 1] + b))


LIMITS = torch.tensor([2**63 - 1, 100, 2**40, -(2**63) + 1, 31, 32]).repeat(60)
WIDE_LABELS = torch.arange(360) % 37 * 2**40
LABELS = (torch.arange(360) * 7 % 50).to(torch.int8)
BYTES = (torch.arange(300) * 7 % 256).to(torch.uint8)


def approximated(score, b, h, q, kv):
    """Functions that the hardware has and approximates, and a division."""
    size = torch.abs(score) + 0.5
    smooth = torch.tanh(score / 2.0) + torch.sigmoid(score) + torch.sin(score) + torch.cos(size) + torch.erf(score / 3.0)
    return smooth + torch.log(size) + torch.exp(-size) + torch.sqrt(size) + torch.rsqrt(size) + size**-0.75 + 1.0 / size


def times(factor: float) -> Callable:
    """Scores with a factor that the kernel gets at run time."""
    captured = torch.tensor(factor)
    return lambda score, b, h, q, kv: captured * torch.sin(score) - 0.01 * q


def gains(score, b, h, q, kv):
    """Factors of a head and of a row, of both signs and 0; a row with no score above -inf; a slope."""
    return score * HEAD_GAINS[h] * ROW_GAINS[q] + LIFTS[q] + HEAD_GAINS[h] * (0.125 * (kv - q))


def gains_alone(score, b, h, q, kv):
    return score * HEAD_GAINS[h] * ROW_GAINS[q] + LIFTS[q]


def decaying(score, b, h, q, kv):
    """NaN above the diagonal, and an infinity beside it."""
    return score - torch.log(1.0 * (q - kv + 1)) * HEAD_GAINS[h]


def by_key(score, b, h, q, kv):
    """Some keys never seen, the others' steps not the same."""
    return 0.5 * (score * HEAD_GAINS[h]) + KEY_BIAS[b, kv]


def lines_of_two_kinds(score, b, h, q, kv):
    return score + KEY_BIAS[b, kv] + RAMP[q - kv] + 0.01 * kv - 0.02 * (q - kv) * HEAD_GAINS[h]


def inside_a_cap(score, b, h, q, kv):
    """A value of the distance in the middle of a graph."""
    return 3.0 * torch.tanh((score + RAMP[torch.clamp(3 * (q - kv) + h, 0, 399)]) / 3.0)


def on_a_grid(score, b, h, q, kv):
    """A bias of the distance on a grid 20 wide, in a table of other strides; some of the rows of distances count from the end."""
    return score + GRID[kv // 20 - q // 20, h, kv % 20 - q % 20 + 19] * 0.5


def uneven_columns(b, h, q, kv):
    """A mask that needs numbers of each key."""
    return (q * 7 + LABELS[kv] * LABELS[kv]) % 5 != 0


GRID = torch.randn(4, 39, 45, generator=torch.Generator().manual_seed(4)).bfloat16().permute(2, 0, 1)
KEYS = torch.arange(2 * 420).view(2, 420)
KEY_BIAS = torch.where(KEYS % 9 == 4, -torch.inf, KEYS * 7 % 50 / 10)
RAMP = torch.linspace(-2, 2, 400)
HEAD_GAINS = torch.tensor([1.5, -0.75, 0.0, -2.0])
ROW_GAINS = torch.linspace(-1, 1.2, 300)
LIFTS = torch.where(torch.arange(300) % 11 == 3, -torch.inf, torch.linspace(-20, 20, 300))
CASES = [
    Case("plain"),
    Case("plain, few CTAs", workers=2),
    Case("causal", mask_mod=mods.causal_mask, lengths=(300, 300)),
    Case("causal in order", mask_mod=mods.causal_mask, lengths=(300, 300), ordered=True, workers=2),
    Case("nothing seen", mask_mod=nothing, workers=1),
    Case("rows without keys", mask_mod=upper_half, workers=1),
    Case("one query, one key", (1, 1)),
    Case("one query", (1, 500), (8, 2)),
    Case("one key", (200, 1)),
    Case("whole tiles", (256, 256)),
    Case("a row more than a tile", (129, 129), mask_mod=mods.causal_mask),
    Case("a row less than a tile", (127, 127), mask_mod=mods.causal_mask),
    Case("many tiles", (64, 1500), (1, 1)),
    Case("fp16", dtype=torch.float16, score_mod=mods.tanh_softcap(2.0)),
    Case("D=64", dims=(64, 64), lengths=(400, 300), mask_mod=mods.causal_mask),
    Case("D=96", dims=(96, 96)),
    Case("D=192, 128", dims=(192, 128)),
    Case("D=256", dims=(256, 256), mask_mod=mods.causal_bottom_right(200, 300)),
    Case("D=192, rows without keys", (1100, 300), (2, 2), (192, 128), mask_mod=upper_half, workers=2, runs=9),
    Case("D=192, fewer keys than queries", (600, 65), (2, 2), (192, 128), mask_mod=mods.sliding_window(100), runs=9),
    Case("D=256, items in turn", (700, 300), (2, 1), (256, 256), mask_mod=mods.causal_mask, ordered=True, workers=2, runs=6),
    Case("D=256, items of a tile and of none", (700, 300), (1, 1), (256, 250), mask_mod=upper_half, workers=1, runs=6),
    Case("D=256, documents", heads=(1, 1), dims=(256, 255), **documents(130, 1, 255, 70, more=mods.causal_mask), workers=2,
         runs=6),
    Case("split, D=256, halves", (200, 700), dims=(256, 256), mask_mod=mods.causal_bottom_right(200, 700), split_over=12,
         workers=3),
    Case("D=256, packed, halves", (100, 400), (4, 1), (256, 256), mask_mod=mods.sliding_window(60), pack=4, workers=2),
    Case("a cap, items in turn", (600, 700), (2, 1), score_mod=mods.tanh_softcap(2.0), mask_mod=mods.causal_mask, ordered=True,
         workers=2),
    Case("D=40", dims=(40, 40)),
    Case("D=31, 17", dims=(31, 17)),
    Case("D=64, 128", (300, 200), dims=(64, 128), workers=1),
    Case("D=16, 256", (300, 200), (1, 1), (16, 256), mask_mod=mods.causal_mask, workers=1, runs=2),
    Case("D=24, 200, few queries", (3, 300), (8, 1), (24, 200), dtype=torch.float16, runs=2),
    Case("bytes above 127", (200, 300), dims=(64, 64), score_mod=lambda s, b, h, q, kv: s + BYTES[kv] * 0.01,
         mask_mod=lambda b, h, q, kv: BYTES[kv] + 1 < 250, runs=2),
    Case("a literal beyond 32 bits", mask_mod=lambda b, h, q, kv: q - kv + 10**12 < 10**12 + 20, workers=2),
    Case("comparisons as words", (300, 300), mask_mod=compared, workers=2),
    Case("comparisons as floats", (300, 300), (1, 1), (64, 64), mask_mod=compared_as_floats, workers=2, runs=2),
    Case("labels and far limits", (300, 330), mask_mod=labelled, dims=(64, 64)),
    Case("bias of the distance", (300, 420), (4, 2), score_mod=by_distance(4, 420), mask_mod=mods.causal_mask),
    Case("index that wraps", (400, 400), (1, 1), (64, 64), score_mod=wrapping),
    Case("scores that fall", (200, 420), score_mod=falling),
    Case("scores that rise", (200, 420), score_mod=rising, mask_mod=mods.causal_bottom_right(200, 420), dims=(64, 64)),
    Case("one key far above", (200, 420), score_mod=one_key_above),
    Case("a negative factor", (200, 200), score_mod=times(-3.0), mask_mod=mods.causal_mask),
    Case("a factor of zero", (200, 300), score_mod=times(0.0), mask_mod=upper_half, workers=1),
    Case("a factor of the score alone", (200, 200), score_mod=lambda s, b, h, q, kv: s * -0.5, mask_mod=mods.causal_mask),
    Case("factors and additions of rows", (300, 300), (4, 2), (64, 64), score_mod=gains, mask_mod=upper_half, workers=3),
    Case("factors of rows", (300, 300), (4, 2), (64, 64), score_mod=gains_alone, mask_mod=upper_half, workers=3),
    Case("bias of the distance by head", (300, 420), (2, 2), score_mod=by_distance(2, 420), mask_mod=mods.causal_mask, workers=1,
         pack=1),
    Case("NaN where hidden", (300, 300), (4, 4), (64, 64), score_mod=decaying, mask_mod=mods.causal_mask, workers=3),
    Case("bias of the key", (300, 420), (4, 4), (64, 64), 2, score_mod=by_key, workers=3),
    Case("bias of key and distance", (300, 390), (4, 4), (64, 64), 2, score_mod=lines_of_two_kinds, mask_mod=mods.causal_mask,
         workers=3),
    Case("bias on a grid", (300, 400), (4, 4), (64, 64), score_mod=on_a_grid, mask_mod=at_some, workers=3),
    Case("bias on a grid, packed heads", (100, 400), (4, 2), (64, 64), score_mod=on_a_grid, workers=1,
         pack=1 if KERNEL == "sm90" else 2),
    Case("bias on a grid, numbers of keys", (300, 350), (2, 1), score_mod=on_a_grid, mask_mod=uneven_columns, workers=1),
    Case("bias inside a cap", (300, 330), (4, 4), (64, 64), score_mod=inside_a_cap, mask_mod=uneven_columns, workers=1),
    Case("bias of the distance, numbers of keys", (300, 330), (2, 1), score_mod=wrapping, mask_mod=uneven_columns, workers=1),
    Case("bias of the distance, few rows", (60, 420), (2, 2), (64, 64), score_mod=by_distance(2, 420), mask_mod=seldom,
         workers=1),
    Case("one key far above, D=64", (200, 420), score_mod=one_key_above, dims=(64, 64), mask_mod=seldom),
    *gallery(),
]
CASES += [
    Case("split, one query", (1, 3000), (2, 1), split_over=8),
    Case("split, more parts than lanes", (1, 10000), (1, 1), (64, 64), split_over=40, runs=2),
    Case("split, D=64 causal", (300, 1500), (2, 1), (64, 64), mask_mod=mods.causal_bottom_right(300, 1500), split_over=12),
    Case("documents", heads=(2, 1), **documents(*UNEVEN)),
    Case("documents, causal", heads=(2, 2), **documents(130, 1, 255, 128, 129, more=mods.causal_mask), workers=3),
    Case("documents, causal, D=64", **documents(150, 1, 384, 130, more=mods.causal_mask), dims=(64, 64), workers=2),
    Case("documents, D=31, 17", heads=(1, 1), **documents(*UNEVEN[:4], more=mods.causal_mask), dims=(31, 17), workers=2),
    Case("documents, window", **documents(130, 127, 257, more=mods.sliding_window(90)), workers=2,
         score_mod=mods.alibi_bias(mods.alibi_slopes(2))),
    Case("documents, rows and tiles without keys", **documents(131, 260, 135, more=at_some), workers=2, out_mod=scaled),
    Case("documents with bias", (430, 430), (4, 2), (64, 64), score_mod=by_distance(4, 430), by_document=True,
         mask_mod=lambda b, h, q, kv: (PACKED[0, q] == PACKED[0, kv]) & (q >= kv), workers=2),
    Case("documents of each batch", (430, 430), (2, 1), (64, 64), batch=2, by_document=True,
         mask_mod=lambda b, h, q, kv: (PACKED[b, q] == PACKED[b, kv]) & (q >= kv), workers=3),
    Case("documents, a thousand", heads=(1, 1), dims=(64, 64), workers=6, runs=2,
         **documents(*[1 + i * 7 % 9 + i % 2 for i in range(1000)], more=mods.causal_mask)),
    Case("documents that come back", **{**documents(70, 130, 60, 90, more=mods.causal_mask, order=back_and_forth),
                                        "by_document": False}, workers=2),
    Case("split, documents", heads=(1, 1), **documents(900, 3, 140, more=mods.causal_mask), split_over=20),
    Case("split, parts without keys", (200, 2000), (1, 1), (128, 40), mask_mod=seldom, split_over=6),
]
CASES += [
    Case("far below", (200, 420), score_mod=far_scores.below, mask_mod=mods.causal_bottom_right(200, 420), dtype=torch.float16),
    Case("far above", (200, 420), score_mod=far_scores.above, dims=(64, 64)),
    Case("far most", (200, 420), score_mod=far_scores.most, dims=(64, 64), runs=2),
    Case("far slopes", (200, 420), score_mod=far_scores.slopes, dims=(64, 64), runs=2),
    Case("far by units", (200, 420), score_mod=far_scores.by_units, dims=(64, 64), runs=2),
    Case("far column", (300, 390), (4, 4), (64, 64), 2, runs=2, score_mod=lambda s, b, h, q, kv: s + far_scores.BIAS[b, kv],
         mask_mod=mods.causal_mask, workers=3),
    *(Case(f"split, {name}", (200, 2000), (1, 1), (64, 64), mask_mod=far_scores.in_few_parts, score_mod=mod, split_over=6, runs=2,
           **more) for name, mod, more in (("far alike", far_scores.alike, {}), ("far by units", far_scores.by_units, {}),
                                         ("far below", far_scores.below, dict(dtype=torch.float16)))),
]
if KERNEL == "sm100":
    CASES += [
        Case("far below, D=192, halves", (300, 420), score_mod=far_scores.below, mask_mod=mods.causal_bottom_right(300, 420),
             dims=(192, 128), workers=1),
        Case("far below, a long graph", (200, 420), score_mod=far_scores.below_and_long, dims=(64, 64)),
        Case("far below, packed", (17, 300), (16, 2), (64, 64), score_mod=far_scores.below, pack=8),
        Case("far factors", (300, 420), (4, 2), (64, 64), score_mod=far_scores.factors,
             mask_mod=mods.causal_bottom_right(300, 420)),
        Case("far rows", (300, 420), (4, 2), (64, 64), score_mod=lambda s, b, h, q, kv: s + far_scores.LIFTS[q]),
        Case("far rows, tables", (300, 390), (4, 4), (64, 64), 2, workers=3,
             score_mod=lambda s, b, h, q, kv: s + KEY_BIAS[b, kv] + far_scores.LIFTS[q] + RAMP[q - kv]),
        Case("split, far rows", (200, 2000), (1, 1), (64, 64), mask_mod=far_scores.in_few_parts, split_over=6,
             score_mod=lambda s, b, h, q, kv: s + far_scores.LIFTS[q]),
    ]


def by_column(out, lse, b, h, q, d):
    return out * COLUMN_SCALE[d] - 0.01 * lse.clamp(min=-10.0)


COLUMN_SCALE = torch.linspace(0.5, 1.0, 40)


def by_head(b, h, q, kv):
    """Head h sees h + 1 keys fewer than causal."""
    return q >= kv + h


def head_scale(score, b, h, q, kv):
    return score * (0.5 + 0.05 * h)


def slopes(heads: int) -> Callable:
    return mods.alibi_bias(2.0 ** -torch.arange(3, heads + 3))


def packed() -> list[Case]:
    """Groups of heads that share query tiles, at query lengths around what fills a tile."""
    cases, places = [], {2: 2, 3: 4, 4: 4, 8: 8}
    for i, (group, q_len) in enumerate((g, n) for g in places for n in (1, 2, 17, 64, 130)):
        kv_len = (300, 128, 257, 100)[i % 4]
        kinds = (dict(score_mod=mods.tanh_softcap(2.0)), dict(mask_mod=mods.causal_bottom_right(q_len, kv_len)),
                 dict(mask_mod=mods.sliding_window(90), score_mod=slopes(2 * group)), dict(out_mod=gated),
                 dict(score_mod=by_distance(2 * group, 300), mask_mod=mods.causal_bottom_right(q_len, kv_len)), {})
        made = kinds[i % len(kinds)]
        # More queries fill tiles by themselves, or nearly; and of four places three heads leave one empty.
        masked_alone = "mask_mod" in made and "score_mod" not in made
        wants = places[group] if q_len <= 17 or group != 3 and masked_alone else None
        cases.append(Case(f"packed {group} x {q_len}", (q_len, kv_len), (2 * group, 2), (64, 64), 1 + i % 2, pack=wants, **made))
    return cases


CASES += packed()
CASES += [
    Case("packed, a mask by head", (40, 300), (8, 2), mask_mod=by_head, pack=1),
    Case("packed, 16 heads by head", (5, 300), (32, 2), (64, 64), score_mod=head_scale, pack=8 if KERNEL == "sm90" else 16),
    Case("packed, long rows", (150, 300), (4, 1), mask_mod=mods.causal_bottom_right(150, 300), pack=4, workers=2, runs=2),
    Case("packed, 16 heads", (30, 300), (16, 1), (64, 64), score_mod=wrapping, pack=16),
    Case("packed, 71 heads", (2, 300), (71, 1), (64, 64)),
    Case("packed, 40 heads", (2, 300), (40, 1), (64, 64), pack=64),
    Case("packed, D=192, 128", (9, 300), (8, 1), (192, 128), mask_mod=mods.causal_bottom_right(9, 300), pack=8),
    Case("packed, D=31, 17", (9, 300), (6, 1), (31, 17), dtype=torch.float16, workers=1, pack=8),
    Case("split, packed", (1, 3000), (8, 1), split_over=8, pack=8),
    Case("split, packed, drawn", (1, 3000), (8, 1), split_over=8, pack=8, workers=3, scheduler="counter"),
    Case("split, packed, an output graph", (3, 2000), (8, 2), (64, 64), score_mod=mods.tanh_softcap(2.0), out_mod=gated,
         mask_mod=mods.causal_bottom_right(3, 2000), split_over=8, pack=4),
    Case("split, an output graph by column", (300, 1500), (2, 2), (64, 40), mask_mod=seldom, out_mod=by_column, split_over=12),
    Case("split, packed, some queries", (20, 2000), (12, 2), (64, 64), mask_mod=mods.causal_bottom_right(20, 2000),
         score_mod=head_scale, split_over=12, pack=8),
]
CASES += [
    Case(f"{scheduler}, {name}", lengths, heads, workers=workers, batch=2, scheduler=scheduler, runs=9, **made)
    for scheduler in ("counter", "clc")
    for name, lengths, heads, workers, made in (
        ("plain", (1200, 200), (2, 2), 2, {}),
        ("in order", (1200, 700), (2, 2), 3, dict(mask_mod=mods.sliding_window(150), ordered=True)),
        ("rows without keys", (1100, 300), (1, 1), 2, dict(mask_mod=upper_half)),
        ("fewer items than CTAs", (100, 200), (1, 1), 4, {}),
        ("few rows", (3, 700), (8, 2), 2, dict(pack=4)),
        ("the output over the queries", (600, 300), (1, 1), 2, dict(dims=(192, 128))),
    )
]


def of_pairs() -> list[Case]:
    """Rows around the edges of what a pair and each of its CTAs hold, and several work items a pair."""
    edges = (1, 127, 129, 255, 257, 384, 511, 512, 513, 640, 769, 1025)
    masks = (None, mods.causal_mask, mods.sliding_window(100), at_some, upper_half)
    cases = [
        Case(f"pairs, {dims[0]}, {q_len} x {kv_len}", (q_len, kv_len), (2, 1 + i % 2), dims, mask_mod=masks[i % len(masks)],
             workers=1 + i % 2, scheduler=("static", "counter")[i % 2], runs=4)
        for dims in ((128, 128), (192, 128))
        for i, (q_len, kv_len) in enumerate(zip(edges, (128, 500, 1, 257, 64, 385, 512, 127, 900, 129, 300, 640)))
    ]
    return cases + [
        Case("pairs, scores that rise", (700, 700), (1, 1), score_mod=rising, mask_mod=mods.causal_mask, runs=6),
        Case("pairs, graphs", (600, 500), (4, 2), score_mod=by_distance(4, 600), out_mod=gated, workers=2, runs=6),
        Case("pairs, no keys at all", (1200, 200), (2, 2), mask_mod=nothing, workers=2, scheduler="counter", runs=6),
        Case("pairs, some without keys", (2100, 300), (2, 2), (192, 128), mask_mod=upper_half, workers=2, runs=9),
        Case("pairs, in order", (2100, 2100), (2, 1), mask_mod=mods.sliding_window(300), ordered=True, workers=3, runs=6),
        Case("split, pairs", (700, 1500), (1, 1), mask_mod=mods.causal_bottom_right(700, 1500), out_mod=gated, split_over=9,
             runs=6),
        Case("pairs, documents", heads=(2, 1), **documents(530, 1, 655, 128, 129, more=mods.causal_mask), workers=3, runs=6),
        Case("pairs, documents, D=192", heads=(2, 1), dims=(192, 128), **documents(*UNEVEN, 700), workers=2, runs=6),
        Case("pairs, packed", (150, 300), (8, 1), mask_mod=mods.causal_bottom_right(150, 300), workers=2, pack=8, runs=6),
        Case("pairs, D=256", (700, 300), (2, 1), (256, 256), mask_mod=mods.causal_mask, scheduler="counter", workers=2, runs=6),
        Case("pairs, D=192", (700, 300), (2, 1), (192, 192), mask_mod=mods.causal_mask, runs=6),
        Case("pairs, D=224", (500, 200), (1, 1), (224, 224), runs=6),
        Case("pairs, D=128, 256", (500, 200), (1, 1), (128, 256), runs=6),
        Case("pairs, D=256, 128", (500, 200), (1, 1), (256, 128), dtype=torch.float16, runs=6),
    ]


if PAIRS:
    CASES += of_pairs()
elif KERNEL == "sm100":
    # Hopper's code has a copy of the mod for each of a thread's 64 scores, which takes the compiler minutes.
    CASES += [Case("approximate", dtype=torch.float16, score_mod=approximated, out_mod=gated),
              Case("precise", dtype=torch.float16, score_mod=approximated, out_mod=gated, precise=True)]


# Score edits that pairs and turns run as well: what moves the running maximum, and each way of reading positions.
WITH_CHOICES = {
    "fp16", "a cap, items in turn", "scores that fall", "scores that rise", "one key far above", "far below", "far above",
    "far rows", "NaN where hidden", "comparisons as words", "labels and far limits", "bias of the distance",
    "bias of key and distance", "bias on a grid", "factors and additions of rows", "mod document", "mod sliding_tile_3d",
}  # fmt: skip


def by_graph_alone(case: Case) -> bool:
    """Whether a case has the pipeline of another one and only other graphs."""
    plain = case.scheduler == "static" and not (case.split_over or case.pack or case.by_document)
    return plain and case.score_mod is not None and not case.name.startswith("pairs") or case.name.startswith("mod ")


def chosen(words: list[str]) -> list[Case]:
    """Cases by name, or share "i/n" of all but those named after it, or all. A share is a run of neighbours, many of which have
    one kernel. Pairs and turns emit graphs with the code of the single CTA, which runs each of them: a share of theirs has the
    pipelines and some edits."""
    if words and "/" in words[0]:
        share, shares = map(int, words[0].split("/"))
        cases = [case for case in CASES if not (CHOICES and by_graph_alone(case)) or case.name in WITH_CHOICES]
        cases = [case for case in cases if case.name not in words[1:]]
        return cases[len(cases) * share // shares : len(cases) * (share + 1) // shares]
    return [case for case in CASES if not words or case.name in words]


if __name__ == "__main__":
    found, not_covered = [], []
    for case in chosen(WANTED):
        try:
            found += run(case)
        except NotCovered as reason:
            not_covered.append(f"{case.name}: {reason}")
    print("\n".join(not_covered), file=sys.stderr)
    # A single CTA takes every case; a pair not clc, nor values whose halves are no columns of a product; one query tile no turns.
    assert PAIRS or TURNS or WIDE or not not_covered
    print(json.dumps(found))
