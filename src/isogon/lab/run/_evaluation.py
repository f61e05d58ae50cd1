"""Test accuracy, loss and predictions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from isogon.lab.run._distributed import Ranks

# Images at once. No gradient is kept, so that memory does not matter; a GPU waits for the host unless there are many.
_BATCH, _CUDA_BATCH = 500, 2500


@torch.no_grad()
def evaluate(
    model: nn.Module, images: Tensor, labels: Tensor, prepare: Callable[[Tensor], Tensor], ranks: Ranks
) -> tuple[float, float]:
    """Mean loss and accuracy in eval mode, per label; the ranks share the samples."""
    sums = torch.zeros(3, dtype=torch.float64, device=labels.device)
    for x, y in zip(_parts(ranks.part(images)), _parts(ranks.part(labels)), strict=True):
        outputs = _outputs(model, prepare(x))
        right = (outputs.argmax(-1) == y).sum()
        sums += torch.stack([loss_of(outputs, y, reduction="sum"), right, right.new_tensor(y.numel())])
    loss, correct, count = ranks.total(sums).tolist()
    return loss / count, correct / count


@torch.no_grad()
def predict_classes(model: nn.Module, images: Tensor, prepare: Callable[[Tensor], Tensor]) -> Tensor:
    """The class that the network gives each image, on the CPU."""
    return torch.cat([_outputs(model, prepare(x)).argmax(-1) for x in _parts(images)]).cpu()


def loss_of(outputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy over images, or over all tokens of sequences, whose outputs have one dimension more."""
    return cross_entropy(outputs.flatten(0, -2), labels.flatten().long(), reduction=reduction)


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    return torch.split(tensor, _CUDA_BATCH if tensor.device.type == "cuda" else _BATCH)


def _outputs(model: nn.Module, x: Tensor) -> Tensor:
    was_training = model.training
    model.eval()
    try:
        outputs: Tensor = model(x)
    finally:
        model.train(was_training)
    return outputs.double()
