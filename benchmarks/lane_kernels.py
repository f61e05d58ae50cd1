"""Where the time of a lane's step goes on a GPU, by kinds of kernels, beside what memory and tensor cores need.

    python benchmarks/lane_kernels.py [--net resnet18] [--batch 128] [--steps 20]

One lane trains alone under PyTorch's profiler. The floors are for this GPU: the rates of a large copy and of a large
bfloat16 product are measured first. Arithmetic is that of the convolutions, forward and twice backward (the first one
once); memory that of the norms, whose inputs and outputs are each read or written as often as they must be when sums
come before results.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gpu_lanes import WORKS, Bench
from torch import nn
from torch.profiler import ProfilerActivity, profile

from isogon.lab import Training
from isogon.lab.gpu._graphed import GraphedTraining

# Our kernels by name, and parts of the names of the libraries' convolutions and products.
OURS = {
    "add_up_forward": "normalisation",
    "normalise": "normalisation",
    "add_up_backward": "normalisation",
    "gradient": "normalisation",
    "add_norm": "normalisation",
    "add_norm_backward": "normalisation",
    "heads": "heads",
    "activate": "activation",
    "swiglu": "activation",
    "_update": "optimizer",
    "_batch": "augmentation",
    "_cross_entropy": "loss",
}
CONVOLUTIONS = ("conv", "cudnn", "xmma", "cutlass", "gemm", "wgrad", "dgrad", "fprop", "nvjet", "sm90", "sm80")


def classify(kernel: str) -> str:
    if kernel in OURS:
        return OURS[kernel]
    return "convolution" if any(part in kernel for part in CONVOLUTIONS) else "other"


def rate(work: Callable[[], Any], amount: float) -> float:
    """`amount` per second, the best of ten calls."""
    best = float("inf")
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return amount / best


def limits() -> tuple[float, float]:
    """Operations per second of a large product, and bytes per second of a large copy."""
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    block = torch.empty(2**30, device="cuda", dtype=torch.uint8)
    return rate(lambda: matrix @ matrix, 2 * 8192.0**3), rate(block.clone, 2.0 * block.numel())


def costs(training: Training) -> tuple[float, float]:
    """Multiplications and additions of the convolutions of a step, and bytes that its norms move."""
    flops, moved, firsts = 0.0, 0.0, [True]

    def convolution(module: nn.Conv2d, inputs: Any, output: torch.Tensor) -> None:
        nonlocal flops
        ways, firsts[0] = (2 if firsts[0] else 3), False
        flops += 2.0 * output.numel() * module.weight[0].numel() * ways

    def norm(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        nonlocal moved
        # Forward: read twice, written once. Backward: input and gradient read twice, one gradient written.
        moved += 8.0 * output.numel() * 2

    hooks = [m.register_forward_hook(convolution) for m in training.model.modules() if isinstance(m, nn.Conv2d)]
    hooks += [m.register_forward_hook(norm) for m in training.model.modules() if "Norm" in type(m).__name__]
    batch = next(iter(training.batches()))
    with torch.no_grad(), training.autocast():
        training.model(batch[0])
    for hook in hooks:
        hook.remove()
    return flops, moved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", default="resnet18", choices=list(WORKS))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lanes", type=int, default=1, help="the step is that of one of so many lanes, run alone")
    parser.add_argument("--names", action="store_true", help="also each kernel by its name")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA device, and torch sees none.")
    arithmetic, memory = limits()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(replace(WORKS[options.net], batch=options.batch), Path(folder), 1.0)
        if 3 * options.steps + 1 > bench.work.steps:
            raise SystemExit(f"--steps must be at most {(bench.work.steps - 1) // 3}: an epoch has {bench.work.steps}.")
        training = Training(bench.config(0), device="cuda")
        lane = GraphedTraining(training, torch.cuda.Stream(), options.lanes)
        lane.begin()
        if lane.refused is not None:
            raise SystemExit(f"The step could not be recorded: {lane.refused}")
        flops, moved = costs(training)
        lane.advance(1)  # which the monitor measures, with the optimizer's own update
        lane.advance(options.steps)
        torch.cuda.synchronize()
        start = time.perf_counter()
        lane.advance(options.steps)
        torch.cuda.synchronize()
        step = 1e6 * (time.perf_counter() - start) / options.steps
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            lane.advance(options.steps)
            torch.cuda.synchronize()
    spent: Counter[str] = Counter()
    launched: Counter[str] = Counter()
    for event in profiled.key_averages():
        if event.self_device_time_total > 0:
            spent[classify(event.key)] += event.self_device_time_total / options.steps
            launched[classify(event.key)] += event.count / options.steps
            if options.names:
                name, micros, count = event.key[:100], event.self_device_time_total, event.count
                print(f"{micros / options.steps:8.1f} µs × {count / options.steps:4.0f} {name}")
    parameters = sum(p.numel() for p in training.model.parameters() if p.requires_grad)
    floors = {
        "convolution": (flops / arithmetic, f"{flops / 1e9:.0f} GFLOP at {arithmetic / 1e12:.0f} TFLOP/s"),
        "normalisation": (moved / memory, f"{moved / 1e9:.2f} GB at {memory / 1e12:.2f} TB/s"),
        "optimizer": (20.0 * parameters / memory, f"{20e-6 * parameters:.0f} MB"),
    }
    print(f"{torch.cuda.get_device_name()}, {options.net}, batch {options.batch}: {step:.0f} µs per step")
    print("| part | kernels | measured, µs | floor, µs | what the floor is |\n|---|---|---|---|---|")
    for kind, time_spent in spent.most_common():
        floor, basis = floors.get(kind, (float("nan"), ""))
        shown = "" if floor != floor else f"{1e6 * floor:.0f}"
        print(f"| {kind} | {launched[kind]:.0f} | {time_spent:.0f} | {shown} | {basis} |")
    print(f"| idle | | {step - spent.total():.0f} | 0 | |")


if __name__ == "__main__":
    main()
