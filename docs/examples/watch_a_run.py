"""Train a scale-invariant network with a step decay under the monitor: python docs/examples/watch_a_run.py [FOLDER].

Then `isogon report FOLDER` draws the run: the drops, the relaxation after them, and what to change.
"""

import sys

import torch
from torch.nn import functional

from isogon import Monitor, nets, schedules
from isogon.dynamics import RunFolder
from isogon.optim import drive
from isogon.report import summarise

BATCH, SAMPLES, EPOCHS, DROPS = 50, 5000, 20, (10, 16)


def main(folder: str) -> None:
    torch.manual_seed(0)
    patterns, labels = torch.randn(10, 1, 8, 8), torch.randint(0, 10, (SAMPLES,))
    images = patterns[labels] + 3 * torch.randn(SAMPLES, 1, 8, 8)
    model = nets.cnn4(in_channels=1, width=8, scale_invariant="plain")
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    driver = drive(optimizer, schedules.step_decay(0.1, 5e-3, [drop * SAMPLES // BATCH for drop in DROPS]))
    about = {"batch_size": BATCH, "samples": SAMPLES, "inputs": images[:BATCH]}
    with Monitor(model, optimizer, **about, sinks=[RunFolder(folder)]) as monitor:
        for _ in range(EPOCHS):
            for batch in torch.randperm(SAMPLES).split(BATCH):
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(images[batch]), labels[batch])
                loss.backward()
                optimizer.step()
                driver.step()
            monitor.end_epoch(loss=loss.item())
    joint = monitor.records.query("layer == 'all'").groupby("epoch").last()
    shown = ["lr", "norm", "step_angle", "predicted_step_angle", "epoch_angle", "in_equilibrium"]
    print(joint[shown].round(4).to_string())
    print(*(finding.advice for finding in summarise(folder).findings), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "run")
