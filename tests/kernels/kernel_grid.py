"""A forward kernel in the emulator over a grid; run by test_sm100_grid.py, test_sm90_grid.py and benchmarks/kernel_grid.py, a
process a part. KERNEL is sm90 or sm100, or sm90-gpu for a launch on the GPU.

    kernel_grid.py KERNEL PART ...

    cases [NAME ...]   the situations of tests/cases, by file name; float32 and float64 ones in bfloat16
    others NAME ...    all but these
    lengths i/n        a share of head dims, types and masks, each at many pairs of lengths around tile edges
    graphs COUNT SEED  random integer graphs as masks
    scores COUNT SEED  random graphs of floats and integers as score edits, every other one under a causal mask
    captures i/n       a share of captured tensors: every type, strides, kinds of indices; forty at once
    packed i/n         a share of groups of heads, types, masks, edits and schedulers, each at some lengths

Each call runs with several seeds and completion policies. Prints one JSON list, a row a run as forward_emulated's, and rows
(case, not_covered) for calls that the kernel does not take."""
import contextlib
import importlib.util
import io
import json
import sys
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Callable

KERNEL, PART, *WANTED = sys.argv[1:]
sys.argv = [sys.argv[0], KERNEL]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import conftest  # noqa: E402, F401
import captured  # noqa: E402
import forward_emulated as emulated  # noqa: E402
import conditioning  # noqa: E402
import torch  # noqa: E402
from forward_emulated import Case, NotCovered  # noqa: E402

from flexfa4 import mods  # noqa: E402
from flexfa4.ir import DType, Op  # noqa: E402
from flexfa4.ir.text import show  # noqa: E402

HALVES = (torch.bfloat16, torch.float16)
EDGES = (1, 2, 63, 64, 65, 96, 127, 128, 129, 200, 255, 256, 257, 300, 383, 384, 385, 511, 512, 513, 600)
DIMS = ((64, 64), (96, 96), (128, 128), (192, 128), (31, 17), (72, 40))
HEADS = ((1, 1), (4, 2), (6, 1), (3, 3))
PAIRS = 12
GROUPS = (2, 3, 4, 5, 8, 12, 16)


def situations(names: list[str], others: bool = False) -> list[dict]:
    rows = []
    for path in sorted((HERE.parent / "cases").glob("case*.py")):
        if names and (path.stem in names) is others:
            continue
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if module.EXPECT.get("else_kind", module.EXPECT["kind"]) == "error":
            continue
        for i, made in enumerate(module.variants("cpu") if hasattr(module, "variants") else [module.make("cpu")]):
            with contextlib.redirect_stdout(io.StringIO()):
                rows += situation(path.stem if i == 0 else f"{path.stem}, {i}", made)
                if "mutate" in made:
                    made["mutate"]()
                    rows += situation(f"{path.stem}, changed", made)
    return rows


def situation(name: str, made: dict) -> list[dict]:
    (batch, heads, q_len, dim), (_, kv_heads, kv_len, _) = made["q_shape"], made["kv_shape"]
    dtype = made["dtype"] if made["dtype"] in HALVES else torch.bfloat16
    case = Case(name, (q_len, kv_len), (heads, kv_heads), (dim, made["v_dim"]), batch, dtype, made["score_mod"], made["mask_mod"])
    bounds = [mod and emulated.bind(mod, kind) for mod, kind in ((made["score_mod"], "score"), (made["mask_mod"], "mask"))]
    case = replace(case, score_mod=made.get("ref_score_mod", made["score_mod"]))
    try:
        drawn = [inputs_of(made, dtype, seed) for seed in range(emulated.PLACE.inputs)]
        return [row for tensors in drawn
                for row in emulated.run_on(case, tensors, [*bounds, None], of_hardware(bounds[0], case, tensors))]
    except NotCovered as refused:
        return [dict(case=name, not_covered=str(refused))]


def of_hardware(edit, case: Case, tensors: tuple) -> tuple:
    """What the unit's tanh explains of a call (see `emulated.run_on`); nothing where no bound is known."""
    if edit is None or Op.TANH.name not in edit.graph.ops:
        return ()
    try:
        return Scored(edit, case, tensors).explained
    except conditioning.Unsure:
        return ()


def inputs_of(made: dict, dtype: torch.dtype, seed: int) -> tuple:
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(*shape, generator=g).to(dtype)
               for shape in (made["q_shape"], made["kv_shape"], (*made["kv_shape"][:3], made["v_dim"])))
    q = (q * made.get("q_gain", 1.0)).to(dtype)
    return (q, q, q) if made.get("alias_qkv") else (q, k, v)


