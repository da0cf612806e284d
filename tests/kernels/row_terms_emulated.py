"""Terms of the row alone in a score graph, in the emulator and in the tiled engine, against dense float64: what they do to the
output and its LSE where they are infinite, NaN, huge or a function of the row; run by keyless_emulated.py.

`run` gives a row for each engine and mod: the largest errors, infinite where NaN or infinities differ."""
import forward_emulated as emulated
import torch
from forward_emulated import Case

from flexfa4 import flex_attention
from flexfa4.trace import bind

LENGTHS, DIM, SCALE = (60, 200), 64, 0.125
GEN = torch.Generator().manual_seed(0)
ODD = torch.tensor([0.0, 3.0, -7.0, 1e4, -1e4, torch.inf, -torch.inf, torch.nan, 80.0, -200.0]).repeat(6)
DRAWN = [torch.where(torch.rand(60, generator=GEN) < 0.3, ODD[torch.randperm(60, generator=GEN)],
                     torch.randn(60, generator=GEN) * 10.0**k) for k in (0, 2, 4)]
GAINS = torch.tensor([0.5, -2.0, 1e3, -0.25])
COLUMN = torch.linspace(-1, 1, 200)
STEP = torch.tensor(2.5)
# The score without the row's term, and the term.
MODS = {
    "infinities and NaN": (lambda s, b, h, q, kv: s, lambda b, h, q: ODD[q]),
    "drawn": (lambda s, b, h, q, kv: s, lambda b, h, q: DRAWN[0][q] - DRAWN[1][q] * GAINS[h]),
    "drawn, a gain": (lambda s, b, h, q, kv: s * GAINS[h], lambda b, h, q: DRAWN[1][q] * 0.5),
    "drawn, a bias of the key": (lambda s, b, h, q, kv: s + COLUMN[kv], lambda b, h, q: DRAWN[2][q]),
    "drawn, a slope": (lambda s, b, h, q, kv: s + 0.01 * (kv - q), lambda b, h, q: DRAWN[1][q] + STEP * 3.7),
    "drawn, a mask by a number": (lambda s, b, h, q, kv: torch.where(kv <= 2 * q, s, -1e10), lambda b, h, q: DRAWN[1][q]),
    "drawn, bounded": (lambda s, b, h, q, kv: torch.tanh(s), lambda b, h, q: DRAWN[2][q]),
    "functions": (lambda s, b, h, q, kv: 0.5 * s, lambda b, h, q: torch.exp(DRAWN[0][q]) + torch.log(ODD[q] + 300.0)),
}


def dense(q, k, v, base, term):
    """(out, lse, term) in float64, with the term kept apart. -inf leaves no key."""
    heads, at, keys = torch.arange(4).view(-1, 1, 1), torch.arange(LENGTHS[0]).view(-1, 1), torch.arange(LENGTHS[1])
    q, k, v = q.double(), k.double().repeat_interleave(2, 1), v.double().repeat_interleave(2, 1)
    scores = base(q @ k.mT * SCALE, 0, heads, at, keys).double()
    added = term(0, heads, at).double().expand(1, 4, LENGTHS[0], 1)
    out = (scores.softmax(-1) @ v).masked_fill(added.isnan() | (added == torch.inf), torch.nan)
    out = out.masked_fill(added == -torch.inf, 0.0)
    lse = (scores.logsumexp(-1, keepdim=True) + added).masked_fill(added == torch.inf, torch.nan)
    return out, lse.squeeze(-1), added


def errors(got, want, left_out=torch.tensor(False)) -> float:
    """Of what is larger than 1 in its own size. left_out: where errors do not count, but NaN and infinities do."""
    got, want = got.double(), want.double()
    same = (got == want) | got.isnan() & want.isnan() | got.isfinite() & want.isfinite() & left_out
    apart = ((got - want).abs() / want.abs().clamp(min=1.0)).masked_fill(same, 0.0)
    return float("inf") if apart.isnan().any() else apart.max().item()


def run() -> list[dict]:
    rows = []
    for name, (base, term) in MODS.items():
        def mod(s, b, h, q, kv, base=base, term=term):
            return base(s, b, h, q, kv) + term(b, h, q)

        q, k, v = emulated.inputs(Case(name, LENGTHS, (4, 2), (DIM, DIM)))
        bounds = [bind(mod, "score"), None, None]
        plan = emulated.engine.choose(emulated.KERNEL, q, k, v, SCALE, bounds, False).plan
        lists = emulated.lists_of(Case(name, LENGTHS), plan, q, k)
        with emulated.places.emulator.device(emulated.ARCH, seed=1, completion="random") as dev:
            crew = emulated.kernels.Crew(emulated.kernels.work_items(plan, q, k, lists), None, dev.tensor)
            found = emulated.kernels.forward(plan, (q, k, v), SCALE, bounds, lists, crew)
        tiled = flex_attention(q.float(), k.float(), v.float(), score_mod=mod, enable_gqa=True, return_lse=True)
        for engine, (out, lse) in ((emulated.KERNEL, found), ("tiled", tiled)):
            want, want_lse, added = dense(q, k, v, base, term)
            # Blackwell's kernel leaves the term to the LSE; a sum with a score, in float32, is rounded by 2^-12 from here on.
            rounded = (added.abs() >= 2.0**12) & torch.tensor(engine != "sm100")
            rows.append(dict(engine=engine, mod=name, out=errors(out, want, rounded), lse=errors(lse, want_lse),
                             infinite=int((want_lse.abs() == torch.inf).sum()), nan=int(want_lse.isnan().sum())))
    return rows

