"""Small configs that train in a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from isogon import Recipe
from isogon.lab import Config


@pytest.fixture
def make_config() -> Callable[..., Config]:
    """A `cnn4` of width 4 on 200 digits; what is named like a field of the recipe goes into that."""

    def make(**changes: Any) -> Config:
        recipe: dict[str, Any] = {"lr": 0.1, "weight_decay": 5e-3, "batch_size": 50, "samples": 200, "epochs": 3}
        recipe |= {name: changes.pop(name) for name in [*changes] if name in Recipe.__dataclass_fields__}
        options: dict[str, Any] = {"width": 4, "scale_invariant": "affine", "norm": "ghost", "ghost_batch": 25}
        options |= changes.pop("options", {})
        usual: dict[str, Any] = {"net": "cnn4", "data": "digits", "augmentation": "none", "monitor_every": 2}
        return Config(recipe=Recipe(**recipe), net_options=options, **{**usual, **changes})

    return make


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As workers have it: runs are the same to the bit only with the same number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
