"""A training on a GPU whose steps are CUDA graphs, launched on a stream of its own.

Two graphs hold a step (see `fused.step`): one the samples' choice, augmentation, forward and backward pass, the other
the update. Between two launches nothing is computed on the host. In a step that the monitor measures, the optimizer
itself makes the update, with its hooks. A last batch that is not full is an ordinary step of the training, on the same
weights and buffers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from isogon.errors import first_line
from isogon.lab.run import Run, Training
from isogon.optim import Lion, MuonWithAdamW
from isogon.schedules import AdamwForm, SgdwForm

_RECORDED = (torch.optim.SGD, torch.optim.AdamW, Lion, MuonWithAdamW)
# Steps launched one operation after another before the recording: libraries choose their algorithms, kernels compile.
# Those of a process that has recorded the same before only take their memory.
_WARM_UP_STEPS, _FURTHER_WARM_UP_STEPS = 3, 1
_RECORDED_BEFORE: set[tuple[Any, ...]] = set()


class GraphedTraining:
    """`Training` on a stream in pieces of a few steps, each of which returns before the GPU is done with it.

    `lanes` is how many share the GPU.
    """

    def __init__(self, training: Training, stream: torch.cuda.Stream, lanes: int = 1) -> None:
        self.training, self.stream, self._lanes = training, stream, lanes
        self._batch = training.config.recipe.batch_size
        used = min(training.config.steps_per_epoch * self._batch, training.config.recipe.samples)
        self._full_steps = used // self._batch
        self._step = 0
        self._in_epoch = False
        self._chance = torch.Generator(training.device)
        self._chance_on_host: torch.Tensor | None = None
        self._recording: _Recording | None = None
        #: why no graph is used; None where one is, or will be
        self.refused = why_no_graph(training)
        if self.refused is None and self._full_steps == 0:
            self.refused = "an epoch has no full batch"
        self._usable = self.refused is None
        # Copies made on another stream must have arrived.
        torch.cuda.synchronize(training.device)

    def advance(self, most: int) -> bool:
        """Launch up to `most` steps; False once the run has ended. The end of an epoch waits for this lane alone."""
        with self._apart():
            if not self._in_epoch:
                if self.training.ended:
                    return False
                self._begin_epoch()
            if self._step == self.training.config.steps_per_epoch:
                self._count_steps()
                self.training.end_epoch()
                self._in_epoch = False
            elif self._recording is None or self._step >= self._full_steps:
                self._ordinary_step()
            else:
                self._graph_steps(self._recording, min(most, self._full_steps - self._step))
        return True

    def begin(self) -> None:
        """Get ready for the first step: from here on the lane has all the GPU memory that it needs."""
        with self._apart():
            if not self._in_epoch and not self.training.ended:
                self._begin_epoch()

    def finish(self) -> Run:
        with self._apart():
            return self.training.finish()

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """On the lane's stream, and a random network with random numbers of its own, which no other lane draws from."""
        generator = _generator(self.training.device)
        shared = generator.graphsafe_get_state()
        shared_on_host = torch.get_rng_state() if self.training.is_random else None
        generator.graphsafe_set_state(self._chance)
        if self._chance_on_host is not None:
            torch.set_rng_state(self._chance_on_host)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            generator.graphsafe_set_state(shared)
            if shared_on_host is not None:
                self._chance_on_host = torch.get_rng_state()
                torch.set_rng_state(shared_on_host)

    def _count_steps(self) -> None:
        """Before the optimizer or a checkpoint looks at it: a recorded step counts nothing on the host."""
        if self._recording is not None:
            steps = self.training.config.steps_per_epoch
            self._recording.fused.count(self.training.epoch * steps + self._step)

    def _begin_epoch(self) -> None:
        self.training.begin_epoch()
        self._in_epoch, self._step = True, 0
        if self._usable and self._recording is None:
            self._record()
        if self._recording is not None:
            self._recording.fused.begin_epoch()

    def _graph_steps(self, recording: _Recording, most: int) -> None:
        monitor = self.training.monitor
        ahead = most if monitor is None else min(most, monitor.unmeasured_steps_ahead)
        driver = self.training.driver
        halvings = driver.halvings
        if ahead == 0:
            self._count_steps()
            recording.measured_step()
        else:
            if monitor is not None:
                monitor.advance(ahead)
            for _ in range(ahead):
                recording.step()
            with self.training.move_rates():
                driver.advance(ahead)
        self._step += max(1, ahead)
        if driver.halvings != halvings:
            recording.fused.refresh()
            recording.fused.take_rates()

    def _ordinary_step(self) -> None:
        self._count_steps()
        here = slice(self._step * self._batch, (self._step + 1) * self._batch)
        self.training.backward(*self.training.inputs(self.training.plan.samples[here], self.training.plan.drawn[here]))
        self.training.step()
        self._step += 1
        if self._recording is not None:
            self._recording.fused.refresh()

    def _record(self) -> None:
        """Record a step. Where that fails, for want of Triton or memory for example, all steps stay ordinary."""
        try:
            self._recording = _Recording(self.training, self.stream, self._lanes)
        except Exception as error:  # a network may do things that no graph can hold
            self._usable, self.refused = False, first_line(_first_error(error))
            _end_generator_capture(self.training.device)
            self._chance = _generator(self.training.device).graphsafe_get_state()


