"""flexfa4 as an attention implementation of transformers, on tiny random models; the reference is the library's eager path."""

import inspect

import pytest
import torch

transformers = pytest.importorskip("transformers")

from flexfa4.errors import ShapeError, UnsupportedError  # noqa: E402
from flexfa4.interop import huggingface as hf  # noqa: E402

# The model's keyword for its cache, before transformers 5.24 and after.
CACHE = "cache" if "cache" in inspect.signature(transformers.LlamaForCausalLM.forward).parameters else "past_key_values"
TOLERANCE = 2e-5  # float32, two layers: far above rounding (about 1e-6), far below a wrong mask (about 1e-2)


def llama(implementation: str, **changes):
    settings = dict(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        pad_token_id=0,
        attn_implementation=implementation,
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**settings, **changes})
    return spread(transformers.LlamaForCausalLM(config))


def spread(model):
    """Weights large enough that attention is far from uniform, so that a wrong mask shows."""
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(10)
    return model.eval()


def twins(model, config, **settings):
    """A tiny random model of one class twice, with the same weights: through the eager path, and through flexfa4."""
    sizes = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=8)
    made = []
    for implementation in ("eager", "flexfa4"):
        torch.manual_seed(0)
        made.append(spread(model(config(**{**sizes, **settings}, attn_implementation=implementation))))
    return made


