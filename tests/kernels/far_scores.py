"""Score mods that write numbers far from 0, as masks by numbers do."""
import torch

LEAST = torch.finfo(torch.float32).min
KEYS = torch.arange(2 * 420).view(2, 420)
GAINS = torch.tensor([1.5, -0.75, 0.0, -2.0])
LIFTS = torch.tensor([1e10, -1e10, 0.0, -torch.inf, 3e7, -5.0]).repeat(50)
# The first keys padded, as by an additive bias: rows that see no others are the average of those.
BIAS = torch.where(KEYS % 420 < 150, LEAST, KEYS * 7 % 50 / 10)
# A table of both positions: its numbers cannot be scaled once a row.
STEPS = 2.0 * (torch.arange(20).view(-1, 1) + torch.arange(2000) * 7) % 10


def below(score, b, h, q, kv):
    """Masked by numbers: rows of which all that is seen is at -1e10 or at the least float, rows with keys at both and above."""
    least = torch.where(q % 3 == 0, -1e10, LEAST)
    return torch.where((kv < 140) & (q % 5 == 0) | (q % 7 == 0), score.float(), least)


def above(score, b, h, q, kv):
    """Steps between tiles, and within them, up to what float32 holds in log2."""
    return score.float() + torch.where(q % 2 == 0, 1e10, 2e38) * torch.where(kv % 64 == q % 64, 1.0, -1.0)


def alike(score, b, h, q, kv):
    """All keys of a row at one number, far from 0; of some rows two such numbers."""
    value = torch.where(q % 4 == 0, -1e10, torch.where(q % 4 == 1, LEAST, torch.where(q % 4 == 2, 1e10, -1e5)))
    return torch.where((q % 5 == 0) & (kv % 2 == 0), value * 0.5, value) + 0.0 * score.float()


def by_units(score, b, h, q, kv):
    """Numbers a few units apart, where float32 has every other."""
    return torch.where(q % 2 == 0, 2.0**24, -(2.0**24)) + STEPS[q % 20, kv] + 0.0 * score


def in_few_parts(b, h, q, kv):
    """A few keys of the first ones, a third of the next, none, and all of the last."""
    return (kv < 500) & (kv % 50 == 3) | (kv >= 500) & (kv < 1000) & (kv % 3 == q % 3) | (kv >= 1400)


def most(score, b, h, q, kv):
    """The largest float at some keys of every other row, in tiles after the first or in the first alone."""
    return torch.where((q % 2 == 0) & (torch.where(q % 4 == 0, kv, 400 - kv) > 300) & (kv % 3 == 0), -LEAST, score.float())


def slopes(score, b, h, q, kv):
    return score.float() - 1e9 * (q - kv) ** 2 + 1e9 * q


def below_and_long(score, b, h, q, kv):
    return below(3.0 * torch.tanh(score) + torch.sin(1.0 * (kv - q)) * torch.cos(score) - torch.abs(score), b, h, q, kv)


def factors(score, b, h, q, kv):
    """A mask by numbers times factors of both signs and 0."""
    return torch.where((kv < 140) & (q % 5 == 0) | (kv % 7 == q % 3), score, -1e10) * GAINS[h]
