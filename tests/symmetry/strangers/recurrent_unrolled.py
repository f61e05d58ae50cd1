"""A layer-normalised recurrent cell, unrolled by a Python loop from a zero state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

JOINT_INVARIANT = True
INVARIANT_ALONE = {"readout"}
WHY = (
    "The state is a tanh of a normalised sum, of degree 0; input, recurrent weight and bias enter "
    "that sum at degree 1 and are free only together; the readout is divided by its own norm."
)


class Cell(nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.wx = nn.Linear(inputs, hidden, bias=True)
        self.wh = nn.Linear(hidden, hidden, bias=False)
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.wx(x) + self.wh(h)))


class Recurrent(nn.Module):
    def __init__(self, inputs: int = 4, hidden: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.hidden = hidden
        self.cell = Cell(inputs, hidden)
        self.readout = nn.Parameter(torch.randn(hidden, classes))

    def forward(self, sequence: Tensor) -> tuple[Tensor, Tensor]:
        h = sequence.new_zeros(sequence.size(0), self.hidden)
        states = []
        for x in sequence.unbind(dim=1):
            h = self.cell(x, h)
            states.append(h)
        logits = torch.stack(states, dim=1) @ (self.readout / torch.linalg.norm(self.readout))
        return logits, h


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Recurrent(), (torch.randn(3, 5, 4),)
