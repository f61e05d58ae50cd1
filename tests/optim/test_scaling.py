"""Initial scale against learning rate (Li, Lyu and Arora, theorem C.2)."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from isogon.errors import ArgumentError
from isogon.optim import trade_scale


@pytest.mark.parametrize("at", [0, 20])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_scale_and_rates_trade_without_changing_the_networks(task, kind, at):
    """c = 4 at the start, and in the middle of a run."""
    data, outputs = task.batches(), []
    for factor in (None, 4.0):
        model = task.network()
        weights = task.weights(model)
        if kind == "sgd":
            optimizer = torch.optim.SGD(weights, lr=0.05, momentum=0.9, weight_decay=0.02)
        else:
            optimizer = torch.optim.AdamW(weights, lr=2e-3, weight_decay=2.0, eps=1e-4)
        for step in range(60):
            if factor is not None and step == at:
                before = weights[0].detach().norm()
                product = optimizer.param_groups[0]["lr"] * optimizer.param_groups[0]["weight_decay"]
                trade_scale(optimizer, factor)
                assert float(weights[0].detach().norm() / before) == pytest.approx(factor)
                group = optimizer.param_groups[0]
                assert group["lr"] * group["weight_decay"] == pytest.approx(product)
            images, labels = data[step % len(data)]
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        outputs.append(model(data[0][0]).detach())
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-9)


def test_a_bad_factor_is_refused():
    with pytest.raises(ArgumentError, match="factor must be"):
        trade_scale(torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1), 0)


def test_a_rate_that_groups_share_is_traded_once():
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.AdamW([{"params": [weight]} for weight in weights], lr=torch.tensor(1e-3), foreach=False)
    torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    trade_scale(optimizer, 10)
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([1e-2] * 2)
    assert [float(group["initial_lr"]) for group in optimizer.param_groups] == pytest.approx([1e-2] * 2)


def test_an_optimizer_that_only_has_the_name_is_refused():
    """Its buffers may have other names, and would keep their size."""

    class SGD(torch.optim.Optimizer):
        pass

    optimizer = SGD([torch.nn.Parameter(torch.ones(2))], {"lr": 0.1, "weight_decay": 0.1})
    with pytest.raises(ArgumentError, match="others scale in no known way"):
        trade_scale(optimizer, 2.0)