def tokens(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(1, 97, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def pair():
    return llama("eager"), llama("flexfa4")


@torch.no_grad()
def logits(model, ids, **options):
    return model(ids, **{"use_cache": False, **options}).logits


def close(a, b, tolerance=TOLERANCE):
    error = (a - b).abs().max().item()
    assert error <= tolerance, error


def dense(rule, q_length, kv_length, offset=0) -> torch.Tensor:
    """Additive float mask [1, 1, Sq, Skv] for the eager path from rule(q, kv) on index tensors."""
    q, kv = torch.arange(q_length)[:, None] + offset, torch.arange(kv_length)[None]
    return torch.zeros(q_length, kv_length).masked_fill(~rule(q, kv), torch.finfo(torch.float32).min)[None, None]


def test_causal_logits_and_gradients(pair):
    ids = tokens(2, 37)
    close(logits(pair[0], ids), logits(pair[1], ids))
    gradients = []
    for model in pair:
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        gradients.append(model.model.layers[0].self_attn.k_proj.weight.grad.clone())
        model.zero_grad()
    close(gradients[0], gradients[1], 1e-4 * gradients[0].abs().max().item())


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(pair, side):
    ids, real = tokens(3, 29), torch.ones(3, 29, dtype=torch.int64)
    for row, n in ((1, 11), (2, 28)):
        real[row, slice(0, n) if side == "left" else slice(29 - n, 29)] = 0
    position_ids = (real.cumsum(-1) - 1).clamp(min=0)
    expected, got = (logits(m, ids, attention_mask=real, position_ids=position_ids) for m in pair)
    close(expected[real.bool()], got[real.bool()])
    assert torch.isfinite(got).all()


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_with_cache(pair, cache):
    ids, real = tokens(2, 9), torch.ones(2, 9, dtype=torch.int64)
    real[0, :4] = 0
    options = dict(
        attention_mask=real,
        max_new_tokens=12,
        min_new_tokens=12,
        do_sample=False,
        cache_implementation=cache,
        output_logits=True,
        return_dict_in_generate=True,
        disable_compile=True,
    )
    expected, got = (m.generate(ids, **options) for m in pair)
    assert torch.equal(expected.sequences, got.sequences)
    for a, b in zip(expected.logits, got.logits, strict=True):
        close(a, b)


def test_chunked_prefill(pair):
    """Queries in the middle: 1 < Sq < Skv."""
    ids = tokens(1, 40)
    whole = logits(pair[0], ids)
    cache, parts = transformers.DynamicCache(config=pair[1].config), []
    with torch.no_grad():
        for piece in ids.split([17, 5, 1, 17], dim=1):
            parts.append(pair[1](piece, **{CACHE: cache}, use_cache=True).logits)
    close(whole, torch.cat(parts, 1))


def test_packed_row_equals_one_by_one(pair):
    documents = [tokens(1, n, seed=n) for n in (13, 1, 24, 7)]
    position_ids = torch.cat([torch.arange(d.shape[1]) for d in documents])[None]
    packed = logits(pair[1], torch.cat(documents, 1), position_ids=position_ids)
    close(torch.cat([logits(pair[0], d) for d in documents], 1), packed)


def test_sliding_window_of_the_config():
    models = twins(transformers.MistralForCausalLM, transformers.MistralConfig, sliding_window=7)
    ids = tokens(2, 33)
    close(logits(models[0], ids), logits(models[1], ids))
    options = dict(max_new_tokens=9, min_new_tokens=9, do_sample=False)
    assert torch.equal(models[0].generate(ids, **options), models[1].generate(ids, **options))


def test_softcap_and_alternating_windows():
    """Gemma 2: soft-capped scores, every other layer a window, its own scale."""
    models = twins(transformers.Gemma2ForCausalLM, transformers.Gemma2Config, sliding_window=6, attn_logit_softcapping=1.5,
                   query_pre_attn_scalar=4)
    ids = tokens(2, 21)
    close(logits(models[0], ids), logits(models[1], ids))


def test_sinks():
    """gpt-oss: a learned logit a head takes part in the softmax and has no value."""
    models = twins(transformers.GptOssForCausalLM, transformers.GptOssConfig, intermediate_size=32, num_local_experts=2,
                   num_experts_per_tok=1, sliding_window=8)
    with torch.no_grad():
        for layer in (layer for model in models for layer in model.model.layers):
            layer.self_attn.sinks.copy_(torch.linspace(-1, 2, 4))
    ids = tokens(1, 19)
    close(logits(models[0], ids), logits(models[1], ids))


def test_encoder_with_padding():
    config = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    models = []
    for implementation in ("eager", "flexfa4"):
        torch.manual_seed(0)
        models.append(spread(transformers.BertModel(transformers.BertConfig(**config, attn_implementation=implementation))))
    ids, real = tokens(2, 15), torch.ones(2, 15, dtype=torch.int64)
    real[1, 9:] = 0
    with torch.no_grad():
        expected, got = (m(ids, attention_mask=real).last_hidden_state for m in models)
        close(expected[real.bool()], got[real.bool()])
        expected, got = (m(ids).last_hidden_state for m in models)
        close(expected, got)


def test_mask_mod_narrows_or_replaces(pair):
    ids = tokens(1, 31)

    def window(b, h, q, kv):
        return q - kv < 5

    def prefix(b, h, q, kv):
        return (kv < 10) | (kv <= q)

    with hf.attention_mods(mask_mod=window):
        narrowed = logits(pair[1], ids)
    close(logits(pair[0], ids, attention_mask=dense(lambda q, kv: (kv <= q) & (q - kv < 5), 31, 31)), narrowed)
    with hf.attention_mods(mask_mod=prefix, combine="replace"):
        replaced = logits(pair[1], ids)
    close(logits(pair[0], ids, attention_mask=dense(lambda q, kv: (kv < 10) | (kv <= q), 31, 31)), replaced)
    close(logits(pair[1], ids), logits(pair[0], ids))


def test_mods_of_one_factory_are_told_apart(pair):
    """Same code, other closures, one after the other and back: none may be served the graph or the tiles of another."""
    ids = tokens(1, 31)

    def window(n, sink):
        return lambda b, h, q, kv: (q - kv < n) | (kv < sink)

    for n, sink in ((5, 0), (9, 0), (5, 2), (5, 0)):
        with hf.attention_mods(mask_mod=window(n, sink)):
            got = logits(pair[1], ids)
        close(logits(pair[0], ids, attention_mask=dense(lambda q, kv: (kv <= q) & ((q - kv < n) | (kv < sink)), 31, 31)), got)


def test_mods_see_absolute_positions_with_a_cache(pair):
    ids, slopes = tokens(1, 26), torch.linspace(0.05, 0.4, 6)

    def alibi(score, b, h, q, kv):
        return score - slopes[h] * (q - kv)

    def window(b, h, q, kv):
        return q - kv < 9

    with hf.attention_mods(mask_mod=window, score_mod=alibi), torch.no_grad():
        whole = logits(pair[1], ids)
        cache = transformers.DynamicCache(config=pair[1].config)
        parts = [pair[1](piece, **{CACHE: cache}, use_cache=True).logits for piece in ids.split([15, 1, 10], dim=1)]
    close(whole, torch.cat(parts, 1))
    distance = (torch.arange(26)[:, None] - torch.arange(26)[None]).float()
    bias = dense(lambda q, kv: (kv <= q) & (q - kv < 9), 26, 26) - slopes[None, :, None, None] * distance
    close(logits(pair[0], ids, attention_mask=bias), whole)


def test_mods_of_some_layers_and_nesting(pair):
    ids = tokens(1, 18)

    def double(score, b, h, q, kv):
        return score * 2

    def shift(score, b, h, q, kv):
        return score + 0.3 * kv

    def both(score, b, h, q, kv):
        return score * 2 + 0.3 * kv

    with hf.attention_mods(score_mod=double), hf.attention_mods(score_mod=shift):
        nested = logits(pair[1], ids)
    with hf.attention_mods(score_mod=both):
        close(logits(pair[1], ids), nested)
    plain = logits(pair[1], ids)
    with hf.attention_mods(score_mod=double, layers=[1]):
        one = logits(pair[1], ids)
    with hf.attention_mods(score_mod=double, layers=[7]):
        close(logits(pair[1], ids), plain)
    assert (one - plain).abs().max() > 1e-3
    close(logits(pair[1], ids, score_mod=both), nested)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_dense_four_dimensional_mask(pair, dtype):
    ids = tokens(2, 12)
    added = dense(lambda q, kv: (kv <= q) & ((q + kv) % 3 != 1) | (q == kv), 12, 12)
    given = added if dtype is torch.float32 else added == 0
    close(logits(pair[0], ids, attention_mask=added), logits(pair[1], ids, attention_mask=given))


def test_errors(pair):
    with pytest.raises(ValueError, match="combine='or': expected one of"):
        with hf.attention_mods(mask_mod=lambda b, h, q, kv: q >= kv, combine="or"):
            pass
    with pytest.raises(ValueError, match="needs a mask_mod"):
        with hf.attention_mods(combine="replace"):
            pass
    with pytest.raises(ShapeError, match=r"attention_mask has shape \(1, 1, 3, 3\)"):
        logits(pair[1], tokens(1, 5), attention_mask=torch.zeros(1, 1, 3, 3))
    with pytest.raises(UnsupportedError, match="dropout=0.1"):
        llama("flexfa4", attention_dropout=0.1).train()(tokens(1, 5))
