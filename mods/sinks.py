"""A learned logit in the softmax's denominator that has no key (OpenAI 2025, gpt-oss model card, section 2.1; Xiao et al.
2023, "Efficient Streaming Language Models with Attention Sinks", section 3.3, learnable sink)."""
import torch


def attention_sink(sinks):
    """Output edit that makes room for one extra logit sinks[h] in the row's softmax.

    exp(lse) / (exp(lse) + exp(sink)) is sigmoid(lse - sink), so nothing but the output's scale changes. `sinks`: float tensor
    [heads]; it may require a gradient. A row without keys (lse = -inf) stays 0.
    """

    def out_mod(out, lse, b, h, q):
        return out * torch.sigmoid(lse - sinks[h])

    return out_mod
