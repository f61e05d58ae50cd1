"""A siamese net: one ReLU encoder without norms used for both images, compared by their cosine."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

JOINT_INVARIANT = True
INVARIANT_ALONE = {"encoder.conv2.weight", "encoder.project.weight"}
WHY = (
    "The encoder is positively homogeneous in its layers; the one bias sits in the first layer, where "
    "it has the degree of the weight, so that pair is free only together."
)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, stride=2)
        self.conv2 = nn.Conv2d(6, 8, 3, bias=False)
        self.project = nn.Linear(8 * 4, 12, bias=False)

    def forward(self, image: Tensor) -> Tensor:
        x = F.leaky_relu(self.conv1(image), 0.2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        y: Tensor = self.project(x.view(x.size(0), -1))
        return y


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return F.cosine_similarity(self.encoder(left), self.encoder(right))


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Siamese(), (torch.randn(3, 1, 16, 16), torch.randn(3, 1, 16, 16))
