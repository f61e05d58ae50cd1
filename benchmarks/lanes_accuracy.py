"""Whether lanes train as well as the plain loop: ResNet-18 on 3,125 images of CIFAR-10, bfloat16, several seeds.

    ISOGON_DATA=FOLDER python benchmarks/lanes_accuracy.py [--seeds 5] [--epochs 60] [--json FILE]

The same configs train once in lanes (graphs, fused kernels) and once one by one in the plain loop, several processes at
a time. Printed are the final accuracies' means and spreads, Welch's t of their difference, and the largest radial leak
|⟨w, g⟩|/(‖w‖‖g‖) of a layer's median over its measured steps, which scale-invariance makes 0 up to rounding.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from gpu_lanes import require_recording
from machine import processor

from isogon import Recipe
from isogon.lab import Config, Run, lanes, run_all


def configs(seeds: int, epochs: int) -> list[Config]:
    """Yun's best cell of table 1 (b) for N = 3,125, shortened."""
    recipe = Recipe(lr=0.1, weight_decay=0.0032, batch_size=128, samples=3125, epochs=epochs)
    return [
        Config(recipe=recipe, precision="bfloat16", seed=seed, monitor_every=10, test_every=0, save_weights=False)
        for seed in range(seeds)
    ]


def radial_leak(run: Run) -> float:
    records = run.records
    layers = records[(records["layer"] != "all") & records["radial"].notna()]
    return float(layers["radial"].abs().groupby(layers["layer"]).median().max())


def welch(first: list[float], second: list[float]) -> tuple[float, float]:
    """t of the difference of two means, and its degrees of freedom."""
    parts = [statistics.variance(values) / len(values) for values in (first, second)]
    freedom = sum(parts) ** 2 / sum(p**2 / (len(v) - 1) for p, v in zip(parts, (first, second), strict=True))
    return (statistics.mean(first) - statistics.mean(second)) / math.sqrt(sum(parts)), freedom


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    sweep = configs(options.seeds, options.epochs)

    def in_lanes(out: Path) -> list[Run]:
        with require_recording():
            return lanes(sweep, out, device=options.device, at_once=options.seeds)

    def in_turn(out: Path) -> list[Run]:
        return run_all(sweep, "local", out, workers=options.seeds, device=options.device)

    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for style, train in (("lanes", in_lanes), ("plain", in_turn)):
            runs = train(Path(folder) / style)
            for run in runs:
                if run.status != "finished":
                    raise SystemExit(f"{style}, {run.config.name}: {run.status}. {run.error or ''}")
            accuracies = [run.accuracy for run in runs]
            results[style] = {
                "accuracies": accuracies,
                "mean": statistics.mean(accuracies),
                "spread": statistics.stdev(accuracies),
                "radial_leak": max(radial_leak(run) for run in runs),
            }
            print(f"{style}: {100 * results[style]['mean']:.2f} ± {100 * results[style]['spread']:.2f} %, ", end="")
            print(f"radial leak {results[style]['radial_leak']:.1e}", flush=True)
    t, freedom = welch(results["lanes"]["accuracies"], results["plain"]["accuracies"])
    print(f"difference: t = {t:.2f} with {freedom:.1f} degrees of freedom")
    if options.json is not None:
        about = {
            "hardware": processor(options.device),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "date": datetime.date.today().isoformat(),
            "command": f"python benchmarks/lanes_accuracy.py --seeds {options.seeds} --epochs {options.epochs}",
        }
        options.json.write_text(
            json.dumps({**about, **results, "t": t, "degrees_of_freedom": freedom}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
