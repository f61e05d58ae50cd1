"""A whole step of a training in few kernels, to be recorded in CUDA graphs: first the gradients, then the update.

What differs from step to step is read on the device: the number of the step within its epoch, and with it the samples'
order, their augmentation, and the rates of each parameter group. The parameters, momentum buffers, running statistics
and sums are those of the training itself, so that any step can as well be an ordinary one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from isogon.lab.gpu.fused._images import BatchMaker, can_make
from isogon.lab.gpu.fused._loss import MOST_CLASSES, cross_entropy_with_sums
from isogon.lab.gpu.fused._network import Twin
from isogon.lab.gpu.fused._norm import programs_beside
from isogon.lab.gpu.fused._optimizer import FusedOptimizer, Weight
from isogon.lab.run import Training, loss_of


class FusedStep:
    """The two halves of a step of `training`, one of `lanes` lanes; its epoch has started."""

    def __init__(self, training: Training, steps: int, lanes: int) -> None:
        self.training, device = training, training.device
        self._batch = training.config.recipe.batch_size
        # What a step reads: the samples' order, their augmentation, and its number within the epoch.
        self._steps = steps
        self._order, self._drawn = training.plan.samples.clone(), training.plan.drawn.clone()
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
        self._clip: torch.Tensor | None = None
        # The same for the optimizer, in the parameters' types.
        self._wide: list[torch.Tensor] = []
        averages = training.average.averages if training.average is not None else [None] * len(self._twin.parameters)
        parts = zip(self._twin.parameters, self._twin.copies, averages, strict=True)
        weights = [
            Weight(parameter, copy, average, parameter.dtype if copy is None else copy.dtype)
            for parameter, copy, average in parts
        ]
        self._optimizer = FusedOptimizer(training.optimizer, weights, steps)

    def begin_epoch(self) -> None:
        """Take over the training's plan of the epoch."""
        self._order.copy_(self.training.plan.samples)
        self._drawn.copy_(self.training.plan.drawn)
        self.take_rates()
        self.rewind()

    def take_rates(self) -> None:
        """Take over the driver's rates of the epoch, as they are until it halves the weights."""
        training = self.training
        before = training.epoch * self._steps
        steps = before + np.arange(self._steps)
        share = 0.0 if training.average is None else training.average.shares(steps)
        self._optimizer.set_rates(training.driver.rates(steps), before, share)

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
        logits, labels = outputs.flatten(0, -2), y.flatten()
        if logits.shape[1] <= MOST_CLASSES:
            loss = cross_entropy_with_sums(logits, labels, training.sums)
        else:
            loss = loss_of(logits.to(training.dtype), labels)
            training.note(loss, logits, labels)
        twin.count_batches(self._batch)
        self._gradients = twin.gradients(torch.autograd.grad(loss, twin.leaves))
        self._clip = None if training.config.clip is None else _factor(self._gradients, training.config.clip)

    def point_to_gradients(self) -> None:
        """The update is to use the gradients of the last pass, or of the recorded one."""
        self._optimizer.point_to(self._gradients)

    def update(self) -> None:
        """The optimizer's step by the gradients at hand."""
        self._optimizer.launch(self._place, self._clip)

    def advance(self) -> None:
        """To the next step of the epoch."""
        self._place += 1

    def rewind(self) -> None:
        """To the first step of the epoch."""
        self._place.zero_()

    def count(self, steps: int) -> None:
        """So many steps of the run were made: for the optimizer and the average, which count their own."""
        self._optimizer.count(steps)
        if self.training.average is not None:
            self.training.average.count(steps)

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


def _factor(gradients: Sequence[torch.Tensor], most: float) -> torch.Tensor:
    """What clips them to the norm `most`, as `torch.nn.utils.clip_grad_norm_` does."""
    kinds = {gradient.dtype for gradient in gradients}
    of_kinds = [[gradient for gradient in gradients if gradient.dtype == kind] for kind in kinds]
    norms = [norm for kind in of_kinds for norm in torch._foreach_norm(kind, 2, dtype=torch.float32)]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    return torch.clamp(most / (norm + 1e-6), max=1.0)