class _Recording:
    """The graphs of a training's step."""

    def __init__(self, training: Training, stream: torch.cuda.Stream, lanes: int) -> None:
        from isogon.lab.gpu.fused import FusedStep  # Triton is not everywhere

        self.fused = FusedStep(training, training.config.steps_per_epoch, lanes)
        before, chance = _state(training), torch.cuda.get_rng_state(training.device)
        try:
            self._record(stream)
        finally:
            # The first steps were for the recording alone.
            _restore(training, before)
            torch.cuda.set_rng_state(chance, training.device)
            self.fused.refresh()

    def _record(self, stream: torch.cuda.Stream) -> None:
        # All algorithms are tried once, for later recordings of the process too.
        tf32 = torch.backends.cudnn.allow_tf32
        with (
            torch.backends.cudnn.flags(enabled=True, benchmark=True, benchmark_limit=0, allow_tf32=tf32),
            warnings.catch_warnings(),
        ):
            # torch warns, without harm, where a product is the first operation of its backward thread.
            warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
            kind, on_host = _kind(self.fused.training), torch.get_rng_state()
            for _ in range(_FURTHER_WARM_UP_STEPS if kind in _RECORDED_BEFORE else _WARM_UP_STEPS):
                self.fused.gradients()
                self.fused.point_to_gradients()
                self.fused.update()
                self.fused.advance()
                self.fused.rewind()
            if not torch.equal(on_host, torch.get_rng_state()):
                raise RuntimeError("it draws random numbers on the host")
            self._gradients, self._update = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            # Other lanes train meanwhile, and their libraries may call the driver at any moment.
            relaxed: Any = {"stream": stream, "capture_error_mode": "relaxed"}
            with torch.cuda.graph(self._gradients, **relaxed):
                self.fused.gradients()
            with torch.cuda.graph(self._update, pool=self._gradients.pool(), **relaxed):
                self.fused.update()
                self.fused.advance()
        self.fused.point_to_gradients()
        _RECORDED_BEFORE.add(kind)

    def step(self) -> None:
        self._gradients.replay()
        self._update.replay()

    def measured_step(self) -> None:
        """The update by the optimizer, for its hooks."""
        self._gradients.replay()
        self.fused.optimizer_step()
        self.fused.advance()


def _kind(training: Training) -> tuple[Any, ...]:
    """What the operations of a step and their shapes follow from."""
    config = training.config
    shapes = tuple(tuple(parameter.shape) for parameter in training.model.parameters())
    recipe = config.recipe.optimizer, config.recipe.batch_size
    return training.device, config.net, config.precision, config.augmentation, config.clip, *recipe, shapes


def _first_error(error: BaseException) -> BaseException:
    """What went wrong first: a capture that an error cut short ends in another error, which hides the reason."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def _end_generator_capture(device: torch.device) -> None:
    """A capture that fails leaves torch's generator waiting for its end, and every later sample would be refused."""
    generator = _generator(device)
    generator.graphsafe_set_state(generator.clone_state())


def _generator(device: torch.device) -> torch.Generator:
    """That from which everything on the device draws which has no generator of its own."""
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]


def _state(training: Training) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in _tensors(training)]


@torch.no_grad()
def _restore(training: Training, state: list[torch.Tensor]) -> None:
    for tensor, value in zip(_tensors(training), state, strict=True):
        tensor.copy_(value)


def _tensors(training: Training) -> list[torch.Tensor]:
    """All that a step changes."""
    entries = [entry for state in training.optimizer.state.values() for entry in state.values()]
    buffers = [entry for entry in entries if isinstance(entry, torch.Tensor)]
    averages = [] if training.average is None else training.average.averages
    return [*training.model.parameters(), *training.model.buffers(), *buffers, *averages, training.sums]


def why_no_graph(training: Training) -> str | None:
    """Why a step of the training cannot be recorded; None where it can.

    It can where it is the same work every time and nobody looks between two: with an optimizer of the lab whose
    momentum stays.
    """
    schedule = training.driver.exponential
    reasons = {
        f"it runs on a {training.device.type} device": training.device.type != "cuda",
        f"{type(training.optimizer).__name__} is not recorded": not isinstance(training.optimizer, _RECORDED),
        "its schedule changes the momentum": isinstance(schedule, SgdwForm),
        "its schedule changes AdamW's eps": isinstance(schedule, AdamwForm),
        "it adds gradients up over micro batches": training.config.micro_batch is not None,
        "it measures angles over several steps": bool(training.config.turns),
        "its weights are not in float32": any(p.dtype != torch.float32 for p in training.model.parameters()),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
