"""The monitor on a GPU: its own kernels against the CPU's sums, fused optimizers, loss scales."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from torch import nn

from isogon.dynamics import Monitor
from isogon.dynamics.measure._sums import FlatSums, PiecewiseSums, sums_for

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

MADE = {"batch_size": 32, "samples": 128, "every_steps": 1}


def parameters(dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """Several layouts: contiguous, short, transposed, channels last."""
    draw = torch.Generator().manual_seed(0)
    shapes = [(64, 33, 3, 3), (7,), (100, 50), (8, 8, 3, 3)]
    first, short, turned, last = (torch.randn(s, generator=draw).to(device, dtype) for s in shapes)
    return [first, short, turned.t(), last.to(memory_format=torch.channels_last)]


def tables(dtype: torch.dtype, device: str) -> tuple[type, torch.Tensor, torch.Tensor]:
    """The sums of a step and of an epoch, one gradient and one buffer missing, one gradient in another layout."""
    weights = parameters(dtype, device)
    gradients: list[torch.Tensor | None] = [w.cos() for w in weights]
    buffers: list[torch.Tensor | None] = [w.sin() + 0.5 for w in weights]
    gradients[1] = buffers[3] = None
    gradients[2] = weights[2].cos().contiguous()
    sums = sums_for(weights)
    start = sums.copy()
    before = sums.before(None, gradients, buffers)
    for w in weights:
        w.add_(w.cos() * 0.01)
    return type(sums), sums.step(before).cpu(), sums.epoch(start).cpu()


@pytest.mark.parametrize(("dtype", "rel"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_the_kernels_give_the_sums_of_the_cpu(dtype, rel):
    kind, step, epoch = tables(dtype, "cuda")
    reference, exact_step, exact_epoch = tables(torch.float64 if dtype == torch.float64 else torch.float32, "cpu")
    assert kind not in (FlatSums, PiecewiseSums), "Triton should work here"
    assert reference is PiecewiseSums
    scale = exact_step.abs().amax(0)
    if dtype == torch.bfloat16:  # the change itself is rounded: the CPU must do so too
        _, exact_step, exact_epoch = tables(dtype, "cpu")
    assert ((step - exact_step).abs() <= rel * scale).all()
    assert torch.allclose(epoch, exact_epoch, rtol=rel)


def test_what_is_not_dense_is_summed_another_way():
    weights = [torch.randn(6, 8, device="cuda")[:, :4]]
    assert type(sums_for(weights)) is FlatSums


def record_run(
    make_task, optimizer_of, *, device: str, bad: set[int] = frozenset(), scaler: bool = False
) -> pd.DataFrame:
    """Records of nine steps; the loss of a step in `bad` is made infinite, which the scaler skips."""
    task = make_task()
    task.model.to(device)
    task.inputs, task.targets = task.inputs.to(device), task.targets.to(device)
    optimizer = optimizer_of(task.parameters)
    loss_scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=10**6, enabled=scaler)
    with Monitor(task.model, optimizer, **MADE, inputs=task.inputs[:4]) as monitor:
        for step in range(9):
            if step in bad and not scaler:
                continue
            optimizer.zero_grad()
            loss_scaler.scale(task.loss(step) * (float("inf") if step in bad else 1.0)).backward()
            loss_scaler.step(optimizer)
            loss_scaler.update()
    return monitor.records


@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_scaled_run_has_the_records_of_the_cpu(make_task, kind, fused):
    """Steps that the scaler skips are none, also where a fused optimizer's hooks fire for them."""
    settings = {"lr": 0.05, "momentum": 0.9} if kind is torch.optim.SGD else {"lr": 1e-3}

    def on_gpu(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
        return kind(weights, weight_decay=5e-3, fused=fused, **settings)

    def on_cpu(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
        return kind(weights, weight_decay=5e-3, foreach=False, **settings)

    records = record_run(make_task, on_gpu, device="cuda", bad={3, 6, 8}, scaler=True)
    expected = record_run(make_task, on_cpu, device="cpu", bad={3, 6, 8})
    pd.testing.assert_frame_equal(records, expected, rtol=2e-2, atol=1e-5)
