"""The initialisations of LLA's figure 8: Kaiming, NTK with its multiplier, and Kaiming times 1000 or 0.001."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn

from isogon.errors import ArgumentError, check_choice, check_whole
from isogon.nets.layers._norms import NORMS

Scheme = Literal["kaiming", "ntk", "kaiming*1000", "kaiming*0.001"]
_FACTORS = {"kaiming": 1.0, "kaiming*1000": 1e3, "kaiming*0.001": 1e-3}


class NTKConv2d(nn.Conv2d):
    """A convolution whose weight is multiplied by √(2 / fan-in) in the forward pass (Jacot et al. 2018)."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self._conv_forward(input, self.weight * _deviation(self.weight), self.bias)
        return output


class NTKLinear(nn.Linear):
    """A linear layer whose weight is multiplied by √(2 / fan-in) in the forward pass (Jacot et al. 2018)."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(input, self.weight * _deviation(self.weight), self.bias)


_STANDARD_FORM: dict[type, type] = {
    nn.Conv2d: nn.Conv2d,
    NTKConv2d: nn.Conv2d,
    nn.Linear: nn.Linear,
    NTKLinear: nn.Linear,
}
_NTK_FORM: dict[type, type] = {nn.Conv2d: NTKConv2d, nn.Linear: NTKLinear}


def initialise(model: nn.Module, scheme: Scheme, seed: int = 0) -> nn.Module:
    """Initialises `model`, in place, in one of the four ways of LLA's figure 8, and returns it.

    With z standard normal, sampled module by module from a generator of `seed` alone (torch's global one is not
    touched), and n the fan-in of a convolution or linear layer:

    | scheme          | weight         | forward pass uses |
    |-----------------|----------------|-------------------|
    | "kaiming"       | √(2/n) z       | weight            |
    | "ntk"           | z              | √(2/n) · weight   |
    | "kaiming*1000"  | 1000 √(2/n) z  | weight            |
    | "kaiming*0.001" | 0.001 √(2/n) z | weight            |

    Biases are 0; norms get γ = 1, β = 0 and fresh running statistics. Frozen weights (the classifier of a
    scale-invariant network) are plain Kaiming whatever the scheme. So all four start a scale-invariant
    network as one and the same function; they differ in ‖w‖. For "ntk" the trainable layers become NTKConv2d
    and NTKLinear: the same modules, parameters and state-dict keys with another forward pass, which any other
    scheme undoes.
    """
    check_choice("scheme", scheme, ("kaiming", "ntk", "kaiming*1000", "kaiming*0.001"))
    check_whole("seed", seed, low=0, cure="give a number from 0 upwards")
    sample_weights(model, torch.Generator().manual_seed(seed), scheme)
    return model


@torch.no_grad()
def sample_weights(model: nn.Module, generator: torch.Generator | None = None, scheme: Scheme = "kaiming") -> None:
    """`initialise` from a generator, or from torch's global one when none is given."""
    owners = [module for module in model.modules() if any(True for _ in module.parameters(recurse=False))]
    for module in owners:
        if type(module) not in _STANDARD_FORM and not isinstance(module, NORMS):
            raise ArgumentError(
                "model",
                "made of nn.Conv2d, nn.Linear and norms",
                type(module).__name__,
                "initialise its other layers by hand",
            )
    for module in owners:
        if isinstance(module, nn.Conv2d | nn.Linear):
            _sample_layer(module, generator, scheme if module.weight.requires_grad else "kaiming")
    for module in model.modules():
        if isinstance(module, NORMS):
            module.reset_parameters()


def _sample_layer(layer: nn.Conv2d | nn.Linear, generator: torch.Generator | None, scheme: Scheme) -> None:
    # Sampled on the CPU in float32 and rounded once, so that a seed means the same weights on every device and dtype.
    z = torch.randn(layer.weight.shape, generator=generator, dtype=torch.float32, device="cpu").double()
    standard = _STANDARD_FORM[type(layer)]
    # Only the class changes: an optimizer that holds the parameters, and hooks on the module, stay valid.
    layer.__class__ = _NTK_FORM[standard] if scheme == "ntk" else standard
    layer.weight.copy_(z if scheme == "ntk" else z * (_deviation(z) * _FACTORS[scheme]))
    if layer.bias is not None:
        layer.bias.zero_()


def _deviation(weight: torch.Tensor) -> float:
    """√(2 / fan-in): the standard deviation of Kaiming weights before a ReLU (He et al. 2015)."""
    return math.sqrt(2 / weight.shape[1:].numel())
