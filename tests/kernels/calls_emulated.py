"""flex_attention itself, with the Blackwell kernel in the emulator under it, against dense float64 attention: gradients, views,
repeated calls. Run by test_sm100_calls.py in a process of its own; arguments: names of CALLS. Prints one JSON object: of each
call the largest errors by name, relative to the largest value, how many kernels it launched and compiled, what was copied."""
import json
import os
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
WANTED, sys.argv = sys.argv[1:], sys.argv[:1]  # the DSL parses the options of the process
import conftest  # noqa: E402, F401
from flexfa4 import emulator  # noqa: E402

emulator.prepare("sm_100a")
import torch  # noqa: E402

from flexfa4 import create_block_mask, flex_attention, mods, reference  # noqa: E402
from flexfa4.runtime import engine, kernels, lists  # noqa: E402

torch.set_num_threads(1)
HEADS, KV_HEADS, Q_LEN, KV_LEN, DIM = 4, 2, 200, 300, 64
RANDOM = torch.Generator().manual_seed(0)


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=RANDOM).to(dtype)


def inputs(batch=1, dim=DIM, dim_v=DIM):
    return (normal(batch, HEADS, Q_LEN, dim), normal(batch, KV_HEADS, KV_LEN, dim), normal(batch, KV_HEADS, KV_LEN, dim_v))


def on_the_emulator(device) -> None:
    """Lets flex_attention take the Blackwell kernel for tensors of the CPU."""
    def make(kind, text, signature):
        from flexfa4.runtime import compiler

        kernels._counts["compiled"] += 1
        made = getattr(compiler, kind)(signature, runs_here=True)
        return lambda *arguments: made(*kernels._wrapped(arguments, device.tensor))

    engine.architecture = lambda device: "sm100"
    kernels.workers_of = lists.workers_of = lambda device: 3
    kernels.stream_of = lambda device: 0
    kernels._make = make
    os.environ["FLEXFA4_KERNEL_CACHE"] = "off"


def worst(got, want) -> float:
    """The largest error, of the largest value; infinite for NaN."""
    got, want = got.double(), want.double()
    error = (got - want).abs().masked_fill(got == want, 0.0).max() / want[want.isfinite()].abs().max()
    return error.item() if error == error else float("inf")


def compared(device, tensors, leaves=(), again=1, **given) -> dict:
    """The call `again` times more, with gradients where there are leaves: captured tensors, by name."""
    names, floats = ("out", "lse", "query", "key", "value", *leaves), [t.detach().double() for t in tensors]
    wide = given | dict(mask_mod=given["block_mask"].mask_mod) if "block_mask" in given else given
    wide.pop("block_mask", None)
    tracked = [t.requires_grad_() for t in (*tensors, *leaves.values())] if leaves else []
    # Of the squares of the output: sums over many rows, such as a head's slope receives, do not cancel.
    ups = reference.attention(*floats, **wide)[0].detach(), torch.rand(tensors[0].shape[:3], generator=RANDOM)

    def results(qkv, call, arguments):
        out, lse = call(*qkv, **arguments)
        if not leaves:
            return out, lse
        seen = lse.masked_fill(lse == -torch.inf, 0.0)
        return out.detach(), lse.detach(), *torch.autograd.grad((out * ups[0]).sum() + (seen * ups[1]).sum(),
                                                                [*qkv, *leaves.values()])

    want = results([t.requires_grad_() for t in floats] if leaves else floats, reference.attention, wide)
    launched, found = len(device.launches), []
    before = kernels.compile_count()
    for _ in range(again + 1):
        found.append(results(tensors, flex_attention, dict(**given, enable_gqa=True, return_lse=True)))
        device.check()
    del tracked
    errors = {name: max(worst(each[i], want[i]) for each in found) for i, name in enumerate(names[:len(want)])}
    return dict(errors=errors, launches=len(device.launches) - launched, compiled=kernels.compile_count() - before)


def gradients(device) -> dict:
    """Of inputs and captures; `lifts` moves only the LSE, and reaches the loss by it alone."""
    lifts, slopes = normal(Q_LEN, dtype=torch.float32), normal(HEADS, dtype=torch.float32)
    bias = normal(KV_LEN, dtype=torch.float32)

    def score_mod(score, b, h, q, kv):
        return score * 0.5 + lifts[q] + slopes[h] * 0.01 * (kv - q) + bias[kv]

    mask = create_block_mask(mods.causal_bottom_right(Q_LEN, KV_LEN), None, None, Q_LEN, KV_LEN)
    return compared(device, inputs(), dict(lifts=lifts, slopes=slopes, bias=bias), score_mod=score_mod, block_mask=mask)


def gradients_of_rows_without_keys(device) -> dict:
    gain = torch.tensor(1.5)
    return compared(device, inputs(), dict(gain=gain), score_mod=lambda s, b, h, q, kv: torch.tanh(s) * gain,
                    mask_mod=lambda b, h, q, kv: (q % 5 != 0) & (kv < q))


def gradients_through_an_output_graph(device) -> dict:
    share = normal(HEADS, dtype=torch.float32)
    return compared(device, inputs(dim_v=40), dict(share=share), mask_mod=mods.sliding_window(70),
                    out_mod=lambda out, lse, b, h, q: out * torch.sigmoid(lse - share[h]))


VIEWS = {
    "rows first": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "half a row": lambda t: torch.cat([t, t], -1)[..., :DIM],
    "cut length": lambda t: torch.cat([t, t], 2)[:, :, 3:3 + t.shape[2]],
    "one batch entry for all": lambda t: t[:1].expand(2, -1, -1, -1),
    "one row for all": lambda t: t[:, :, :1].expand(t.shape),
    "columns first": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
    "odd base": lambda t: torch.cat([t[..., :1], t], -1)[..., 1:],
    "every other column": lambda t: t.repeat_interleave(2, 3)[..., ::2],
    "odd rows": lambda t: torch.nn.functional.pad(t, (0, 3))[..., :DIM],
}


def views(device) -> dict:
    """By view; copied: which of q, k and v were, each once a call."""
    found, copied, empty = {}, [], torch.empty
    for name, view in VIEWS.items():
        tensors, made = [view(t) for t in inputs(2)], []
        kernels.torch.empty = lambda *a, **k: made.append(a[0]) or empty(*a, **k)
        try:
            found[name] = compared(device, tensors, again=0, mask_mod=mods.causal_mask)
        finally:
            kernels.torch.empty = empty
        copied.append([name, sum(len(shape) == 4 for shape in made)])
    return dict(found, copied=copied)


CALLS = {call.__name__.replace("_", " "): call
         for call in (gradients, gradients_of_rows_without_keys, gradients_through_an_output_graph, views)}

if __name__ == "__main__":
    with emulator.device("sm_100a", seed=1, races=True) as device:
        on_the_emulator(device)
        made = {name: CALLS[name](device) for name in WANTED}
        findings = device.findings
    print(json.dumps(dict(made, findings=findings)))
