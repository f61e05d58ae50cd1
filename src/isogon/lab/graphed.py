"""A trial on a GPU whose steps are one CUDA graph, launched on a stream of its own.

The graph holds a whole step: choosing the samples, augmentation, forward and backward pass, the optimizer's update and
the epoch's sums. Which step it is, is a number on the device; the order of the epoch and its learning rates lie beside
it, so that between two launches nothing is computed on the host. Steps that the monitor measures, a last batch that is
not full, and the first few of all are ordinary ones, on the same weights and buffers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.sgd import sgd

from isogon.lab.runs import Run
from isogon.lab.trial import Trial

# Ordinary steps before the capture: libraries choose their algorithms, and momentum buffers come to be.
_FIRST_STEPS = 3


class GraphedTrial:
    """`Trial` in pieces of a few steps, each of which returns before the GPU is done with it."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self._stream = torch.cuda.Stream(trial.device)  # type: ignore[no-untyped-call]
        self._batch = trial.config.recipe.batch_size
        used = min(trial.config.steps_per_epoch * self._batch, trial.config.recipe.samples)
        self._full_steps = used // self._batch
        self._step = 0
        self._in_epoch = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._captured_decay = float("nan")
        self._usable = can_graph(trial)
        # What the graph reads: the samples' order, their draws, the rates, and the step within the epoch.
        self._order = torch.zeros(used, dtype=torch.int64, device=trial.device)
        self._drawn: Tensor | None = None
        self._rates = torch.zeros(trial.config.steps_per_epoch, device=trial.device)
        self._place = torch.zeros(1, dtype=torch.int64, device=trial.device)
        self._within_batch = torch.arange(self._batch, device=trial.device)
        # Copies made on another stream must have arrived.
        torch.cuda.synchronize(trial.device)

    def advance(self, most: int) -> bool:
        """Launch up to `most` steps; False once the run has ended. The end of an epoch waits for this lane alone."""
        with torch.cuda.stream(self._stream):
            if not self._in_epoch:
                if self.trial.ended:
                    return False
                self._begin_epoch()
            if self._step == self.trial.config.steps_per_epoch:
                self.trial.end_epoch()
                self._in_epoch = False
            elif (count := self._graph_steps_ahead(most)) > 0:
                self._replay(count)
            else:
                self._ordinary_step()
        return True

    def finish(self) -> Run:
        with torch.cuda.stream(self._stream):
            return self.trial.finish()

    def _begin_epoch(self) -> None:
        self.trial.begin_epoch()
        self._in_epoch, self._step = True, 0
        plan = self.trial.plan
        self._order.copy_(plan.samples)
        if self._drawn is None:
            self._drawn = plan.drawn.clone()
        self._drawn.copy_(plan.drawn)
        self._place.zero_()
        first = self.trial.epoch * self.trial.config.steps_per_epoch
        steps = np.arange(first, first + self.trial.config.steps_per_epoch)
        self._rates.copy_(torch.from_numpy(self.trial.driver.schedule.lr(steps).astype(np.float32)))
        decays = self.trial.driver.schedule.weight_decay(steps)
        # The weight decay is a constant of the graph; a drop of it means another one.
        self._decay = float(decays[0]) if (decays == decays[0]).all() else None

    def _graph_steps_ahead(self, most: int) -> int:
        """How many steps from here on are the graph's, `most` at most."""
        done = self.trial.epoch * self.trial.config.steps_per_epoch + self._step
        if not self._usable or self._decay is None or done < _FIRST_STEPS:
            return 0
        count = min(most, self._full_steps - self._step)
        if self.trial.monitor is not None:
            count = min(count, self.trial.monitor.unmeasured_steps_ahead)
        if count > 0 and (self._graph is None or self._captured_decay != self._decay):
            self._capture()
        return count if self._usable else 0

    def _replay(self, count: int) -> None:
        assert self._graph is not None
        if self.trial.monitor is not None:
            self.trial.monitor.advance(count)
        for _ in range(count):
            self._graph.replay()
        self._step += count
        # The optimizer did not step; its schedule goes on all the same.
        driver = self.trial.driver
        driver.load_state_dict({**driver.state_dict(), "step": driver.last_epoch + count})

    def _ordinary_step(self) -> None:
        here = slice(self._step * self._batch, (self._step + 1) * self._batch)
        self.trial.backward(*self.trial.inputs(self.trial.plan.samples[here], self.trial.plan.drawn[here]))
        self.trial.step()
        self._place += 1
        self._step += 1

    def _capture(self) -> None:
        """Record a step; nothing is computed by that. Where it cannot be recorded, all steps stay ordinary."""
        self._graph = torch.cuda.CUDAGraph()
        self._captured_decay = float(self._decay or 0.0)
        self.trial.optimizer.zero_grad(set_to_none=True)
        try:
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._one_step()
        except RuntimeError:
            self._graph, self._usable = None, False
        finally:
            # The gradients of the capture live in the graph's memory.
            self.trial.optimizer.zero_grad(set_to_none=True)

    def _one_step(self) -> None:
        assert self._drawn is not None
        trial = self.trial
        rows = self._place * self._batch + self._within_batch
        x, y = trial.inputs(self._order[rows], self._drawn[rows])
        with trial.autocast():
            outputs = trial.network(x)
        loss = cross_entropy(outputs.to(trial.dtype), y)
        torch.autograd.backward(loss)
        trial.note(loss, outputs, y)
        group = trial.optimizer.param_groups[0]
        weights: list[Any] = [p for p in group["params"] if p.grad is not None]
        with torch.no_grad():
            sgd(
                weights,
                [p.grad for p in weights],
                [trial.optimizer.state[p].get("momentum_buffer") for p in weights],
                fused=True,
                lr=self._rates[self._place].reshape(()),  # type: ignore[arg-type]
                weight_decay=self._captured_decay,
                momentum=group["momentum"],
                dampening=0.0,
                nesterov=group["nesterov"],
                maximize=False,
            )
        self._place += 1


def can_graph(trial: Trial) -> bool:
    """Whether a step of the trial is the same work every time: SGD, an ordinary schedule, no chance in the network."""
    kinds = (torch.float32,)  # the kernel that takes a rate on the device
    return (
        trial.device.type == "cuda"
        and isinstance(trial.optimizer, torch.optim.SGD)
        and trial.driver.exponential is None
        and not trial.draws
        and trial.config.micro_batch is None
        and all(p.dtype in kinds for p in trial.model.parameters())
    )
