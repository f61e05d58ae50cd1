"""The network of scale `tiny`: `cnn4` on averaged images, alike in everything that the experiments look at."""

from __future__ import annotations

import pytest
import torch

from isogon import check, nets
from isogon.papers.reproduction._experiment import Options
from isogon.papers.reproduction._registry import experiments
from isogon.papers.tiny_network import TINY_NETWORK, coarse_cnn4

OPTIONS = [
    {"scale_invariant": "plain", "norm": "batch"},
    {"scale_invariant": "affine", "norm": "ghost", "ghost_batch": 4},
    {"scale_invariant": False, "norm": "ghost", "ghost_batch": 4},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: f"{options['scale_invariant']}-{options['norm']}")
def test_degrees_and_names_are_those_of_cnn4(options):
    x = torch.rand(8, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        coarse, fine = coarse_cnn4(10, 3, width=2, **options), nets.cnn4(10, 3, width=2, **options)
    names, others = ([name for name, _ in model.named_parameters()] for model in (coarse, fine))
    assert names == others
    found, wanted = check(coarse, x), check(fine, x)
    assert found.is_invariant == wanted.is_invariant == bool(options["scale_invariant"])
    assert str(found.joint) == str(wanted.joint)
    assert {name: str(degree) for name, degree in found.alone.items()} == {
        name: str(degree) for name, degree in wanted.alone.items()
    }
    # In double precision: batch norm over few values multiplies rounding errors, by how much depends on the processor.
    coarse.load_state_dict(fine.state_dict())
    coarse, fine, x = coarse.double(), fine.double(), x.double()
    means = x.unfold(2, 4, 4).unfold(3, 4, 4).mean((4, 5))
    torch.testing.assert_close(coarse(x), fine(means), rtol=1e-9, atol=1e-9)


def test_what_tiny_trains_is_told_among_the_choices():
    words = {"fashion-mini": "fashion", "drawn-folders": "drawn"}
    for identity, experiment in experiments().items():
        text = " ".join(experiment.choices).lower()
        configs = [planned.config for planned in experiment.plan(Options(scale="tiny"))]
        for data in {config.data for config in configs}:
            assert words[data] in text, f"{identity} does not say that tiny has {data}"
        if any(config.net == TINY_NETWORK for config in configs):
            assert "averaged to" in text, f"{identity} does not say that tiny averages pixels"
