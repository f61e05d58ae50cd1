"""Images or tokens per second of many trainings at once on one GPU: lanes against a plain and a compiled loop.

    python benchmarks/gpu_lanes.py [--only resnet18] [--styles lanes] [--seconds 4] [--json FILE]
    TRITON_CACHE_DIR=$(mktemp -d) python benchmarks/gpu_lanes.py --asides [--only resnet18] [--json FILE]

All styles train the same networks in bfloat16: convolutional ones (scale-invariant "affine", ghost batches of 64 where
the batch allows) channels-last on random images of the real shape with crops and mirrors, GPTs on Python's standard
library. User networks are timm's, where it is installed.

- `plain`: an eager PyTorch loop with autocast, the data on the GPU, torch's fused optimizer where there is one;
- `graph`: the whole of that step as one CUDA graph;
- `compiled`: `torch.compile` of the network, whose ghost norms are plain operations that it can fuse, in a graph with a
  branch for each of several networks (bare: no records, no test, no order of samples);
- `lanes`: `isogon.lab.lanes`, with everything that it does: a new order each epoch, epoch angles of every layer and
  norms (`monitor_every` beyond the epoch), tests at the epochs' ends (on 512 images), records in memory.

With `--asides` lanes are measured without a monitor, with epoch angles, and with a step in ten measured too, and how
long a sweep of 16 trainings takes to its first step is reported: everything is compiled there, hence the empty cache.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import gc
import json
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import processor
from torch import Tensor, nn
from torch.func import functional_call

import isogon
from isogon import Recipe
from isogon.lab import Config, Training, lanes
from isogon.lab.run import loss_of
from isogon.nets import GhostBatchNorm1d, GhostBatchNorm2d

EPOCHS = 1000
# Lanes with which the monitor's cost is measured.
_MONITORED_LANES = 4
# What identifies a row.
_PLACE = ("work", "style", "batch", "lanes")


class Enough(Exception):
    """Lanes have been measured for long enough."""


_INVARIANT = {"scale_invariant": "affine", "norm": "ghost", "ghost_batch": 64}


@dataclass(frozen=True)
class Work:
    """A network, its data, the batch and the optimizer; `at_once` are the numbers of lanes to try.

    `size` is the side of images, or the context of text, whose `channels` are 0.
    """

    net: str
    batch: int
    size: int = 32
    channels: int = 3
    samples: int = 50_000
    optimizer: str = "sgd"
    options: Mapping[str, Any] = field(default_factory=lambda: dict(_INVARIANT))
    at_once: tuple[int, ...] = (1, 2, 4, 8)
    compiled: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        parts = [self.net.rpartition(":")[2]]
        parts += [f"{self.options['depth']} × {self.options['width']}"] if "depth" in self.options else []
        parts += [f"{self.size}×{self.size}" if self.channels else f"{self.size} tokens"]
        parts += [f", {self.samples:,} samples"] if self.samples < 50_000 and self.channels else []
        return " ".join(parts) + ("" if self.optimizer == "sgd" else f", {self.optimizer}")

    @property
    def unit(self) -> str:
        return "images" if self.channels else "tokens"

    @property
    def labels(self) -> int:
        """Of a batch: its images or tokens."""
        return self.batch * (1 if self.channels else self.size)

    @property
    def steps(self) -> int:
        """Steps per epoch."""
        return self.samples // self.batch


_VIT = {"depth": 12, "width": 192, "heads": 3}
_GPT = {"depth": 4, "width": 128, "heads": 4}
_TEXT: dict[str, Any] = {"size": 128, "channels": 0, "samples": 16_384, "optimizer": "adamw", "options": _GPT}
_OF_USERS: dict[str, Any] = {"options": {}, "at_once": (1, 6), "compiled": (1,), "optimizer": "adamw"}
WORKS = {
    "resnet18": Work("resnet18", 128, at_once=(1, 4, 6, 8), compiled=(4,)),
    # Yun's smallest subset: an epoch's end, with its test and records, every 24 steps
    "resnet18-3125": Work("resnet18", 128, samples=3125, at_once=(4, 8)),
    # 9 steps an epoch
    "resnet18-1250": Work("resnet18", 128, samples=1250, at_once=(6,)),
    "resnet18-adamw": Work("resnet18", 128, optimizer="adamw", at_once=(1, 6), compiled=(4,)),
    "cnn4": Work("cnn4", 128, size=28, channels=1, samples=60_000, at_once=(1, 8, 16)),
    "cnn4-6000": Work("cnn4", 128, size=28, channels=1, samples=6000, at_once=(16,)),
    "preresnet32": Work("preresnet32", 128, at_once=(1, 8)),
    "resnet18-1024": Work("resnet18", 1024, at_once=(1, 2)),
    "densenet100": Work("densenet100", 128, samples=12_500, at_once=(1, 2)),
    "vit": Work("vit", 128, optimizer="adamw", options=_VIT, at_once=(1, 6), compiled=(1,)),
    "gpt": Work("gpt", 16, **_TEXT, at_once=(1, 8), compiled=(1,)),
    "gpt-muon": Work("gpt", 16, **{**_TEXT, "optimizer": "muon"}, at_once=(1, 8)),
    "gpt-124m": Work(
        "gpt",
        8,
        size=1024,
        channels=0,
        samples=2048,
        optimizer="adamw",
        options={"depth": 12, "width": 768, "heads": 12, "norm": "layer", "activation": "gelu"},
        at_once=(1,),
        compiled=(1,),
    ),
    "timm-resnet18": Work("benchmarks/gpu_lanes.py:timm_resnet18", 128, **_OF_USERS),
    "timm-mobilenetv2": Work("benchmarks/gpu_lanes.py:timm_mobilenetv2", 128, **_OF_USERS),
    "timm-vit": Work("benchmarks/gpu_lanes.py:timm_vit", 128, **_OF_USERS),
}


def timm_resnet18(num_classes: int, in_channels: int) -> nn.Module:
    return _timm("resnet18", num_classes, in_channels)


def timm_mobilenetv2(num_classes: int, in_channels: int) -> nn.Module:
    return _timm("mobilenetv2_100", num_classes, in_channels)


def timm_vit(num_classes: int, in_channels: int) -> nn.Module:
    return _timm("vit_tiny_patch16_224", num_classes, in_channels, img_size=32, patch_size=4)


def _timm(name: str, num_classes: int, in_channels: int, **options: Any) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(name, num_classes=num_classes, in_chans=in_channels, **options)
    return model


@dataclass
class Row:
    work: str
    style: str
    batch: int
    lanes: int
    images_per_second: float  # or tokens
    ratio_to_plain: float | None
    unit: str = "images"


class Bench:
    """The styles of one work."""

    def __init__(self, work: Work, folder: Path, seconds: float) -> None:
        self.work, self.folder, self.seconds = work, folder, seconds
        if not work.channels:
            self.data = f"python-stdlib?context={work.size}"
            return
        random = np.random.default_rng(0)
        shape = (work.size, work.size, work.channels)
        samples = work.batch * work.steps
        path = folder / f"{work.size}-{work.channels}-{samples}.npz"
        labels = np.arange(samples) % 10
        np.savez(
            path,
            train_x=random.integers(0, 256, (samples, *shape), dtype=np.uint8),
            train_y=labels,
            test_x=random.integers(0, 256, (512, *shape), dtype=np.uint8),
            test_y=np.arange(512) % 10,
        )
        self.data = f"npz:{path}"

    def config(self, seed: int, *, epochs: int = EPOCHS, monitor_every: int = 10**6) -> Config:
        optimizer = self.work.optimizer
        recipe = Recipe(
            optimizer=optimizer,
            lr=0.1 if optimizer == "sgd" else 1e-3,
            weight_decay=5e-4 if optimizer == "sgd" else 0.1,
            momentum=0.95 if optimizer == "muon" else 0.9,
            beta2=0.95 if optimizer == "adamw" else None,
            batch_size=self.work.batch,
            samples=self.work.batch * self.work.steps,
            epochs=epochs,
        )
        return Config(
            recipe=recipe,
            net=self.work.net,
            net_options=self.work.options,
            data=self.data,
            augmentation="crop-flip" if self.work.channels else "none",
            precision="bfloat16",
            schedule="constant",
            monitor_every=monitor_every,
            seed=seed,
            save_weights=False,
        )

    def training(self, seed: int = 0) -> Training:
        training = Training(self.config(seed, monitor_every=0), device="cuda")
        training.begin_epoch()
        return training

    def time_calls(self, step: Callable[[], None]) -> float:
        """Calls of `step` per second, the median of five stretches."""
        step()
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        count = max(3, int(self.seconds / 5 / (time.perf_counter() - start)))
        rates = []
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(count):
                step()
            torch.cuda.synchronize()
            rates.append(count / (time.perf_counter() - start))
        return statistics.median(rates)

    def plain(self) -> float:
        training = self.training()
        optimizer = self.fastest(training)
        batches = self.endless(training)

        def step() -> None:
            x, y = next(batches)
            optimizer.zero_grad(set_to_none=True)
            with training.autocast():
                loss = loss_of(training.model(x), y)
            loss.backward()
            optimizer.step()

        with all_algorithms():
            for _ in range(5):
                step()
            return self.work.labels * self.time_calls(step)

    def fastest(self, training: Training, weights: Sequence[Tensor] | None = None) -> torch.optim.Optimizer:
        """torch's fused optimizer like that of `training`, for its weights or others; Muon has none."""
        weights = [p for p in training.model.parameters() if p.requires_grad] if weights is None else list(weights)
        if self.work.optimizer == "adamw":
            return torch.optim.AdamW(weights, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True, capturable=True)
        if self.work.optimizer == "sgd":
            return torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=5e-4, fused=True)
        return training.optimizer

    @staticmethod
    def endless(training: Training) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from training.batches()

    def graph(self) -> float:
        """The plain step recorded; the samples' places are its input."""
        training = self.training()
        places = torch.zeros(self.work.batch, dtype=torch.int64, device="cuda")
        drawn = training.plan.drawn[: self.work.batch].clone()
        optimizer = self.fastest(training)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            x, y = training.inputs(places, drawn)
            with training.autocast():
                loss = loss_of(training.model(x), y)
            loss.backward()
            optimizer.step()

        replay = record(step)
        samples = training.plan.samples

        def again() -> None:
            places.copy_(samples[: self.work.batch])
            replay()

        return self.work.labels * self.time_calls(again)

    def compiled(self, branches: int) -> float:
        """Networks in branches of one graph, each compiled with its ghost norms as plain operations."""
        if hasattr(torch._inductor.config.triton, "mix_order_reduction"):  # breaks this norm in torch 2.11
            torch._inductor.config.triton.mix_order_reduction = False
        trainings = [self.training(seed) for seed in range(branches)]
        base = with_plain_norms(trainings[0].model)
        names = [name for name, p in base.named_parameters() if p.requires_grad]

        def loss(tensors: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                return loss_of(functional_call(base, tensors, (x,)), y)

        compiled = torch.compile(loss)
        streams = [torch.cuda.Stream() for _ in trainings]
        branch_steps = []
        for training in trainings:
            state = {**dict(training.model.named_parameters()), **dict(training.model.named_buffers())}
            weights = [state[name] for name in names]
            optimizer = self.fastest(training, weights)
            places, drawn = training.plan.samples[: self.work.batch], training.plan.drawn[: self.work.batch]

            def train_branch(
                training: Training = training,
                state: Any = state,
                optimizer: Any = optimizer,
                chosen: Any = (places, drawn),
            ) -> None:
                weights = optimizer.param_groups[0]["params"]
                slopes = torch.autograd.grad(compiled(state, *training.inputs(*chosen)), weights)
                for weight, slope in zip(weights, slopes, strict=True):
                    # The fused update wants gradients laid out as the weights are.
                    alike = slope.stride() == weight.stride()
                    weight.grad = slope if alike else torch.empty_like(weight).copy_(slope)
                optimizer.step()

            branch_steps.append(train_branch)

        def step() -> None:
            current = torch.cuda.current_stream()
            for stream, train_branch in zip(streams, branch_steps, strict=True):
                stream.wait_stream(current)
                with torch.cuda.stream(stream):
                    train_branch()
            for stream in streams:
                current.wait_stream(stream)

        return branches * self.work.labels * self.time_calls(record(step))

    def lanes(self, at_once: int, *, monitor_every: int = 10**6) -> float:
        """Epochs are counted from the end of the last lane's first to the end of a later one of that same lane.

        Lanes end theirs one soon after the other, so that a stretch between two different ones would hold too few.
        """
        images = self.work.labels * self.work.steps
        seen: set[int] = set()
        start = seconds = 0.0
        last, ended = -1, 0

        def report(config: Config, row: Any) -> None:
            nonlocal start, seconds, last, ended
            now = time.perf_counter()
            if len(seen) < at_once:
                seen.add(config.seed)
                start, last = now, config.seed
                return
            ended += 1
            if config.seed == last and now - start > self.seconds and ended >= 2 * at_once:
                seconds = now - start
                raise Enough

        configs = [self.config(seed, monitor_every=monitor_every) for seed in range(at_once)]
        with require_recording(), contextlib.suppress(Enough):
            lanes(configs, device="cuda", at_once=at_once, report=report)
        return ended * images / seconds

    def seconds_to_first_step(self) -> float:
        """From the call of lanes with 16 trainings to the end of a first epoch of one step."""
        short = Bench(replace(self.work, samples=self.work.batch), self.folder, self.seconds)
        start = time.perf_counter()
        seconds: list[float] = []

        def report(config: Config, row: Any) -> None:
            seconds.append(time.perf_counter() - start)
            raise Enough

        with contextlib.suppress(Enough):
            lanes([short.config(seed) for seed in range(16)], device="cuda", report=report)
        return seconds[0]


@contextlib.contextmanager
def require_recording() -> Iterator[None]:
    """Lanes that cannot be recorded, or do not all fit, are an error: a figure would be about something else."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*[Ll]anes ")
        yield


def all_algorithms() -> contextlib.AbstractContextManager[None]:
    """Convolutions by whatever way cuDNN finds fastest, as lanes choose theirs."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=True, benchmark_limit=0, allow_tf32=True)


def record(step: Callable[[], None]) -> Callable[[], None]:
    """`step` as a graph, after a few calls on the stream of the recording."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with all_algorithms():
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            step()
    return graph.replay


class PlainGhostNorm(nn.Module):
    """Ghost batch norm of plain operations on all ghost batches at once, for the compiler to fuse."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.ghost, self.eps = norm.weight, norm.bias, norm.ghost_batch, norm.eps
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(norm, name))

    def forward(self, x: Tensor) -> Tensor:
        groups = max(1, len(x) // self.ghost)
        parts = x.float().unflatten(0, (groups, -1))
        over = [1, *range(3, parts.dim())]
        var, mean = torch.var_mean(parts, over, correction=0, keepdim=True)
        y = ((parts - mean) * torch.rsqrt(var + self.eps)).flatten(0, 1)
        shape = [1, -1] + [1] * (x.dim() - 2)
        if self.weight is not None:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        with torch.no_grad():
            self.running_mean.lerp_(mean.flatten(1).mean(0), 0.1)
            self.running_var.lerp_(var.flatten(1).mean(0), 0.1)
        return y.to(x.dtype)


def with_plain_norms(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, GhostBatchNorm1d | GhostBatchNorm2d):
                setattr(parent, name, PlainGhostNorm(child))
    return model


def measure_rows(work: Work, folder: Path, options: argparse.Namespace) -> Iterator[Row]:
    bench = Bench(work, folder, options.seconds)
    ways: list[tuple[str, int, Callable[[], float]]] = [("plain", 1, bench.plain), ("graph", 1, bench.graph)]
    ways += [("lanes", many, lambda many=many: bench.lanes(many)) for many in work.at_once]
    ways += [("compiled", many, lambda many=many: bench.compiled(many)) for many in work.compiled]
    plain: float | None = None
    for style, many, way in ways:
        if options.styles and style not in options.styles:
            continue
        gc.collect()
        torch.cuda.empty_cache()
        start = time.perf_counter()
        try:
            speed = way()
        except Exception as error:  # one style that fails on this machine does not hide the others
            print(f"{work.name} {style} × {many}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
            continue
        if style == "plain":
            plain = speed
        ratio = None if plain is None else round(speed / plain, 2)
        row = Row(work.name, style, work.batch, many, round(speed), ratio, work.unit)
        print(
            f"{row.work:30} batch {row.batch:5} {style:10} × {many:2}: {speed:10,.0f} {row.unit}/s, "
            f"{ratio or float('nan'):6.2f} × plain ({time.perf_counter() - start:.0f} s)",
            flush=True,
        )
        yield row


def asides(work: Work, folder: Path, seconds: float) -> dict[str, Any]:
    """How long the first step takes, and what the monitor costs lanes."""
    bench = Bench(work, folder, seconds)
    first = round(bench.seconds_to_first_step(), 1)
    print(f"{work.name}: first step of 16 trainings after {first} s", flush=True)
    speeds = {}
    for every in (0, 10**6, 10, 0, 10**6, 10):  # the second time counts
        speeds[every] = round(bench.lanes(_MONITORED_LANES, monitor_every=every))
    named = {"none": speeds[0], "epochs": speeds[10**6], "epochs and a step in 10": speeds[10]}
    for name, speed in named.items():
        print(f"{work.name}: {speed:,} {work.unit}/s in {_MONITORED_LANES} lanes, monitored: {name}", flush=True)
    return {"seconds_to_first_step": first, "images_per_second_by_monitoring": named}


def _driver() -> str:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


class Found:
    """What was measured, in a file that is written after every row; several calls may fill it."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._content: dict[str, Any] = {"rows": []}
        if file is not None and file.exists():
            self._content = json.loads(file.read_text())

    def add(self, row: Row, about: dict[str, Any]) -> None:
        new = asdict(row)
        rows = [old for old in self._content["rows"] if any(old[name] != new[name] for name in _PLACE)]
        self.write(**about, rows=[*rows, new])

    def write(self, **changes: Any) -> None:
        self._content |= changes
        if self._file is not None:
            self._file.write_text(json.dumps(self._content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--styles", nargs="*", choices=["plain", "graph", "compiled", "lanes"])
    parser.add_argument("--seconds", type=float, default=4.0, help="of measuring, for each row")
    parser.add_argument("--json", type=Path, help="write the rows here; those of other works in the file stay")
    parser.add_argument("--asides", action="store_true", help="instead: the first step's time and the monitor's cost")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA device, and torch sees none.")
    about = {
        "hardware": processor("cuda"),
        "host": processor(),  # which the plain loop waits for
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "isogon": isogon.__version__,
        "driver": _driver(),
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["python", *sys.argv]),
    }
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    results = Found(options.json)
    with tempfile.TemporaryDirectory() as folder:
        if options.asides:
            results.write(**about, **asides(WORKS[options.only[0]], Path(folder), options.seconds))
            return
        for name in options.only:
            for row in measure_rows(WORKS[name], Path(folder), options):
                results.add(row, about)


if __name__ == "__main__":
    main()
