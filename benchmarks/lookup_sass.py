"""Instructions a score of mods that look up captures at distances, keys and other affine indices, on Blackwell; no GPU.

    python benchmarks/lookup_sass.py

D=128, bf16, one head a query tile unless the name says else; all instructions of a softmax thread a score, as `flexfa4 inspect
--sass` counts them, and the bytes that the kernel spills. Writes results/lookup_sass.md and docs/performance_blackwell.md. Needs
nvidia-cutlass-dsl and nvdisasm; takes about 2 s a mod."""
from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
import conftest  # noqa: E402, F401
import performance_page  # noqa: E402
import torch  # noqa: E402

from flexfa4.emit import sass  # noqa: E402
from flexfa4.emit.cubin import kernel_facts  # noqa: E402
from flexfa4.ir import DType  # noqa: E402
from flexfa4.plan import Signature, plan_forward  # noqa: E402
from flexfa4.plan.build import RowLayout  # noqa: E402
from flexfa4.runtime import compiler  # noqa: E402
from flexfa4.trace import bind  # noqa: E402

# Instructions of a FULL tile, of a PARTIAL one, and spilled bytes, at revision 133f96a: look-ups but float sums for each score.
BEFORE = {
    "where(t[h, q - kv] != 0, s, s / 2), int64": (19.16, 20.84, 0), "the same, bool": (19.16, 20.98, 216),
    "the same, float32": (20.24, 22.14, 232), "mask t[h, q - kv] != 0, int64": (3.89, 22.59, 0),
    "the same mask, bool": (3.89, 20.22, 0),
    "where(t[h, q - kv] == t[h, kv], s, s / 2), int32": (28.20, 31.84, 920), "the same, int64": (28.81, 31.02, 48),
    "s + t[h, q - kv] / 4, int32": (5.76, 7.45, 0), "s * t[h, q - kv], float32": (17.21, 18.84, 16),
    "s * t[h, kv], float32": (14.02, 15.67, 8), "s + t[h, q - kv] + t[h, kv], float32": (15.95, 17.67, 0),
    "s * t[h, kv] + t[h, kv - q], float32": (15.70, 17.03, 40), "s * t[h, q - kv] + t[h, kv - q], float32": (18.47, 20.12, 48),
    "s + t[h, q + kv], float32": (11.32, 12.00, 0), "8 heads a tile: s + t[h, q - kv], float32": (16.62, 18.29, 0),
    "8 heads a tile: s * t[h, q - kv], float32": (17.83, 19.20, 128),
    "4 heads a tile: s * t[h, q - kv] + t[h, kv - q], float32": (26.59, 28.05, 0),
}  # fmt: skip
FAR = 460


def mods() -> list[tuple]:
    """(score mod, mask mod, heads a tile) of each of BEFORE."""
    def table(dtype):
        return torch.ones(4, 2 * FAR, dtype=dtype)

    def halved(dtype):
        t = table(dtype)
        return lambda s, b, h, q, kv: torch.where(t[h, q - kv + FAR] != 0, s, s * 0.5), None, 1

    def masked(dtype):
        t = table(dtype)
        return None, lambda b, h, q, kv: (t[h, q - kv + FAR] != 0) | (kv == q), 1

    def matched(dtype):
        t = table(dtype)
        return lambda s, b, h, q, kv: torch.where(t[h, q - kv + FAR] == t[h, kv], s, s * 0.5), None, 1

    t, u, whole = table(torch.float32), table(torch.float32), table(torch.int32)
    return [
        halved(torch.int64), halved(torch.bool), halved(torch.float32), masked(torch.int64), masked(torch.bool),
        matched(torch.int32), matched(torch.int64),
        (lambda s, b, h, q, kv: s + 0.25 * whole[h, q - kv + FAR], None, 1),
        (lambda s, b, h, q, kv: s * t[h, q - kv + FAR], None, 1),
        (lambda s, b, h, q, kv: s * t[h, kv], None, 1),
        (lambda s, b, h, q, kv: s + t[h, q - kv + FAR] + u[h, kv], None, 1),
        (lambda s, b, h, q, kv: s * t[h, kv] + u[h, kv - q + FAR], None, 1),
        (lambda s, b, h, q, kv: s * t[h, q - kv + FAR] + u[h, kv - q + FAR], None, 1),
        (lambda s, b, h, q, kv: s + t[h, q + kv], None, 1),
        (lambda s, b, h, q, kv: s + t[h, q - kv + FAR], None, 8),
        (lambda s, b, h, q, kv: s * t[h, q - kv + FAR], None, 8),
        (lambda s, b, h, q, kv: s * t[h, q - kv + FAR] + u[h, kv - q + FAR], None, 4),
    ]  # fmt: skip


def measured(score, mask, pack: int) -> tuple[float, float, int]:
    """As BEFORE has them."""
    graphs = tuple(bind(mod, kind).graph for mod, kind in ((score, "score"), (mask, "mask")) if mod is not None)
    plan = plan_forward("sm100", DType.BF16, 128, 128, graphs, RowLayout(pack))
    dense = tuple(True for g in graphs for _ in g.captures)
    cubin = compiler.cubin(Signature(plan, mask is not None, mask is not None, contiguous=dense))
    ways, (facts,) = sass.tile_ways(sass.disassemble(cubin), plan.tiles.kv_tile), kernel_facts(cubin)
    return len(ways[0]) / plan.tiles.kv_tile, len(ways[-1]) / plan.tiles.kv_tile, facts.frame_bytes


def table() -> str:
    lines = ["| mod | FULL tile, before | now | PARTIAL tile, before | now | spilled bytes, before | now |",
             "|---|--:|--:|--:|--:|--:|--:|"]
    for (name, before), made in zip(BEFORE.items(), mods(), strict=True):
        pairs = zip(before, measured(*made))
        cells = [f"{x:.2f} | {y:.2f}" if isinstance(y, float) else f"{x} | {y}" for x, y in pairs]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> int:
    performance_page.publish("lookup_sass.py", table())
    return 0


if __name__ == "__main__":
    from command_line import check

    check(__doc__)
    sys.exit(main())
