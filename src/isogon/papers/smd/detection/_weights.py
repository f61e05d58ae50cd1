"""Which weights of a detector are scale-invariant: those whose output goes into a batch norm as it is.

`isogon.check` exports a model, which a detector does not allow: its operations depend on what it detects. So it is
watched while it runs. A convolution or linear layer whose outputs are all inputs of a batch norm, as the same tensors,
has an invariant weight by lemma 1 of Wan et al., and a bias that the norm removes again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from isogon.symmetry import NOT_HOMOGENEOUS, UNKNOWN, Degree, ScaleMap

_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def normalised_map(model: nn.Module, work: Callable[[nn.Module], Any]) -> ScaleMap:
    """The map of `model`, from calling `work` with a copy of it in training mode."""
    norms_of = _norms_after(copy.deepcopy(model).train(), work)
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    invariant = {f"{layer}.{kind}": norms for layer, norms in norms_of.items() for kind in ("weight", "bias")}
    unknown = Degree(UNKNOWN, reason="its output is not normalised at once")
    statistics: dict[str, dict[str, tuple[float, ...]]] = {}
    for layer, norms in norms_of.items():
        for norm in norms:
            # The averages of a norm grow with the weight (and bias) before it; nothing behind the norm does.
            channels = model.get_parameter(f"{layer}.weight").shape[0]
            statistics.setdefault(norm, {})[f"{layer}.weight"] = (1.0,) * channels
    return ScaleMap(
        model=type(model).__name__,
        joint=Degree(NOT_HOMOGENEOUS, reason="not all weights are normalised"),
        alone={name: Degree.of(0) if name in invariant else unknown for name in trained},
        explanations={
            name: f"{', '.join(sorted(invariant[name]))} takes its output" if name in invariant else unknown.reason
            for name in trained
        },
        shapes={name: tuple(weight.shape) for name, weight in trained.items()},
        statistics=statistics,
    )


def _norms_after(model: nn.Module, work: Callable[[nn.Module], Any]) -> dict[str, set[str]]:
    """Layer → the batch norms that take its output; layers with an output that no norm takes are left out."""
    # Outputs are held until the end, so that no two of them have the same id.
    outputs: dict[int, tuple[str, Tensor]] = {}
    norms_of_input: dict[int, set[str]] = {}

    def leaves(layer: str, module: nn.Module, inputs: Any, output: Tensor) -> None:
        outputs[id(output)] = layer, output

    def enters(norm: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        norms_of_input.setdefault(id(inputs[0]), set()).add(norm)

    for name, module in model.named_modules():
        if isinstance(module, _LINEAR):
            module.register_forward_hook(partial(leaves, name))
        elif isinstance(module, _BatchNorm):
            module.register_forward_pre_hook(partial(enters, name))
    work(model)
    norms_of_layer: dict[str, set[str]] = {}
    for identity, (layer, _) in outputs.items():
        norms_of_layer.setdefault(layer, set()).update(norms_of_input.get(identity, {""}))
    return {layer: norms for layer, norms in norms_of_layer.items() if "" not in norms}
