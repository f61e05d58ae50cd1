"""Functional code: a dictionary of raw weights, each divided by its norm in another way."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

JOINT_INVARIANT = True
INVARIANT_ALONE = {f"params.{name}" for name in ("conv_total", "conv_filters", "fc_rows", "fc_last")}
WHY = "Each weight is used as w/‖w‖ (over all, per filter, per row), so the whole function has degree 0 in each."


class Net(nn.Module):
    def __init__(self, eps: float = 1e-8) -> None:
        super().__init__()
        self.eps = eps
        self.params = nn.ParameterDict(
            {
                "conv_total": nn.Parameter(torch.randn(6, 2, 3, 3)),
                "conv_filters": nn.Parameter(torch.randn(8, 6, 3, 3)),
                "fc_rows": nn.Parameter(torch.randn(10, 8)),
                "fc_last": nn.Parameter(torch.randn(4, 10)),
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        p = self.params
        w = p["conv_total"] / (p["conv_total"].norm() + self.eps)
        x = torch.tanh(F.conv2d(x, w, padding=1))
        w = p["conv_filters"]
        w = w / (w.pow(2).sum(dim=(1, 2, 3), keepdim=True) + self.eps).sqrt()
        x = F.gelu(F.conv2d(x, w, stride=2)).sum((2, 3))
        w = F.normalize(p["fc_rows"], dim=1)
        x = F.softplus(F.linear(x, w))
        w = p["fc_last"]
        w = w * torch.maximum((w * w).sum(1, keepdim=True), torch.full_like(w[:, :1], self.eps)).rsqrt()
        return torch.einsum("bi,oi->bo", x, w)


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Net(), (torch.randn(3, 2, 9, 9),)
