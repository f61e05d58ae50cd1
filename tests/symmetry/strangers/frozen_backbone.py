"""Fine-tuning: the backbone's batch norms stay in evaluation mode, its last stage and a head train."""

from __future__ import annotations

import torch
from torch import Tensor, nn

JOINT_INVARIANT = False
INVARIANT_ALONE = {"head.0.weight", "head.0.bias", "head.3.weight", "head.3.bias"}
WHY = (
    "The head's layers end in batch norm on batch statistics; the fine-tuned stage ends in batch norm "
    "on stored ones, whose constant mean does not follow the weight."
)


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stage1 = nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(6, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.stage2(self.stage1(x))
        return y.mean((2, 3))


class FineTuned(nn.Module):
    def __init__(self, backbone: nn.Module, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(
            nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, classes), nn.BatchNorm1d(classes)
        )
        self.head[4].requires_grad_(False)
        for name, p in self.backbone.named_parameters():
            p.requires_grad_(name == "stage2.0.weight")
        self.train()

    def train(self, mode: bool = True) -> FineTuned:
        super().train(mode)
        for m in self.backbone.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(x))
        return logits


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    backbone = Backbone()
    with torch.no_grad():
        backbone(1 + torch.randn(8, 3, 8, 8))  # pre-trained statistics
    return FineTuned(backbone, classes=4), (torch.randn(5, 3, 8, 8),)
