"""Image classifiers and a text encoder as people commonly define them, small, for tests of conversion.

Each factory takes `num_classes` and returns a module in training mode; `EXAMPLES` pairs every factory with a
function that makes an example input (the arguments of `forward`). Nothing here knows of isogon. All of them
train:

>>> for factory, example in EXAMPLES.items():
...     model, inputs = factory(num_classes=3), example()
...     logits = model(*inputs)
...     logits.square().sum().backward()
...     assert model.training and logits.shape == (4, 3)
...     assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    def __init__(self, inplanes: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample: nn.Module | None = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(
                nn.Conv2d(inplanes, planes, 1, stride=stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        result: Tensor = self.relu(out)
        return result


class ResNet(nn.Module):
    def __init__(self, layers: tuple[int, ...], width: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        planes = width
        for i, blocks in enumerate(layers):
            stage: list[nn.Module] = []
            for j in range(blocks):
                outplanes = width * 2**i
                stage.append(BasicBlock(planes, outplanes, stride=2 if i > 0 and j == 0 else 1))
                planes = outplanes
            self.add_module(f"layer{i + 1}", nn.Sequential(*stage))
        self.stages = len(layers)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(planes, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for i in range(self.stages):
            x = self.get_submodule(f"layer{i + 1}")(x)
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


def resnet(num_classes: int = 10) -> nn.Module:
    return ResNet((2, 1, 1), width=8, num_classes=num_classes)


class VGG(nn.Module):
    def __init__(self, plan: tuple[int | str, ...], hidden: int, num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for entry in plan:
            if isinstance(entry, str):
                layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
            else:
                layers += [
                    nn.Conv2d(channels, entry, 3, padding=1),
                    nn.BatchNorm2d(entry),
                    nn.ReLU(inplace=True),
                ]
                channels = entry
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(channels * 2 * 2, hidden),
            nn.ReLU(True),
            nn.Dropout(p=0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(True),
            nn.Dropout(p=0.5),
            nn.Linear(hidden, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        logits: Tensor = self.classifier(torch.flatten(x, 1))
        return logits


def vgg_bn(num_classes: int = 10) -> nn.Module:
    return VGG((8, "M", 12, "M", 16, 16, "M"), hidden=24, num_classes=num_classes)


class DenseLayer(nn.Module):
    def __init__(self, inside: int, growth: int, bottleneck: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inside)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inside, bottleneck * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(bottleneck * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(bottleneck * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        x = self.conv1(self.relu1(self.norm1(torch.cat(features, 1))))
        new: Tensor = self.conv2(self.relu2(self.norm2(x)))
        return new


class DenseBlock(nn.ModuleDict):
    def __init__(self, depth: int, inside: int, growth: int) -> None:
        super().__init__()
        for i in range(depth):
            self.add_module(f"denselayer{i + 1}", DenseLayer(inside + i * growth, growth, bottleneck=2))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.values():
            features.append(layer(features))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    def __init__(self, growth: int, blocks: tuple[int, ...], stem: int, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential()
        self.features.add_module("conv0", nn.Conv2d(3, stem, 3, padding=1, bias=False))
        self.features.add_module("norm0", nn.BatchNorm2d(stem))
        self.features.add_module("relu0", nn.ReLU(inplace=True))
        self.features.add_module("pool0", nn.MaxPool2d(3, stride=2, padding=1))
        channels = stem
        for i, depth in enumerate(blocks):
            self.features.add_module(f"denseblock{i + 1}", DenseBlock(depth, channels, growth))
            channels += depth * growth
            if i < len(blocks) - 1:
                transition = nn.Sequential()
                transition.add_module("norm", nn.BatchNorm2d(channels))
                transition.add_module("relu", nn.ReLU(inplace=True))
                transition.add_module("conv", nn.Conv2d(channels, channels // 2, 1, bias=False))
                transition.add_module("pool", nn.AvgPool2d(2, stride=2))
                self.features.add_module(f"transition{i + 1}", transition)
                channels //= 2
        self.features.add_module("norm5", nn.BatchNorm2d(channels))
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.features(x), inplace=True)
        out = F.adaptive_avg_pool2d(out, (1, 1)).flatten(1)
        logits: Tensor = self.classifier(out)
        return logits


def densenet(num_classes: int = 10) -> nn.Module:
    return DenseNet(growth=4, blocks=(2, 3), stem=8, num_classes=num_classes)


def conv_bn_relu6(inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inside * expand
        self.use_res_connect = stride == 1 and inside == outside
        layers: list[nn.Module] = [] if expand == 1 else [conv_bn_relu6(inside, hidden, 1)]
        layers += [
            conv_bn_relu6(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
        ]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.use_res_connect else y


class MobileNetV2(nn.Module):
    def __init__(self, settings: tuple[tuple[int, int, int, int], ...], num_classes: int) -> None:
        """`settings` lists (expansion, channels, repeats, first stride) of the stages."""
        super().__init__()
        channels = 8
        features: list[nn.Module] = [conv_bn_relu6(3, channels, 3, stride=2)]
        for expand, outside, repeats, stride in settings:
            for i in range(repeats):
                features.append(InvertedResidual(channels, outside, stride if i == 0 else 1, expand))
                channels = outside
        features.append(conv_bn_relu6(channels, 4 * channels, 1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(4 * channels, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x), (1, 1))
        logits: Tensor = self.classifier(torch.flatten(x, 1))
        return logits


def mobilenet_v2(num_classes: int = 10) -> nn.Module:
    return MobileNetV2(((1, 6, 1, 1), (3, 8, 2, 2), (3, 10, 1, 1)), num_classes)


class PreNormLayer(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.self_attention = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.norm2 = nn.LayerNorm(dim)
        self.linear1 = nn.Linear(dim, hidden)
        self.linear2 = nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        y, _ = self.self_attention(y, y, y, need_weights=False)
        x = x + self.dropout(y)
        y = self.dropout(F.gelu(self.linear1(self.norm2(x))))
        out: Tensor = x + self.dropout(self.linear2(y))
        return out


class TransformerClassifier(nn.Module):
    def __init__(self, vocab: int, dim: int, length: int, layers: int, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.position = nn.Parameter(torch.randn(length, dim) / math.sqrt(dim))
        self.layers = nn.ModuleList(PreNormLayer(dim, 2, 2 * dim, dropout=0.1) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x).mean(dim=1))
        return logits


def transformer_encoder(num_classes: int = 10) -> nn.Module:
    return TransformerClassifier(vocab=23, dim=12, length=10, layers=2, num_classes=num_classes)


class SEBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int, reduction: int = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(outside, outside // reduction),
            nn.ReLU(inplace=True),
            nn.Linear(outside // reduction, outside),
            nn.Sigmoid(),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y = y * self.squeeze(y)[:, :, None, None]
        return F.relu(y + self.shortcut(x))


class SENet(nn.Module):
    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.layer1 = SEBlock(width, width, stride=1)
        self.layer2 = SEBlock(width, 2 * width, stride=2)
        self.linear = nn.Linear(2 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.stem(x)))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def se_net(num_classes: int = 10) -> nn.Module:
    return SENet(width=8, num_classes=num_classes)


def image_input(batch: int = 4, size: int = 32) -> tuple[Tensor]:
    return (torch.randn(batch, 3, size, size),)


def token_input(batch: int = 4, length: int = 8) -> tuple[Tensor]:
    return (torch.randint(0, 23, (batch, length)),)


EXAMPLES: dict[Callable[..., nn.Module], Callable[..., tuple[Tensor]]] = {
    resnet: image_input,
    vgg_bn: image_input,
    densenet: image_input,
    mobilenet_v2: image_input,
    transformer_encoder: token_input,
    se_net: image_input,
}
