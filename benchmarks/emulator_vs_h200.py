"""flash-attn-4's sm_90a kernels: emulator output against H200 output on the same inputs, eight configurations, both passes.

    python benchmarks/emulator_vs_h200.py gpu FILE.pt       on the GPU: inputs and outputs of each configuration
    python benchmarks/emulator_vs_h200.py compare FILE.pt   anywhere: the emulator on the saved inputs, and a table

The table counts values that are bit-equal, those one bfloat16 step apart, and the rest; the logarithm's largest difference. Needs
flash-attn-4."""

import json
import sys
import time
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "emulator")]
GRADIENTS = ("dq", "dk", "dv")


def configurations():
    """Backward cases (both passes run): sizes small enough for the emulator, deterministic so that dQ's sums have one order."""
    from fa4_cases import Case

    def case(name, *sizes, **options):
        return Case(name, *sizes, options=dict(deterministic=True) | options, backward=True)

    return [
        case("D=128 causal", 1, 512, 512, 2, 2, 128, causal=True),
        case("D=128 full", 2, 384, 512, 1, 1, 128),
        case("D=64 causal", 2, 512, 512, 2, 2, 64, causal=True),
        case("D=64 full, uneven lengths", 1, 300, 450, 2, 2, 64),
        case("GQA 4:1 D=128 causal", 1, 384, 384, 4, 1, 128, causal=True),
        case("window D=64", 1, 640, 640, 2, 2, 64, window_size_left=100, window_size_right=0),
        case("D=96 causal", 1, 384, 384, 2, 2, 96, causal=True),
        Case("D=128 causal, large scores", 1, 512, 512, 1, 1, 128, options=dict(deterministic=True, causal=True), backward=True,
             scale=2.0),
    ]


def both_passes(case, q, k, v, dout) -> dict:
    """out, lse, dq, dk, dv through flash-attn-4's own interface."""
    import flash_attn.cute.interface as interface

    options = dict(case.options)
    deterministic = options.pop("deterministic")
    out, lse = interface._flash_attn_fwd(q, k, v, return_lse=True, **options)[:2]
    grads = interface._flash_attn_bwd(q, k, v, out, dout, lse, deterministic=deterministic, **options)
    return dict(out=out, lse=lse) | dict(zip(GRADIENTS, grads))


def on_gpu(target: Path) -> None:
    import torch
    import fa4_cases

    runs = []
    for number, case in enumerate(configurations()):
        tensors = fa4_cases.inputs(case, seed=number)
        start = time.perf_counter()
        found = both_passes(case, *(t.cuda() for t in tensors))
        again = both_passes(case, *(t.cuda() for t in tensors))
        torch.cuda.synchronize()
        same = {name: bool(torch.equal(found[name], again[name])) for name in found}
        saved = dict(zip(("q", "k", "v", "dout"), tensors)) | {name: t.cpu() for name, t in found.items()}
        runs.append(dict(name=case.name, device=torch.cuda.get_device_name(), repeatable=same, tensors=saved))
        print(case.name, f"{time.perf_counter() - start:.1f} s, the same twice: {same}", flush=True)
        torch.save(runs, target)


def steps(a, b):
    """Distance in bfloat16 steps between equally shaped tensors."""
    import torch

    def ordered(x):
        bits = x.view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return (ordered(a) - ordered(b)).abs()


def compare(source: Path) -> None:
    import fa4

    fa4.setup("sm_90a")
    import fa4_cases
    import torch

    rows = []
    print("| configuration | value | bit-equal | one step | further | largest difference |\n|---|---|---|---|---|---|")
    for case, saved in zip(configurations(), torch.load(source)):
        t = saved["tensors"]
        assert saved["name"] == case.name, f"{source} holds {saved['name']!r}: run the GPU half again"
        found, _ = fa4_cases.run(case, t["q"], t["k"], t["v"], t["dout"], dict(arch="sm_90a", completion="immediate"))
        wanted = fa4_cases.reference(case, t["q"], t["k"], t["v"], t["dout"])
        for name in ("out", *GRADIENTS):
            apart = steps(found[name], t[name])
            row = dict(configuration=case.name, value=name, equal=(apart == 0).double().mean().item(),
                       one=(apart == 1).double().mean().item(), further=(apart > 1).double().mean().item(),
                       largest=(found[name].double() - t[name].double()).abs().max().item(),
                       gpu_error=(t[name].double() - wanted[name]).abs().max().item())
            rows.append(row)
            shares = f"{row['equal']:.3%} | {row['one']:.3%} | {row['further']:.4%}"
            print(f"| {case.name} | {name} | {shares} | {row['largest']:.2e} |", flush=True)
        lse = (found["lse"].double() - t["lse"].double()).abs().max().item()
        rows.append(dict(configuration=case.name, value="lse", largest=lse))
        print(f"| {case.name} | lse | | | | {lse:.2e} |", flush=True)
    (ROOT / "benchmarks" / "results" / "emulator_vs_h200.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    from command_line import check

    check(__doc__, range(2, 3), first=("gpu", "compare"))
    dict(gpu=on_gpu, compare=compare)[sys.argv[1]](Path(sys.argv[2]))
