"""flex_attention with a kernel that stands in, and then with its own, in the emulator, against dense float64 attention. Run by
test_stand_in_computes.py in a process of its own; argument: the architecture. Prints one JSON object: by call the largest
errors of out and lse with either kernel, relative to the largest value, and what was compiled while a call waited."""
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
ARCH, sys.argv = sys.argv[1], sys.argv[:1]  # the DSL parses the options of the process
import conftest  # noqa: E402, F401
from flexfa4 import emulator  # noqa: E402

GPU = {"sm90": "sm_90a", "sm100": "sm_100a"}[ARCH]
emulator.prepare(GPU)
import torch  # noqa: E402

from flexfa4 import create_block_mask, flex_attention, reference  # noqa: E402
from flexfa4.plan import signature_from_json  # noqa: E402
from flexfa4.runtime import apart, compiler, engine, kernels, lists, repeat, standin, store  # noqa: E402

torch.set_num_threads(1)
RANDOM = torch.Generator().manual_seed(0)
MADE, WAITED = {}, []


def on_the_emulator(device) -> None:
    """Kernels are compiled here: those that a process apart would compile when their entry is loaded."""
    def compiled(kind, signature):
        made = getattr(compiler, kind)(signature, runs_here=True)
        return lambda *arguments: made(*kernels._wrapped(arguments, device.tensor))

    def make(kind, text, signature):
        entry = kernels._entry(kind, text, signature)
        if not store.path_of(entry).exists():
            WAITED.append(kind)
        elif entry in MADE:
            kind, signature = MADE[entry]
        return compiled(kind, signature)

    def launch(job, held):
        job._process = type("Running", (), dict(returncode=None))
        MADE.update({key: (kind, signature_from_json(text)) for kind, key, text in job.requests})

    engine.architecture = lambda device: ARCH
    kernels.workers_of = lists.workers_of = lambda device: 3
    kernels.stream_of = lambda device: 0
    kernels._make = make
    store.usable, store.linker = (lambda: True), (lambda: "ld")
    apart.Job._launch = launch


def normal(*shape):
    return torch.randn(*shape, generator=RANDOM).bfloat16()


def worst(got, want) -> float:
    got, want = got.double(), want.double()
    error = (got - want).abs().masked_fill(got == want, 0.0).max() / want[want.isfinite()].abs().max()
    return error.item() if error == error else float("inf")


SLOPES = torch.randn(8, generator=RANDOM)


def bias(score, b, h, q, kv):
    return score * 0.5 + SLOPES[h] * 0.01 * (kv - q)


def hook(out, lse, b, h, q):
    return out * torch.sigmoid(lse - 0.1 * h)


# (heads, KV heads, queries, keys) of the mod's first call, and of others, which choose other kernels.
FIRST = 2, 2, 200, 150
OTHERS = {"split, packed": (4, 1, 3, 900), "packed": (6, 2, 40, 80), "few rows": (2, 2, 30, 70)}
# The first call is one of few queries, whose heads share a tile, and the other one has long rows of one head.
FEW, LONG = (4, 1, 3, 900), {"long": (1, 1, 300, 200), "groups of two": (4, 2, 150, 100)}


def errors_of(size, masked: bool) -> list:
    heads, kv_heads, q_len, kv_len = size
    qkv = normal(1, heads, q_len, 64), normal(1, kv_heads, kv_len, 64), normal(1, kv_heads, kv_len, 64)

    def visible(b, h, q, kv):
        return (kv > 5) & (kv % 7 != q % 3)

    given = dict(score_mod=bias, out_mod=hook) if not masked else {}
    mask = create_block_mask(visible, None, None, q_len, kv_len) if masked else None
    found = [flex_attention(*qkv, block_mask=mask, enable_gqa=True, return_lse=True, **given) for _ in range(2)]
    want = reference.attention(*qkv, mask_mod=visible if masked else None, **given)
    return [max(worst(each[i], want[i]) for each in found) for i in range(2)]


def arrive() -> int:
    """How many kernels."""
    for job in apart._jobs.values():
        job._process.returncode = 0
        for key in job.keys:
            store.path_of(key).touch()
        job.due = 0.0
        assert job.look()
    return len(MADE)


def sequence(device, first, others: dict, masked: bool) -> dict:
    for table in (repeat._known, repeat._ready, repeat._hints, kernels._found, kernels._functions, standin._stood_in, apart._jobs,
                  MADE, WAITED):
        table.clear()
    apart._AT_ONCE = len(others)
    found = {"first": errors_of(first, masked)}
    found |= {f"{name}, stood in for": errors_of(size, masked) for name, size in others.items()}
    waited, kernels_before = list(WAITED), set(kernels._found)
    begun = arrive()
    found |= {name: errors_of(size, masked) for name, size in others.items()}
    device.check()
    return dict(errors=found, waited=waited, waited_later=WAITED[len(waited):], begun=begun,
                used=len(set(kernels._found) - kernels_before))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, emulator.device(GPU, seed=1, races=True) as device:
        os.environ["FLEXFA4_KERNEL_CACHE"] = folder
        on_the_emulator(device)
        made = {"masked": sequence(device, FIRST, OTHERS, True), "with hooks": sequence(device, FEW, LONG, False)}
        findings = device.findings
    print(json.dumps(dict(made, findings=findings)))