def lengths(share: str) -> list[dict]:
    """Pairs of lengths and heads differ from one combination to the next; the first keys of each pair are at an edge."""
    i, n = map(int, share.split("/"))
    combinations = [(dims, dtype, mask) for dims in DIMS for dtype in HALVES for mask in ("plain", "causal", "window")]
    rows = []
    for number, (dims, dtype, mask) in list(enumerate(combinations))[i::n]:
        draw = torch.Generator().manual_seed(number)
        for pair in range(PAIRS):
            q_len, kv_len = (EDGES[at] for at in torch.randint(len(EDGES), (2,), generator=draw).tolist())
            mod = {"plain": None, "causal": mods.causal_bottom_right(q_len, kv_len), "window": mods.sliding_window(100)}[mask]
            name = f"{dims} {dtype} {mask} {q_len} x {kv_len}"
            rows += emulated.run(Case(name, (q_len, kv_len), HEADS[pair % 4], dims, 1 + pair % 2, dtype, mask_mod=mod,
                                      workers=(None, 1, 2)[pair % 3]))
    return rows


def captures(share: str) -> list[dict]:
    """Score edits are under a causal mask, so that tiles of both kinds run them."""
    i, n = map(int, share.split("/"))
    lengths, rows = (200, 300), []
    for name, made in [("many captures and literals", dict(score_mod=captured.many)), *captured.every()][i::n]:
        made = {"mask_mod": mods.causal_bottom_right(*lengths), **made}
        rows += emulated.run(Case(name, lengths, (captured.HEADS, 2), (64, 64), workers=3, **made))
    return rows


def packed(share: str) -> list[dict]:
    """Groups of heads by what else a call has, drawn: lengths at edges, head dims, types, batches, CTAs, orders of work."""
    i, n = map(int, share.split("/"))
    rows = []
    for number, (group, kind) in list(enumerate((g, k) for g in GROUPS for k in range(8)))[i::n]:
        draw = torch.Generator().manual_seed(number)

        def one_of(things):
            return things[torch.randint(len(things), (), generator=draw).item()]

        q_len, kv_len, kv_heads = one_of((1, 2, 3, 7, 16, 31, 64, 65, 100, 130)), one_of(EDGES), one_of((1, 2))
        mask = (None, mods.causal_bottom_right(q_len, kv_len), mods.sliding_window(90), emulated.at_some)[kind % 4]
        edits = None, mods.tanh_softcap(2.0), emulated.slopes(group * kv_heads), emulated.by_distance(group * kv_heads, 700)
        dims, dtype, edit = one_of(DIMS), one_of(HALVES), one_of(edits) if kind < 4 else None
        ordered = mask is not None and one_of((False, True))
        name = f"{group} heads for {kv_heads}, {q_len} x {kv_len}, {dims} {dtype}, {kind} {edits.index(edit)}"
        rows += emulated.run(Case(name, (q_len, kv_len), (group * kv_heads, kv_heads), dims, one_of((1, 2)), dtype, edit, mask,
                                  one_of((None, emulated.gated)), ordered, one_of((None, 1, 2)),
                                  scheduler=one_of(("static", "counter", "clc"))))
    return rows


def drawn(kind: str, count: int, seed: int, take: Callable, **options) -> list:
    """What `take` makes of random graphs, `count` different ones that it takes: it returns None for others."""
    import random_graphs
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    found: dict[str, object] = {}

    @seeded(seed)
    @settings(max_examples=100 + 100 * count, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck),
              deadline=None)
    @given(random_graphs.cases(kind, specials=False, in_range=True, static_operands=True, float_to_int=False, **options))
    def gather(made):
        text = show(made.bound.graph)
        if len(found) < count and text not in found and (taken := take(made.bound)) is not None:
            found[text] = taken

    gather()
    assert len(found) == count, f"{len(found)} of {count} graphs"
    return list(found.values())


def graphs(count: int, seed: int) -> list[dict]:
    """Integer graphs alone: their arithmetic is exact, and a mask is the same mask or another one."""
    integers = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.FLOORDIV, Op.MOD, Op.MIN, Op.MAX, Op.AND, Op.OR, Op.XOR, Op.NOT, Op.SHR,
                          Op.LT, Op.LE, Op.EQ, Op.NE, Op.WHERE, Op.NEG, Op.ABS, Op.SIGN, Op.LOAD})

    def take(bound):
        visible = table(bound)
        return (bound, visible) if 0.02 < visible.double().mean() < 0.98 else None

    rows = []
    masks = drawn("mask", count, seed, take, ops=integers, dtypes=(DType.I64, DType.I32, DType.BOOL), max_ops=14)
    for i, (bound, visible) in enumerate(masks):
        case = Case(f"graph {seed}.{i}", (Q_LEN, KV_LEN), (4, 2), ((64, 64), (128, 128))[i % 2], 2,
                    mask_mod=lambda b, h, q, kv, visible=visible: visible[b, h, q, kv])
        # Rows may see few keys: nothing is to be explained, but see there.
        for seen in range(emulated.PLACE.inputs):
            rows += emulated.run_on(case, emulated.inputs(case, seen), [None, bound, None], (0.0, 0.0))
    return rows


