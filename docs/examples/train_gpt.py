"""Train a small GPT on the sources of Python's standard library: python docs/examples/train_gpt.py [FOLDER].

Then `isogon report FOLDER` draws the run: loss, rates, and the angles of what has no scale beside the law's.
"""

import sys
import time

import torch

from isogon import Recipe
from isogon.lab import Config, train
from isogon.report import summarise

RECIPE = Recipe(
    optimizer="adamw", lr=3e-3, weight_decay=0.1, momentum=0.9, beta2=0.95, batch_size=16, samples=8192, epochs=1
)


def main(folder: str) -> None:
    torch.set_num_threads(1)
    config = Config(
        recipe=RECIPE,
        net="gpt",
        net_options={"depth": 4, "width": 128, "heads": 4},
        data="python-stdlib",
        schedule="cosine",
        clip=1.0,
        monitor_every=20,
    )
    started = time.monotonic()
    run = train(config, folder)
    print(f"{run.value:.3f} nats, {run.bits_per_byte:.3f} bits per byte after {time.monotonic() - started:.0f} s")
    stream = run.records.query("layer == 'group:residual'").iloc[4::7]
    print(stream[["step", "lr", "norm", "step_angle", "predicted_step_angle"]].round(5).to_string(index=False))
    print(*(finding.advice for finding in summarise(folder).findings), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "gpt")
