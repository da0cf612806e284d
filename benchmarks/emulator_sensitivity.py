"""Deletes each synchronisation statement of flash-attn-4's kernels in turn, and counts the deletions that the emulator sees.

    python benchmarks/emulator_sensitivity.py sm_90a-forward [seconds]     (also the other names in CASES)
    python benchmarks/emulator_sensitivity.py table

Needs flash-attn-4. Stops after `seconds` (default 300) and goes on from its results when run again. Run from the checkout.
"""

import json
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

warnings.simplefilter("ignore")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "emulator")]
import fa4  # noqa: E402

from flexfa4.emulator import sensitivity  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
# Immediate completion hides most, late completion little; each of the three ways to interleave warps occurs.
SCHEDULES = [(0, "late"), (1, "random"), (2, "late"), (5, "late"), (3, "late"), (8, "random")]
PLAIN = [(512, 512, 1, False), (512, 512, 1, True)]
SHIFTED = [*PLAIN, (460, 512, 1, False), (460, 700, 1, False)]  # the diagonal crosses two tiles of keys
SMALL = [(256, 256, 1, False), (256, 256, 1, True), (512, 512, 1, False)]
# name: arch, causal, head dimensions of Q and K and of V, (query length, key length, heads, scores that grow as the kernel goes)
# of each launch. Those of the bar come first; the others say how much the share depends on the kernel chosen.
CASES = {
    "sm_90a-forward": ("sm_90a", False, 128, 128, PLAIN),
    "sm_100a-forward": (
        "sm_100a",
        False,
        128,
        128,
        [(512, 512, 3, False), (512, 512, 3, True), (512, 128, 3, False), (512, 256, 3, False)],
    ),
    "sm_100a-backward": ("sm_100a", True, 128, 128, SMALL),
    "sm_90a-forward-causal": ("sm_90a", True, 128, 128, SHIFTED),
    "sm_90a-forward-192": ("sm_90a", True, 192, 128, SHIFTED),
    "sm_100a-backward-64": ("sm_100a", True, 64, 64, SMALL),
}


def records(name: str) -> list[list]:
    """Recorded launches: a list for each kernel (several for the backward), one launch for each shape. bf16."""
    arch, causal, dim, dim_v, shapes = CASES[name]
    fa4.setup(arch, sms=2)  # two SMs, so that persistent kernels walk several tiles
    import flash_attn.cute.interface as interface
    import torch

    kept = []
    for s_q, s_k, heads, grows in shapes:
        q, k, v = fa4.inputs(1, s_q, s_k, heads, heads, dim, dim_v, seed=3)
        if grows:  # keys are walked last to first; a growing maximum takes the rescaling branch
            k = (k.float() * torch.linspace(4, 0.25, s_k)[None, :, None, None]).bfloat16()
        with fa4.device(arch, completion="immediate") as dev:
            dev.recorded = []
            out, lse = interface._flash_attn_fwd(q, k, v, causal=causal, return_lse=True)[:2]
            if "backward" in name:
                dev.recorded = []
                dout = fa4.inputs(1, s_q, s_k, heads, heads, dim_v, seed=4)[0]
                interface._flash_attn_bwd(q, k, v, out, dout, lse, causal=causal)
        kept.append(dev.recorded)
    return [list(kernel) for kernel in zip(*kept)]


def sweep(name: str, seconds: float) -> bool:
    """Judges what is not judged yet. Returns whether all is done."""
    path, start = RESULTS / f"emulator_sensitivity_{name}.json", time.monotonic()
    done = json.loads(path.read_text()) if path.exists() else {}
    for launches in records(name):
        if len({r.ptx for r in launches}) != 1:
            raise SystemExit("the shapes of one case must share a kernel")
        ptx, kernel = launches[0].ptx, launches[0].kernel
        short = next(word for word in ("preprocess", "postprocess", "bwd", "fwd") if word in kernel)
        judge = sensitivity.Judge(launches, SCHEDULES)
        rows = done.setdefault(short, {"baseline": sorted(map(list, judge.known[True])), "sites": {}})["sites"]
        for site in sensitivity.sites(ptx):
            key = f"{site.line}: {site.text[:120]}"
            if key in rows:
                continue
            if time.monotonic() - start > seconds:
                return False
            verdict = judge(sensitivity.without(ptx, site), site)
            flags = dict(strict=verdict.strict, executed=verdict.executed)
            rows[key] = dict(kind=site.kind, how=verdict.how, **flags, said=verdict.message[:300], why=verdict.why)
            path.write_text(json.dumps(done, indent=1))
    return True


def table() -> str:
    """The results as Markdown: shares, how deletions were caught, and what was not caught."""
    lines = ["| kernel | deletions | caught | of these only by strict rules | not caught |", "|---|---|---|---|---|"]
    missed, ways = [], []
    for name in CASES:
        path = RESULTS / f"emulator_sensitivity_{name}.json"
        if not path.exists():
            continue
        for kernel, data in json.loads(path.read_text()).items():
            rows = data["sites"]
            for label, apart in (("", False), (" (tcgen05.wait::ld, setmaxnreg)", True)):
                some = {k: r for k, r in rows.items() if (r["kind"] in sensitivity.APART) == apart}
                if not some:
                    continue
                caught = [r for r in some.values() if r["how"]]
                strict = sum(r["strict"] for r in caught)
                share = f"{len(caught)} ({100 * len(caught) / len(some):.1f}%)"
                lines.append(f"| {name} {kernel}{label} | {len(some)} | {share} | {strict} | {len(some) - len(caught)} |")
                missed += [f"- {name} {kernel}, line `{k}`: {r.get('why', '')}" for k, r in some.items() if not r["how"]]
            count = Counter(r["how"] for r in rows.values() if r["how"])
            ways.append(f"- {name} {kernel}: " + ", ".join(f"{how} {n}" for how, n in count.most_common()))
    return "\n".join([*lines, "", "First sign of each caught deletion:", "", *ways, "", "Not caught:", "", *missed, ""])


if __name__ == "__main__":
    from command_line import check

    check(__doc__, range(1, 3), first=(*CASES, "table"))
    what, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 300
    if what != "table":
        print("complete" if sweep(what, seconds) else "not complete: run again")
    text = table()
    (RESULTS / "emulator_sensitivity.md").write_text(text)
    print(text)
