"""Squeeze-and-excitation (Hu et al. 2018)."""

from __future__ import annotations

import torch
from torch import nn


class SqueezeExcitation(nn.Module):
    """x times one gate per sample and channel: gate(expand(inner(squeeze(mean of x over the image)))).

    The gate is a bounded function of a linear layer, so that layer's weight is never scale-invariant, and a
    network with such gates is not jointly so.
    """

    def __init__(self, channels: int, squeezed: int, *, inner: nn.Module, gate: nn.Module, bias: bool) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, squeezed, bias=bias)
        self.inner = inner
        self.expand = nn.Linear(squeezed, channels, bias=bias)
        self.gate = gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale: torch.Tensor = self.gate(self.expand(self.inner(self.squeeze(x.mean((2, 3))))))
        return x * scale[:, :, None, None]