def scores(count: int, seed: int) -> list[dict]:
    """Score edits of which `Scored.fit`: what their arithmetic explains must leave other faults to be seen."""
    def take(bound):
        for i in range(2):
            try:
                made = scored(bound, i)
            except conditioning.Unsure:
                return None
            if not made.fit():
                return None
        return bound

    rows = []
    dtypes = DType.F32, DType.I64, DType.I32, DType.BOOL
    for i, bound in enumerate(drawn("score", count, seed, take, ops=conditioning.OPS, dtypes=dtypes, max_ops=14)):
        made = scored(bound, i)
        bounds = [bound, made.case.mask_mod and emulated.bind(made.case.mask_mod, "mask"), None]
        rows += emulated.run_on(replace(made.case, name=f"score {seed}.{i}"), made.inputs, bounds, made.explained)
    return rows


class Scored:
    """A score graph in a call. explained: see `emulated.run_on`."""

    def __init__(self, bound, case: Case, inputs: tuple):
        self.inputs = q, k, v = inputs
        wide = [t.double() for t in (q, k, v)]
        group = case.heads[0] // case.heads[1]
        kt, self.v = wide[1].repeat_interleave(group, 1).transpose(-1, -2), wide[2].repeat_interleave(group, 1)
        scale = case.dims[0] ** -0.5
        leaves = {Op.SCORE: wide[0] @ kt * scale}
        for axis, op in enumerate((Op.B, Op.H, Op.Q, Op.KV)):
            shape = [1] * axis + [-1] + [1] * (3 - axis)
            leaves[op] = torch.arange(leaves[Op.SCORE].shape[axis]).view(shape)
        sum_error = wide[0].abs() @ kt.abs() * (scale * 2.0**-22)
        self.found = conditioning.evaluate(bound, leaves, sum_error)
        self.scores = self.found.value.expand(leaves[Op.SCORE].shape)
        self.case = replace(case, score_mod=lambda s, b, h, q, kv: self.scores[b, h, q, kv])

    def fit(self) -> bool:
        """Whether the scores are finite and differ within rows, and what is explained is no more than rounding."""
        scores, (out, lse) = self.scores, self.explained
        if not (scores.isfinite().all() and scores.abs().max() < 500 and lse.max() < 0.1):
            return False
        differ = (scores.amax(-1) - scores.amin(-1)).mean() > 0.05
        return bool(differ and out.max() <= 2.0**-8 * (self.weights @ self.v.abs()).max())

    @cached_property
    def weights(self) -> torch.Tensor:
        mask = self.case.mask_mod
        hidden = ~emulated.reference.dense_mask(mask, self.scores.shape) if mask else torch.tensor(False)
        return torch.softmax(self.scores.masked_fill(hidden, float("-inf")), -1).nan_to_num(0.0)

    @cached_property
    def explained(self) -> tuple:
        """A score that is moved by d moves its weight w by w d; what is of second order is an eighth of that for d up to 0.1."""
        moved = 1.125 * self.weights * (self.found.error + 2.0**-22 * self.scores.abs())
        sizes = self.v.abs()
        return moved @ sizes + moved.sum(-1, keepdim=True) * (self.weights @ sizes), moved.sum(-1)


def scored(bound, i: int) -> Scored:
    """The i-th call: head dims and mask differ."""
    mask = mods.causal_bottom_right(Q_LEN, KV_LEN) if i % 2 else None
    case = Case("", (Q_LEN, KV_LEN), (4, 2), ((64, 64), (128, 128))[i % 2], 2, mask_mod=mask)
    return Scored(bound, case, emulated.inputs(case))


Q_LEN, KV_LEN = 150, 300


def table(bound) -> torch.Tensor:
    """A mask graph as bool [2, 4, Q_LEN, KV_LEN], by the interpreter."""
    from flexfa4.interpret import evaluate

    q, kv = torch.arange(Q_LEN)[:, None], torch.arange(KV_LEN)[None]
    each = [evaluate(bound, {Op.B: b, Op.H: h, Op.Q: q, Op.KV: kv}) for b in range(2) for h in range(4)]
    return torch.stack([e.expand(Q_LEN, KV_LEN) for e in each]).view(2, 4, Q_LEN, KV_LEN)


if __name__ == "__main__":
    made = {"cases": lambda: situations(WANTED), "others": lambda: situations(WANTED, others=True),
            "lengths": lambda: lengths(WANTED[0]), "captures": lambda: captures(WANTED[0]), "packed": lambda: packed(WANTED[0]),
            "graphs": lambda: graphs(*map(int, WANTED)), "scores": lambda: scores(*map(int, WANTED))}[PART]()  # fmt: skip
    print("\n" + json.dumps(made))
