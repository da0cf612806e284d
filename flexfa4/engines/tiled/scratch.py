"""Memory for score blocks that is used again from tile to tile: a fresh megabyte costs page faults, a warm one does not."""
from __future__ import annotations

import torch


class Scratch:
    """Named buffers that grow to the largest product asked for. A name's earlier product is overwritten by the next."""

    def __init__(self, dtype: torch.dtype, device: torch.device):
        self._dtype, self._device = dtype, device
        self._flat: dict[str, torch.Tensor] = {}

    def product(self, name: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a [n, i, j] times b [n, j, k], contiguous, in the buffer `name`."""
        shape = (a.shape[0], a.shape[1], b.shape[2])
        size = shape[0] * shape[1] * shape[2]
        flat = self._flat.get(name)
        if flat is None or flat.numel() < size:
            flat = self._flat[name] = torch.empty(size, dtype=self._dtype, device=self._device)
        return torch.bmm(a, b, out=flat[:size].view(shape))
