"""What the networks share: the layers of one style, the stems, the head, and putting them together.

Degrees are those of LA's appendix E: how the activation scales when all trainable parameters are scaled
together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from isogon.errors import check_choice, check_number, check_whole
from isogon.nets.layers._initialisation import sample_weights
from isogon.nets.layers._norms import NORM_KINDS, NormKind, make_norm

Style = Literal[False, "affine", "plain"]
StemForm = Literal["cifar", "imagenet"]
Activation = Callable[[], nn.Module]


@dataclass(frozen=True)
class Layers:
    """Makes the layers of a network in one style, with one kind of norm.

    `scale_invariant` is False for the published network; "affine" for Yun's form (section 3.1), with
    trainable γ and β, one more norm without them after global average pooling, and the classifier frozen;
    "plain" for that of LA and LLA, where γ = 1 and β = 0 are frozen besides. The plain style keeps the norm
    after pooling, which LA and LLA do not mention: its input has degree 0 already. Frozen parameters stay in
    the state dict.
    """

    scale_invariant: Style
    kind: NormKind
    ghost_batch: int

    def __post_init__(self) -> None:
        if self.scale_invariant is not False:
            check_choice(
                "scale_invariant",
                self.scale_invariant,
                ("affine", "plain"),
                cure="write affine or plain, or leave it False for the published network",
            )
        check_choice("norm", self.kind, NORM_KINDS)
        check_whole("ghost_batch", self.ghost_batch, cure="the papers use 64")

    def norm(self, channels: int, dim: int = 2) -> nn.Module:
        """A norm with affine: input of any degree → degree 1, or 0 in the plain style."""
        layer = make_norm(self.kind, channels, ghost_batch=self.ghost_batch, dim=dim)
        return layer.requires_grad_(self.scale_invariant != "plain")

    def conv_norm(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        *,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
        activation: Activation | None = nn.ReLU,
    ) -> nn.Sequential:
        """Convolution, norm and activation, where one is given."""
        parts = OrderedDict[str, nn.Module](
            conv=conv(inputs, outputs, kernel, stride=stride, groups=groups, bias=bias),
            norm=self.norm(outputs),
        )
        if activation is not None:
            parts["activation"] = activation()
        return nn.Sequential(parts)

    def stem(self, form: StemForm, in_channels: int, channels: int, *, imagenet_kernel: int = 7) -> nn.Sequential:
        """Convolution, norm, ReLU: 3×3 for CIFAR; 7×7 with stride 2, then max pooling for ImageNet."""
        imagenet = is_imagenet(form)
        kernel, stride = (imagenet_kernel, 2) if imagenet else (3, 1)
        stem = self.conv_norm(in_channels, channels, kernel, stride=stride)
        if imagenet:
            stem.add_module("pool", nn.MaxPool2d(3, stride=2, padding=1))
        return stem

    def norm_relu(self, channels: int) -> nn.Sequential:
        """Norm and ReLU, with which pre-activation networks begin a convolution and end."""
        return nn.Sequential(OrderedDict(norm=self.norm(channels), activation=nn.ReLU()))

    def norm_conv(self, inputs: int, outputs: int, kernel: int = 3, *, stride: int = 1) -> nn.Sequential:
        """Norm, ReLU and convolution: input of any degree → degree 2, or 1 in the plain style."""
        parts = self.norm_relu(inputs)
        parts.add_module("conv", conv(inputs, outputs, kernel, stride=stride))
        return parts

    def preactivation_stem(
        self, form: StemForm, in_channels: int, channels: int, *, second_degree: bool
    ) -> nn.Sequential:
        """The stem of a network whose blocks begin with a norm: a bare convolution (degree 1).

        With `second_degree` it continues with norm, ReLU and another convolution, so that in the affine style
        degree 2 comes out, as from every later convolution (LA figure 14).
        """
        imagenet = is_imagenet(form)
        stem = nn.Sequential(
            OrderedDict(conv=conv(in_channels, channels, 7 if imagenet else 3, stride=2 if imagenet else 1))
        )
        if second_degree:
            stem.add_module("second", self.norm_conv(channels, channels))
        if imagenet:
            stem.add_module("pool", nn.MaxPool2d(3, stride=2, padding=1))
        return stem

    def head(self, features: int, num_classes: int, dropout: float = 0.0) -> nn.Sequential:
        """Global average pooling, the last norm of the scale-invariant styles, and the classifier."""
        parts = OrderedDict[str, nn.Module](pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
        if self.scale_invariant:
            parts["norm"] = self.last_norm(features)
        if dropout:
            parts["dropout"] = nn.Dropout(dropout)
        parts["classifier"] = self.classifier(features, num_classes)
        return nn.Sequential(parts)

    def last_norm(self, features: int) -> nn.Module:
        """The norm without affine before a frozen classifier: layer norm for the kinds that work per sample."""
        return make_norm(self.kind, features, affine=False, ghost_batch=self.ghost_batch, dim=1)

    def classifier(self, features: int, num_classes: int, *, bias: bool = True) -> nn.Linear:
        """A linear layer, frozen with its bias in the scale-invariant styles."""
        return nn.Linear(features, num_classes, bias=bias).requires_grad_(not self.scale_invariant)


def conv(
    inputs: int, outputs: int, kernel: int = 3, *, stride: int = 1, groups: int = 1, bias: bool = False
) -> nn.Conv2d:
    """A convolution that keeps the image's size but for its stride."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=bias)


def is_imagenet(form: StemForm) -> bool:
    return check_choice("stem", form, ("cifar", "imagenet")) == "imagenet"


def check_sizes(**sizes: int) -> None:
    """Refuses a number of classes, channels … that is not a positive whole number."""
    for name, value in sizes.items():
        check_whole(name, value, cure="give a positive count")


def scale_channels(channels: int, width: float, divisor: int = 8) -> int:
    """`channels` times the width multiplier, to the nearest multiple of `divisor` that loses at most a tenth.

    >>> scale_channels(32, 1.0), scale_channels(24, 0.5), scale_channels(32, 0.35)
    (32, 16, 16)
    """
    exact = channels * check_number("width", width, low=0, low_open=True, cure="1 is the published width")
    rounded = max(divisor, int(exact + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * exact else rounded


def residual_stages(
    block: Callable[[int, int, int], nn.Module], width: int, depths: Sequence[int], expansion: int = 1
) -> list[nn.Module]:
    """Stages of `block(inputs, channels, stride)`: each after the first begins by halving the image.

    Stage s has `width` · 2^s channels, and its blocks put out `expansion` times as many.
    """
    stages: list[nn.Module] = []
    inputs = width
    for index, depth in enumerate(depths):
        channels = width * 2**index
        blocks = [block(inputs, channels, 2 if index else 1)]
        inputs = expansion * channels
        blocks += [block(inputs, channels, 1) for _ in range(depth - 1)]
        stages.append(nn.Sequential(*blocks))
    return stages


def assemble(stem: nn.Module, body: Sequence[nn.Module], head: nn.Module) -> nn.Sequential:
    """The network, with Kaiming weights from torch's global generator, as its layers' own would be."""
    network = nn.Sequential(OrderedDict(stem=stem, body=nn.Sequential(*body), head=head))
    sample_weights(network)
    return network
