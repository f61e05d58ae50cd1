"""A whole step of a training in few kernels, to be recorded in CUDA graphs: first the gradients, then the update.

What differs from step to step is read on the device: the number of the step within its epoch, and with it the samples'
order, their augmentation, and the rates of each parameter group. The parameters, momentum buffers, running statistics
and sums are those of the training itself, so that any step can as well be an ordinary one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from isogon.lab.gpu.fused._images import BatchMaker, can_make
from isogon.lab.gpu.fused._loss import MOST_CLASSES, cross_entropy_with_sums
from isogon.lab.gpu.fused._network import Twin
from isogon.lab.gpu.fused._norm import programs_beside
from isogon.lab.gpu.fused._update import SgdUpdate
from isogon.lab.run import Training


class _GroupUpdate(NamedTuple):
    """An update, the places of its tensors among the parameters, and its group's rates."""

    places: list[int]
    rates: torch.Tensor
    update: SgdUpdate


class FusedStep:
    """The two halves of a step of `training`, one of `lanes` lanes; its optimizer is SGD, its epoch has started."""

    def __init__(self, training: Training, steps: int, lanes: int) -> None:
        self.training, device = training, training.device
        self._batch = training.config.recipe.batch_size
        # What a step reads: the samples' order, their augmentation, the groups' rates, and its number within the epoch.
        self._order, self._drawn = training.plan.samples.clone(), training.plan.drawn.clone()
        self._rates = torch.zeros(len(training.optimizer.param_groups), 3, steps, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        self._dtype = torch.bfloat16 if training.config.precision == "bfloat16" else training.dtype
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        self._twin = Twin(training.model, self._dtype, programs_beside(lanes, multiprocessors))
        images = training.data.train_x
        self._maker = None
        if can_make(images, training.augmentation):
            self._maker = BatchMaker(
                images,
                training.data.train_y,
                training.augmentation,
                training.data.mean,
                training.data.std,
                batch=self._batch,
                dtype=self._dtype,
                width=self._twin.image_channels or images.shape[1],
            )
        self._within_batch = torch.arange(self._batch, device=device)
        self._gradients: list[torch.Tensor] = []
        # The same for the optimizer, in the parameters' types.
        self._wide: list[torch.Tensor] = []
        self._updates = self._make_updates()

    def _make_updates(self) -> list[_GroupUpdate]:
        """An update for each group and type of gradient."""
        optimizer = self.training.optimizer
        parameters, leaves = self._twin.parameters, self._twin.leaves
        group_of = {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
        kinds = [(group_of[id(p)], leaf.dtype) for p, leaf in zip(parameters, leaves, strict=True)]
        updates = []
        for number, kind in sorted(set(kinds), key=str):
            group = optimizer.param_groups[number]
            places = [i for i, of_leaf in enumerate(kinds) if of_leaf == (number, kind)]
            buffers = [_momentum_buffer(optimizer, parameters[i]) for i in places] if group["momentum"] else []
            copies = [leaves[i].detach() for i in places] if kind != torch.float32 else []
            update = SgdUpdate(
                [parameters[i].detach() for i in places],
                buffers,
                copies,
                kind=kind,
                momentum=group["momentum"],
                nesterov=group["nesterov"],
            )
            updates.append(_GroupUpdate(places, self._rates[number], update))
        return updates

    def begin_epoch(self) -> None:
        """Take over the training's plan of the epoch."""
        self._order.copy_(self.training.plan.samples)
        self._drawn.copy_(self.training.plan.drawn)
        self.take_rates()
        self.rewind()

    def take_rates(self) -> None:
        """Take over the driver's rates of the epoch, as they are until it halves the weights."""
        length = self._rates.shape[2]
        steps = self.training.epoch * length + np.arange(length)
        self._rates.copy_(torch.from_numpy(np.array(self.training.driver.rates(steps), dtype=np.float32)))

    def gradients(self) -> None:
        """Forward and backward pass."""
        training, twin = self.training, self._twin
        if self._maker is not None:
            x, y = self._maker(self._order, self._drawn, self._place)
        else:
            rows = self._place * self._batch + self._within_batch
            x, y = training.inputs(self._order[rows], self._drawn[rows])
        with training.autocast():
            outputs = twin.network(x)
        if outputs.shape[1] <= MOST_CLASSES:
            loss = cross_entropy_with_sums(outputs, y, training.sums)
        else:
            loss = cross_entropy(outputs.to(training.dtype), y)
            training.note(loss, outputs, y)
        twin.count_batches(self._batch)
        gradients = torch.autograd.grad(loss, twin.leaves)
        self._gradients = [_like(gradient, leaf) for gradient, leaf in zip(gradients, twin.leaves, strict=True)]

    def point_to_gradients(self) -> None:
        """The update is to use the gradients of the last pass, or of the recorded one."""
        for places, _, update in self._updates:
            update.point_to([self._gradients[i] for i in places])

    def update(self) -> None:
        """The optimizer's step by the gradients at hand."""
        for _, rates, update in self._updates:
            update.launch(rates, self._place)

    def advance(self) -> None:
        """To the next step of the epoch."""
        self._place += 1

    def rewind(self) -> None:
        """To the first step of the epoch."""
        self._place.zero_()

    @torch.no_grad()
    def optimizer_step(self) -> None:
        """The update through the optimizer itself, whose hooks measure it; gradients as the parameters' types."""
        parameters = self._twin.parameters
        if not self._wide:
            self._wide = [torch.empty_like(parameter) for parameter in parameters]
        torch._foreach_copy_(self._wide, self._gradients)
        for parameter, gradient in zip(parameters, self._wide, strict=True):
            parameter.grad = gradient
        self.training.step()
        self.training.optimizer.zero_grad(set_to_none=True)
        self.refresh()

    def refresh(self) -> None:
        """To be called after a step that was not made here."""
        self._twin.refresh()


def _momentum_buffer(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> torch.Tensor:
    """The optimizer's buffer; zeros before the first step, after which they hold what it would have put there."""
    state: dict[str, Any] = optimizer.state[parameter]
    if state.get("momentum_buffer") is None:
        state["momentum_buffer"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    buffer: torch.Tensor = state["momentum_buffer"]
    return buffer


def _like(gradient: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """The gradient laid out as the weight is."""
    return gradient if gradient.stride() == leaf.stride() else torch.empty_like(leaf).copy_(gradient)
