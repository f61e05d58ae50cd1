"""The networks have the published sizes, and the scale-invariant styles keep what their docstrings claim."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from isogon import nets
from isogon.errors import ArgumentError
from isogon.nets._shufflenet import ShuffleUnit
from isogon.nets.layers import NORM_KINDS as NORMS
from isogon.nets.layers import Layers
from isogon.nets.layers._inverted_residual import InvertedResidual

# The plain style freezes γ and β, of every norm alike.
STYLED = [*(("affine", norm) for norm in NORMS), ("plain", "batch"), ("plain", "layer")]
# Every network, small and without dropout; ghost batches of three in a batch of six.
SMALL: dict[str, dict[str, Any]] = {
    "cnn4": {"width": 4},
    "resnet18": {"width": 4},
    "resnet50": {"width": 4},
    "preresnet32": {"width": 4},
    "vgg16": {"width": 4},
    "densenet100": {"width": 4},
    "mobilenet_v2": {"width": 0.25, "dropout": 0.0},
    "shufflenet_v2": {"width": 0.25},
    "efficientnet_b0": {"width": 0.25, "dropout": 0.0, "drop_path": 0.0},
    "shufflenet_v2_plus": {"width": 0.25, "dropout": 0.0},
}
GATED = ["efficientnet_b0", "shufflenet_v2_plus"]
JOINTLY_INVARIANT = [name for name in SMALL if name not in GATED]
STEMLESS = ["cnn4", "vgg16"]


def build(name: str, **options: Any) -> nn.Sequential:
    """A small network whose β are not zero, so that a bias added to the wrong degree would show."""
    model = getattr(nets, name)(**{"num_classes": 5, "ghost_batch": 3, **SMALL[name], **options})
    nets.initialise(model, "kaiming", seed=3)
    generator = torch.Generator().manual_seed(4)
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter_name.endswith("bias"):
            parameter.data.normal_(std=0.1, generator=generator)
    return model


def images(samples: int = 6, channels: int = 3, size: int = 20) -> torch.Tensor:
    return torch.randn(samples, channels, size, size, generator=torch.Generator().manual_seed(5))


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def changes(model: nn.Module, *rescalings: dict[str, float], size: int = 20) -> list[float]:
    """The largest change of the outputs in training mode, for each set of factors on the named parameters."""
    x = images(size=size).double()
    before = model(x)
    assert before.std(0).min() > 1e-4  # outputs that do not see the input would be invariant too
    largest = []
    for factors in rescalings:
        rescaled = copy.deepcopy(model)
        for name, parameter in rescaled.named_parameters():
            parameter.mul_(factors.get(name, 1.0))
        largest.append(float((rescaled(x) - before).abs().max()))
    return largest


def joint(model: nn.Module, factor: float) -> dict[str, float]:
    return {name: factor for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize(
    ("name", "options", "published"),
    [
        ("resnet18", {}, 11_173_962),
        ("resnet18", {"num_classes": 1000, "stem": "imagenet"}, 11_689_512),
        ("resnet50", {"num_classes": 1000, "stem": "imagenet"}, 25_557_032),
        ("vgg16", {}, 14_728_266),
        ("vgg16", {"scale_invariant": "plain"}, 14_728_266 - 4224),
        ("preresnet32", {}, 466_714),
        ("mobilenet_v2", {"num_classes": 1000}, 3_504_872),
        ("efficientnet_b0", {"num_classes": 1000}, 5_288_548),
        ("shufflenet_v2", {"num_classes": 1000}, 2_278_604),
    ],
)
def test_parameter_counts_are_the_published_ones(name: str, options: dict[str, Any], published: int) -> None:
    assert count(getattr(nets, name)(**options)) == published


# Counted by hand from the layers of the release, which says 5.1, 5.6 and 6.7 million.
@pytest.mark.parametrize(("size", "released"), [("small", 5_137_116), ("medium", 5_679_840), ("large", 6_768_220)])
def test_shufflenet_v2_plus_has_the_released_sizes(size: str, released: int) -> None:
    assert count(nets.shufflenet_v2_plus(1000, size=size)) == released


@pytest.mark.parametrize(("growth", "classes"), [(12, 10), (12, 100), (24, 10)])
def test_densenet_count_by_arithmetic(growth: int, classes: int) -> None:
    total, channels = 3 * 2 * growth * 9, 2 * growth
    for block in range(3):
        if block:
            total += 2 * channels + channels * (channels // 2)
            channels //= 2
        for _ in range(16):
            total += 2 * channels + channels * 4 * growth
            total += 2 * 4 * growth + 4 * growth * growth * 9
            channels += growth
    total += 2 * channels + channels * classes + classes
    assert count(nets.densenet100(classes, width=growth)) == total
    assert (growth, classes) != (12, 10) or total == 769_162


@pytest.mark.parametrize(("style", "norm"), STYLED)
@pytest.mark.parametrize("name", JOINTLY_INVARIANT)
def test_jointly_invariant(name: str, style: str, norm: str, exact: Callable[[nn.Module], nn.Module]) -> None:
    model = exact(build(name, scale_invariant=style, norm=norm))
    assert max(changes(model, joint(model, 0.5), joint(model, 3.0))) < 1e-9


@pytest.mark.parametrize("name", SMALL)
def test_published_networks_are_not_jointly_invariant(name: str, exact: Callable[[nn.Module], nn.Module]) -> None:
    model = exact(build(name))
    assert changes(model, joint(model, 3.0))[0] > 0.1


@pytest.mark.parametrize(("style", "norm"), STYLED)
@pytest.mark.parametrize("name", GATED)
def test_gated_networks_are_invariant_but_for_their_gates(
    name: str, style: str, norm: str, exact: Callable[[nn.Module], nn.Module]
) -> None:
    model = exact(build(name, scale_invariant=style, norm=norm))
    weights = {n for n, p in model.named_parameters() if p.requires_grad and p.dim() > 1}
    gates = ("gate.squeeze.weight", "gate.expand.weight") if name == "efficientnet_b0" else "gate.expand.weight"
    variant = sorted(n for n in weights if n.endswith(gates))
    # A factor for each: invariance of each alone, at all values of the others, is invariance to all of them.
    alone = dict(zip(sorted(weights - set(variant)), itertools.cycle([0.5, 3.0, 0.7]), strict=False))
    assert len(alone) > 40
    # On small maps hard swish after instance norm has the same mean for every image, and the head sees nothing else.
    size = 32 if norm == "instance" else 20
    unchanged, *changed = changes(model, alone, {variant[-1]: 3.0}, joint(model, 3.0), size=size)
    assert unchanged < 1e-9
    assert min(changed) > 0.01


@pytest.mark.parametrize("norm", ["batch", "instance"])
@pytest.mark.parametrize("name", SMALL)
def test_styles_freeze_what_they_say(name: str, norm: str) -> None:
    published, affine, plain = (build(name, scale_invariant=s, norm=norm) for s in (False, "affine", "plain"))
    assert all(parameter.requires_grad for parameter in published.parameters())
    frozen = {n for n, p in affine.named_parameters() if not p.requires_grad}
    assert frozen == {n for n in affine.state_dict() if n.startswith("head.classifier.")}
    norms = [m for m in plain.modules() if isinstance(m, nn.BatchNorm2d | nn.InstanceNorm2d)]
    for parameter, value in [(m.weight, 1) for m in norms] + [(m.bias, 0) for m in norms]:
        assert not parameter.requires_grad
        assert bool((parameter == value).all())
    biases = [n for n, p in plain.named_parameters() if p.requires_grad and p.dim() == 1]
    assert all(".gate." in n for n in biases)
    # γ and β are in the state dict of every form; only preresnet32 has other weights than in the affine one.
    assert name == "preresnet32" or plain.state_dict().keys() == affine.state_dict().keys()


@pytest.mark.parametrize("name", SMALL)
def test_small_grey_images_of_odd_size(name: str) -> None:
    model = build(name, in_channels=1, scale_invariant="affine")
    assert model(images(2, 1, 28)).shape == (2, 5)
    assert model(images(2, 1, 37)).shape == (2, 5)


@pytest.mark.parametrize("name", [name for name in SMALL if name not in STEMLESS])
def test_imagenet_form_makes_maps_four_times_smaller(name: str) -> None:
    x = images(2, size=64)
    small, large = (build(name, stem=stem)[:-1](x).shape for stem in ("imagenet", "cifar"))
    assert (4 * small[2], 4 * small[3]) == large[2:]


# Of those marked slow, each is made of the parts of a quick one.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in ("resnet50", "densenet100") else []) for name in SMALL],
)
def test_exports_in_training_mode(name: str) -> None:
    x = images(4)
    model = build(name, scale_invariant="affine", norm="group")
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x), model(x))


def test_weights_come_from_the_global_generator_and_are_kaiming() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = nets.resnet18(width=32)
        torch.manual_seed(0)
        second = nets.resnet18(width=32)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name])
        if weight.dim() > 1 and weight.numel() > 20_000:
            assert float(weight.std() * (weight[0].numel() / 2) ** 0.5) == pytest.approx(1, rel=0.03)


def test_stochastic_depth_skips_whole_samples_and_keeps_the_mean() -> None:
    layers = Layers(False, "batch", 64)
    options: dict[str, Any] = {"stride": 1, "expansion": 2, "kernel": 3, "activation": nn.SiLU, "gated": False}
    block = InvertedResidual(layers, 4, 4, drop_path=0.25, **options)
    x = images(400, 4, 4)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        added = block(x) - x
    present = added.flatten(1).abs().amax(1) > 0
    assert 0.65 < float(present.float().mean()) < 0.85
    torch.testing.assert_close(added[present], block.main(x)[present] / 0.75, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(block.eval()(x), x + block.main(x))


def test_shuffle_unit_passes_even_channels_and_works_on_odd_ones() -> None:
    x = torch.arange(6.0).view(1, 6, 1, 1)
    main = nn.Conv2d(3, 3, 1, groups=3, bias=False)
    nn.init.constant_(main.weight, 10)
    assert ShuffleUnit(main, None)(x).flatten().tolist() == [0, 2, 4, 10, 30, 50]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale_invariant": True}, "scale_invariant must be one of affine, plain, got True"),
        ({"norm": "bn"}, "norm must be one of batch, ghost, group, layer, instance, got 'bn'"),
        ({"stem": "mnist"}, "stem must be one of cifar, imagenet, got 'mnist'"),
        ({"num_classes": 0}, "num_classes must be a whole number"),
        ({"in_channels": 0}, "in_channels must be a whole number"),
        ({"width": -1}, "width must be a"),
        ({"ghost_batch": 0.5}, "ghost_batch must be a whole number"),
    ],
)
@pytest.mark.parametrize("name", SMALL)
def test_bad_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    if name in STEMLESS and "stem" in options:
        pytest.skip("has no stem to choose")
    with pytest.raises(ArgumentError, match=message):
        build(name, **options)
