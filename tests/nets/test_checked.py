"""The static check on the papers' networks in their variants: what their docstrings claim is what it finds."""

from __future__ import annotations

import pytest
import torch

from isogon import nets
from isogon.nets.layers import NORM_KINDS as NORMS
from isogon.symmetry import check

INVARIANT = {
    "cnn4": {"width": 4},
    "resnet18": {"width": 4},
    "resnet50": {"width": 4},
    "preresnet32": {"width": 4},
    "vgg16": {"width": 4},
    "densenet100": {"width": 4},
    "mobilenet_v2": {"width": 0.2, "dropout": 0.2},
    "shufflenet_v2": {"width": 0.25},
}
GATED = {"efficientnet_b0": {"width": 0.25}, "shufflenet_v2_plus": {"width": 0.25}}
QUICK = ("cnn4", "resnet18")


def cases(names, norms):
    for name in names:
        for norm in norms:
            quick = name in QUICK and norm in ("batch", "group")
            yield pytest.param(name, norm, marks=() if quick else pytest.mark.slow, id=f"{name}-{norm}")


def check_network(name, options, norm, style, verify=False):
    torch.manual_seed(0)
    model = getattr(nets, name)(scale_invariant=style, norm=norm, ghost_batch=4, **options)
    return model, check(model, torch.randn(8, 3, 32, 32), verify=verify)


@pytest.mark.parametrize(("name", "norm"), cases(INVARIANT, NORMS))
def test_scale_invariant_variants_are_and_published_ones_are_not(name, norm):
    for style in ("affine", "plain"):
        _, scale_map = check_network(name, INVARIANT[name], norm, style)
        assert scale_map.is_invariant, str(scale_map)
    _, published = check_network(name, INVARIANT[name], norm, False)
    assert published.verdict == "not invariant"


@pytest.mark.slow
@pytest.mark.parametrize("style", [False, "affine", "plain"])
@pytest.mark.parametrize("name", GATED)
def test_gated_networks_are_not_but_their_convolutions_are_alone(name, style):
    model, scale_map = check_network(name, GATED[name], "batch", style)
    assert scale_map.verdict == "not invariant"
    convolutions = {n for n, p in model.named_parameters() if p.ndim == 4 and "gate" not in n}
    assert convolutions <= set(scale_map.invariant)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*INVARIANT, *GATED])
def test_measurement_agrees(name):
    _, scale_map = check_network(name, {**INVARIANT, **GATED}[name], "batch", "affine", verify=True)
    assert scale_map.disagreements == ()
