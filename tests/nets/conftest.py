from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn


@pytest.fixture
def exact() -> Callable[[nn.Module], nn.Module]:
    """Brings a network to where scale invariance is exact: float64, and norms whose ε does not count."""

    def prepare(model: nn.Module) -> nn.Module:
        for module in model.modules():
            if hasattr(module, "eps"):
                module.eps = 1e-30
        return model.double()

    return prepare
