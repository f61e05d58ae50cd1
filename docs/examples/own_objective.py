"""Your own training as the objective of a search: the loop is plain PyTorch.

    isogon search docs/examples/own_objective.toml --out own-search

Run it from the project's folder, so that docs.examples.own_objective can be imported.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from isogon import nets
from isogon.lab import load
from isogon.search import Trial


def objective(trial: Trial) -> float:
    torch.manual_seed(trial.seed)
    r, data = trial.recipe, load("fashion-mini", subset=trial.recipe.samples)
    x, y = data.train_x / 255 - 0.5, data.train_y
    model = nets.cnn4(in_channels=1, width=4, scale_invariant="affine")
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=r.lr, momentum=r.momentum, weight_decay=r.weight_decay)
    for epoch in range(int(r.epochs or 1)):
        for batch in torch.randperm(r.samples).split(r.batch_size):
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
        trial.report(epoch, accuracy := _accuracy(model, data.test_x / 255 - 0.5, data.test_y))
    return accuracy


@torch.no_grad()
def _accuracy(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    share = (model.eval()(images).argmax(1) == labels).double().mean()
    model.train()
    return float(share)
