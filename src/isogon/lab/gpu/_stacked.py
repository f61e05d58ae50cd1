"""Gradients of several copies of one network at once, their weights stacked: fewer, larger operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from isogon.lab.run import Training, loss_of

NamedTensors = dict[str, Tensor]


def backward_together(trainings: Sequence[Training], batches: Sequence[tuple[Tensor, Tensor]]) -> None:
    """What `training.backward(x, y)` does for each training with its batch; the batches have one shape.

    Weights, buffers and gradients stay where each training has them, so that optimizers, schedules and monitors see
    no difference: stacking copies the weights, which is little beside the work on a batch.
    """
    skeleton = trainings[0]

    def loss_and_outputs(
        weights: NamedTensors, fixed: NamedTensors, buffers: NamedTensors, x: Tensor, y: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        with skeleton.autocast():
            outputs = functional_call(skeleton.model, {**weights, **fixed, **buffers}, (x,))
        loss = loss_of(outputs.to(skeleton.dtype), y)
        return loss, (loss, outputs)

    weights, fixed = _stack_parameters(trainings)
    buffers = _stack([dict(training.model.named_buffers()) for training in trainings])
    x, y = torch.stack([x for x, _ in batches]), torch.stack([y for _, y in batches])
    with sdpa_kernel(SDPBackend.MATH):  # the fused attention of a CPU cannot be stacked
        gradients, (losses, outputs) = vmap(grad(loss_and_outputs, has_aux=True))(weights, fixed, buffers, x, y)
    for place, training in enumerate(trainings):
        for name, parameter in training.model.named_parameters():
            if name in gradients:
                parameter.grad = gradients[name][place]
        for name, buffer in training.model.named_buffers():
            buffer.copy_(buffers[name][place])  # normalisation has updated its running statistics in the stack
        training.note(losses[place], outputs[place], batches[place][1])


def _stack_parameters(trainings: Sequence[Training]) -> tuple[NamedTensors, NamedTensors]:
    """The trained ones and the frozen ones."""
    parameters = [dict(training.model.named_parameters()) for training in trainings]
    trained = {name for name, parameter in parameters[0].items() if parameter.requires_grad}
    weights = _stack([{name: p for name, p in named.items() if name in trained} for named in parameters])
    fixed = _stack([{name: p for name, p in named.items() if name not in trained} for named in parameters])
    return weights, fixed


def _stack(copies: Sequence[NamedTensors]) -> NamedTensors:
    return {name: torch.stack([tensors[name].detach() for tensors in copies]) for name in copies[0]}
