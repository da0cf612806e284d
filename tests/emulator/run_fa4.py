"""Run by test_fa4.py in a process of its own for each arch: flash-attn-4 forward against float64. Prints one JSON list."""

import json
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]
ARCH, SEEDS = sys.argv[1], int(sys.argv[2])
import fa4  # noqa: E402

fa4.setup(ARCH)
import flash_attn.cute.interface as interface  # noqa: E402

# name: batch, query length, key length, heads, key heads, head dim, value head dim, arguments
CASES = {
    "causal D=128": (1, 512, 512, 1, 1, 128, None, dict(causal=True)),
    "causal D=64": (2, 300, 300, 2, 2, 64, None, dict(causal=True)),
    "GQA": (1, 256, 512, 4, 2, 128, None, dict(causal=True)),
    "full": (1, 384, 512, 2, 2, 128, None, {}),
}
if ARCH == "sm_100a":
    CASES |= {
        "window": (1, 640, 640, 1, 1, 128, None, dict(window_size_left=100, window_size_right=0)),
        "D=192/128": (1, 256, 256, 1, 1, 192, 128, dict(causal=True)),
    }
rows = []
for name, (batch, s_q, s_k, heads, kv_heads, dim, dim_v, kwargs) in CASES.items():
    q, k, v = fa4.inputs(batch, s_q, s_k, heads, kv_heads, dim, dim_v)
    out64, lse64 = fa4.reference(
        q, k, v, kwargs.get("causal", False), (kwargs.get("window_size_left"), kwargs.get("window_size_right"))
    )
    for seed in range(SEEDS):
        for completion in ("immediate", "random", "late"):
            with fa4.device(ARCH, seed=seed, completion=completion) as dev:
                out, lse = interface._flash_attn_fwd(q, k, v, return_lse=True, **kwargs)[:2]
            rows.append(
                dict(
                    case=name,
                    seed=seed,
                    completion=completion,
                    out=(out.double() - out64).abs().max().item(),
                    lse=(lse.double() - lse64).abs().max().item(),
                    findings=dev.findings,
                    launches=len(dev.launches),
                )
            )
print(json.dumps(rows))
