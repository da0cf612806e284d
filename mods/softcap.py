"""Logit soft-capping (Gemma Team 2024, "Gemma 2", section 2, logit soft-capping)."""
import torch


def tanh_softcap(cap):
    """Score edit that keeps scores within (-cap, cap): cap * tanh(score / cap). `cap` is a positive number (50 in Gemma 2)."""

    def score_mod(score, b, h, q, kv):
        return cap * torch.tanh(score / cap)

    return score_mod
