"""Batch norm written by hand, running statistics updated in place, behind a biased linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

JOINT_INVARIANT = True
INVARIANT_ALONE = {"lin1.weight", "lin1.bias", "lin2.weight", "lin2.bias"}
WHY = (
    "The batch mean carries the bias and is subtracted, the batch deviation carries the weight's "
    "scale; gain and shift lift the degree to 1, and the last norm has none."
)


class MyBatchNorm(nn.Module):
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, features: int, affine: bool, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.gamma = nn.Parameter(torch.ones(features)) if affine else None
        self.beta = nn.Parameter(torch.zeros(features)) if affine else None
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            mean = x.mean(dim=0)
            var = ((x - mean) ** 2).mean(dim=0)
            with torch.no_grad():
                self.running_mean.mul_(1 - self.momentum).add_(mean, alpha=self.momentum)
                self.running_var.mul_(1 - self.momentum).add_(var, alpha=self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        x_hat = (x - mean) / torch.sqrt(var + self.eps)
        if self.gamma is None or self.beta is None:
            return x_hat
        return self.gamma * x_hat + self.beta


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin1 = nn.Linear(6, 10)
        self.bn1 = MyBatchNorm(10, affine=True)
        self.lin2 = nn.Linear(10, 4)
        self.bn2 = MyBatchNorm(4, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn1(self.lin1(x)).clamp(min=0)
        return torch.log_softmax(self.bn2(self.lin2(h)), dim=1)


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Net(), (torch.randn(9, 6),)
