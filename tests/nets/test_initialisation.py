"""The four initialisations are one function of a scale-invariant network, at four norms of its weights."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

from isogon import nets
from isogon.errors import ArgumentError

SCHEMES = ["kaiming", "ntk", "kaiming*1000", "kaiming*0.001"]


def small(style: str = "plain") -> nn.Sequential:
    return nets.preresnet32(5, width=4, scale_invariant=style)


def images() -> torch.Tensor:
    return torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def trainable_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad and p.dim() > 1}


@pytest.mark.parametrize("style", ["affine", "plain"])
def test_all_schemes_start_a_scale_invariant_network_as_the_same_function(
    style: str, exact: Callable[[nn.Module], nn.Module]
) -> None:
    model = exact(small(style))
    outputs = [nets.initialise(model, scheme, seed=1)(images().double()) for scheme in SCHEMES]
    for other in outputs[1:]:
        torch.testing.assert_close(other, outputs[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize(("scheme", "factor"), [("kaiming*1000", 1e3), ("kaiming*0.001", 1e-3), ("ntk", None)])
def test_schemes_differ_from_kaiming_by_a_factor_of_each_trainable_weight(scheme: str, factor: float | None) -> None:
    model = small()
    reference = trainable_weights(nets.initialise(model, "kaiming", seed=1))
    classifier = model.head.classifier.weight.clone()
    scaled = trainable_weights(nets.initialise(model, scheme, seed=1))
    for name, weight in scaled.items():
        ratio = math.sqrt(weight[0].numel() / 2) if factor is None else factor
        torch.testing.assert_close(weight, ratio * reference[name])
    assert torch.equal(model.head.classifier.weight, classifier)


def test_kaiming_and_ntk_have_their_variances() -> None:
    model = nets.cnn4(width=32, scale_invariant="plain")
    for scheme, variance in (("kaiming", lambda w: 2 / w[0].numel()), ("ntk", lambda w: 1.0)):
        for weight in trainable_weights(nets.initialise(model, scheme)).values():
            error = 4 * math.sqrt(2 / weight.numel())  # four standard errors of a normal variance
            assert float(weight.var()) == pytest.approx(variance(weight), rel=error)
            assert abs(float(weight.mean())) < 4 * math.sqrt(variance(weight) / weight.numel())


def test_seed_decides_alone_and_the_global_generator_is_not_touched() -> None:
    model = small()
    state = torch.get_rng_state()
    first = trainable_weights(nets.initialise(model, "kaiming", seed=1))
    other = trainable_weights(nets.initialise(model, "kaiming", seed=2))
    again = trainable_weights(nets.initialise(model.double(), "kaiming", seed=1))
    assert torch.equal(torch.get_rng_state(), state)
    for name, weight in first.items():
        assert torch.equal(weight, again[name].float())
        assert not torch.equal(weight, other[name])


def test_norms_biases_and_running_statistics_start_afresh() -> None:
    model = nets.vgg16(5, width=4)
    model(images())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    state = nets.initialise(model, "kaiming").state_dict()
    fresh = nets.vgg16(5, width=4).state_dict()
    for name, tensor in fresh.items():
        assert tensor.dim() > 1 or torch.equal(state[name], tensor), name


def test_ntk_keeps_names_and_parameters_and_is_undone() -> None:
    model = small()
    before = dict(model.named_parameters())
    nets.initialise(model, "ntk", seed=1)
    assert dict(model.named_parameters()).keys() == before.keys()
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    conv = model.stem.conv
    torch.testing.assert_close(conv(images()), nn.functional.conv2d(images(), conv.weight, padding=1) / math.sqrt(13.5))
    nets.initialise(model, "kaiming", seed=1)
    torch.testing.assert_close(conv(images()), nn.functional.conv2d(images(), conv.weight, padding=1))


def test_ntk_multiplies_linear_weights_too_and_not_their_bias() -> None:
    layer = nets.initialise(nn.Linear(8, 3), "ntk")
    nn.init.constant_(layer.bias, 5.0)
    x = images().flatten()[:16].view(2, 8)
    torch.testing.assert_close(layer(x), x @ layer.weight.T / 2 + 5)


def test_ntk_network_exports_copies_and_pickles() -> None:
    model = nets.initialise(nets.cnn4(5, width=4, scale_invariant="affine"), "ntk")
    expected = copy.deepcopy(model)(images())
    assert torch.equal(pickle.loads(pickle.dumps(model))(images()), expected)
    torch.testing.assert_close(torch.export.export(model, (images(),)).module()(images()), expected)


def test_layers_it_does_not_know_are_refused_before_anything_changes() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Embedding(3, 2))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ArgumentError, match=r"model must be made of nn\.Conv2d, nn\.Linear and norms, got 'Embedding'"):
        nets.initialise(model, "kaiming")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("scheme", "seed", "message"), [("xavier", 0, "scheme must be one of"), ("ntk", -1, "seed must be a whole number")]
)
def test_bad_arguments_are_refused(scheme: str, seed: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        nets.initialise(small(), scheme, seed)
