"""How the time of `isogon.symmetries` grows with the layers of a Llama (meta device), against `torch.export` alone.

python benchmarks/symmetries.py --layers 8 16 32 64 128
"""

from __future__ import annotations

import argparse
import os
import platform
import time

import numpy as np
import torch
from machine import processor

from isogon.symmetry import symmetries

REPEATS = 3


def llama(layers: int) -> torch.nn.Module:
    """The configuration of Llama 7B with so many layers; no memory is taken."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers))


def measure(layers: int) -> tuple[float, float, int]:
    """Seconds of symmetries and of the export alone, the least of some interleaved runs, and the symmetries found."""
    model, ids = llama(layers), torch.zeros(1, 16, dtype=torch.long, device="meta")
    whole, export, count = [], [], 0
    for _ in range(REPEATS):
        start = time.perf_counter()
        count = len(symmetries(model, ids).basis)
        middle = time.perf_counter()
        torch.export.export(model, (ids,), {"use_cache": False}, strict=False)
        whole.append(middle - start)
        export.append(time.perf_counter() - middle)
    return min(whole), min(export), count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    options = parser.parse_args()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    measure(1)  # imports and caches
    print(f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}")
    print("| layers | symmetries | seconds | torch.export alone | ratio |\n|---|---|---|---|---|")
    rows = []
    for layers in options.layers:
        seconds, export, count = measure(layers)
        rows.append((layers, seconds))
        print(f"| {layers} | {count} | {seconds:.2f} | {export:.2f} | {seconds / export:.2f} |", flush=True)
    if len(rows) > 1:
        slope = np.polyfit(*np.log(np.array(rows)).T, 1)[0]
        print(f"seconds grow with layers to the power {slope:.2f}")


if __name__ == "__main__":
    main()
