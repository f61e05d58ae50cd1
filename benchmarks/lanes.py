"""Trials per minute: many small trainings at once, against the same one after another and one process each.

    python benchmarks/lanes.py [--trials 16] [--epochs 5] [--samples 1000] [--data digits] [--net cnn4] [--width 8]

The same configs, which differ in rates and seeds, are trained in four ways in one run: `in turn` (lab.train after
lab.train), `processes` (run_all, engine local), `lanes` (lab.lanes in this process) and `lanes in processes` (run_all,
engine lanes). Each way is run `--repeats` times, the ways in turn; printed are trials per minute of the fastest repeat,
its ratio to `in turn`, and the range. Starting processes is part of what they cost. On a CPU every process has one
thread; `lanes` stacks networks only where that pays (small images), else it trains in turn.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable

import torch
from machine import processor

from isogon import Recipe
from isogon.lab import Config, Run, lanes, run_all, train


def configs(options: argparse.Namespace, repeat: int) -> list[Config]:
    sweep = []
    for trial in range(options.trials):
        recipe = Recipe(
            lr=0.1,
            weight_decay=1e-3 * 2 ** (trial % 4),
            batch_size=options.batch,
            samples=options.samples,
            epochs=options.epochs,
        )
        sweep.append(
            Config(
                recipe=recipe,
                net=options.net,
                net_options={"width": options.width, "scale_invariant": "affine", "norm": "ghost"},
                data=options.data,
                augmentation=options.augmentation,
                precision=options.precision,
                monitor_every=options.monitor_every,
                seed=1000 * repeat + trial,
                save_weights=False,
            )
        )
    return sweep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--net", default="cnn4")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--augmentation", default="none")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--monitor-every", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = options.device
    ways: dict[str, Callable[[list[Config], str], list[Run]]] = {
        "in turn": lambda many, out: [
            train(config, os.path.join(out, config.name), device=device, progress=False) for config in many
        ],
        "processes": lambda many, out: run_all(many, "local", out, device=device, progress=False),
        "lanes": lambda many, out: lanes(many, out, device=device),
        "lanes in processes": lambda many, out: run_all(many, "lanes", out, device=device, progress=False),
    }
    print(f"{processor(device)}, {os.cpu_count()} cores, torch {torch.__version__}, Python {platform.python_version()}")
    print(
        f"{options.trials} trials of {options.net} (width {options.width}) on {options.samples} of {options.data}, "
        f"batch {options.batch}, {options.epochs} epochs, {options.precision}; {options.repeats} repeats"
    )
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    warm = configs(options, repeat=options.repeats)[0]
    train(warm, device=device, progress=False)  # data and the map of the network are read once
    for repeat in range(options.repeats):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory() as out:
                start = time.perf_counter()
                runs = way(configs(options, repeat), out)
                seconds[name].append(time.perf_counter() - start)
            assert all(run.status in ("finished", "diverged") for run in runs)
    best = min(seconds["in turn"])
    for name, times in seconds.items():
        per_minute = [60 * options.trials / duration for duration in times]
        print(
            f"{name:20} {max(per_minute):7.1f} trials per minute, {best / min(times):5.2f} × in turn "
            f"({min(per_minute):.1f} to {max(per_minute):.1f})"
        )


if __name__ == "__main__":
    main()
