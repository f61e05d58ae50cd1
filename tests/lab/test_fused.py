"""The fused kernels compute what the ordinary operations do; a step of them is a step of the training."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
    pytest.mark.usefixtures("exact_products"),
]


def distance(outputs: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((outputs.double() - wanted.double()).norm() / wanted.double().norm())


def resident_bytes() -> int:
    """Of this process, in the host's memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def leaf(values: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    return None if values is None else values.to(dtype).requires_grad_()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 4e-3)])
@pytest.mark.parametrize(
    ("shape", "ghost", "affine", "residual", "relu", "stride", "programs"),
    [
        ((128, 64, 32, 32), 64, True, False, True, 0, 132),
        ((128, 64, 32, 32), 64, True, True, True, 1, 44),
        ((128, 64, 16, 16), 64, True, True, True, 2, 66),
        ((128, 48, 9, 7), 64, True, True, True, 1, 44),
        ((64, 20, 5, 5), 16, False, False, True, 2, 1),
        ((64, 20, 5, 5), 64, True, True, False, 1, 132),
        ((96, 300), 32, False, False, False, 0, 66),
    ],
)
def test_the_norm_with_its_neighbours(dtype, tolerance, shape, ghost, affine, residual, relu, stride, programs):
    from isogon.lab.gpu.fused._norm import Norm, forked_norm, fused_norm
    from isogon.nets.layers._norms import GhostBatchNorm1d, GhostBatchNorm2d

    torch.manual_seed(0)
    norm = (GhostBatchNorm2d if len(shape) == 4 else GhostBatchNorm1d)(shape[1], ghost, affine=affine).cuda().double()
    if affine:
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
        torch.nn.init.normal_(norm.bias)
    x, r = ((5 + 2 * torch.randn(shape, device="cuda")).to(dtype) for _ in range(2))
    want_x, want_r = leaf(x, torch.float64), leaf(r if residual else None, torch.float64)
    before = norm(want_x) if want_r is None else norm(want_x) + want_r
    want = torch.relu(before) if relu else before
    # Where the ReLU may see another sign, for rounding, nothing is asked.
    asked = before.detach().abs() > 1e-5
    wants, asked = ([t, t[:, :, ::stride, ::stride]] if stride else [t] for t in (want, asked))
    slopes = [(torch.randn_like(output) * here).to(dtype) for output, here in zip(wants, asked, strict=True)]
    torch.autograd.backward(wants, [slope.double() for slope in slopes])

    new_x, new_r = leaf(x, dtype), leaf(r if residual else None, dtype)
    gamma, beta = (leaf(p.detach().clone(), torch.float32) if affine else None for p in (norm.weight, norm.bias))
    mean, var = torch.zeros(shape[1], device="cuda"), torch.ones(shape[1], device="cuda")
    parts = Norm(gamma, beta, mean, var, 0.1, norm.eps)
    groups = shape[0] // ghost
    how = {"residual": new_r, "relu": relu, "programs": programs}
    if stride:
        outputs = forked_norm(new_x, parts, groups, stride=stride, **how)
    else:
        outputs = (fused_norm(new_x, parts, groups, **how),)
    torch.autograd.backward(outputs, slopes)
    pairs = [*zip(outputs, wants, strict=True), (new_x.grad, want_x.grad)]
    pairs += [(mean, norm.running_mean), (var, norm.running_var)]
    pairs += [(gamma.grad, norm.weight.grad), (beta.grad, norm.bias.grad)] if affine else []
    pairs += [(new_r.grad, want_r.grad)] if residual else []
    for output, wanted in pairs:
        assert distance(output, wanted) < tolerance


@pytest.mark.parametrize("name", ["crop-flip", "none"])
def test_batches_are_those_of_the_augmentation(name):
    from isogon.lab.gpu.fused._images import BatchMaker
    from isogon.lab.run._augment import find_augmentation, normalise

    torch.manual_seed(0)
    images = torch.randint(0, 256, (40, 3, 9, 11), dtype=torch.uint8, device="cuda")
    labels, order = torch.randint(0, 10, (40,), device="cuda"), torch.randperm(40, device="cuda")
    augmentation, mean, std = find_augmentation(name), [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]
    drawn = augmentation.draw(40, torch.Generator().manual_seed(1)).cuda()
    maker = BatchMaker(images, labels, augmentation, mean, std, batch=8, dtype=torch.float32, width=8)
    x, y = maker(order, drawn, torch.tensor([3], device="cuda"))
    chosen = order[24:32]
    wanted = normalise(augmentation.apply(images[chosen], drawn[24:32]), mean, std)
    assert x.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(x[:, :3], wanted, rtol=1e-5, atol=1e-5)
    assert not x[:, 3:].any()
    assert torch.equal(y, labels[chosen])


def test_the_loss_and_what_is_counted():
    from isogon.lab.gpu.fused._loss import cross_entropy_with_sums

    torch.manual_seed(0)
    logits = torch.randn(1000, 17, device="cuda", requires_grad=True)
    labels, sums = torch.randint(0, 17, (1000,), device="cuda"), torch.ones(3, dtype=torch.float64, device="cuda")
    loss = cross_entropy_with_sums(logits, labels, sums)
    (outputs,) = torch.autograd.grad(loss, logits)
    wanted = torch.nn.functional.cross_entropy(logits, labels)
    (slope,) = torch.autograd.grad(wanted, logits)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    assert distance(outputs, slope) < 1e-6
    right = (logits.argmax(1) == labels).sum().item()
    assert sums.tolist() == pytest.approx([1 + 1000 * wanted.item(), 1 + right, 1001], rel=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_the_update_is_that_of_sgd(nesterov, momentum):
    from isogon.lab.gpu.fused._update import SgdUpdate

    if nesterov and not momentum:
        pytest.skip("torch has no Nesterov without momentum")
    torch.manual_seed(0)
    weights = [torch.randn(size, device="cuda") for size in (10_000, 4096, 7)]
    parameters = [torch.nn.Parameter(w.clone()) for w in weights]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=momentum, weight_decay=0.01, nesterov=nesterov)
    buffers = [torch.zeros_like(w) for w in weights] if momentum else []
    gradients = [torch.empty_like(w, dtype=torch.bfloat16) for w in weights]
    copies = [torch.empty_like(w, dtype=torch.bfloat16) for w in weights]
    update = SgdUpdate(weights, buffers, copies, kind=torch.bfloat16, momentum=momentum, nesterov=nesterov)
    update.point_to(gradients)
    correction = 0.3 if momentum else 0.0
    rates = torch.tensor([[9.0, 0.1], [9.0, 0.01], [9.0, correction]], device="cuda")
    for _ in range(3):
        for gradient, parameter in zip(gradients, parameters, strict=True):
            gradient.normal_()
            parameter.grad = gradient.float()
            if momentum:
                buffer = optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter.detach()))
                buffer.add_(parameter.detach(), alpha=correction)
        optimizer.step()
        update.launch(rates, torch.tensor([1], device="cuda"))
    for weight, copy, parameter in zip(weights, copies, parameters, strict=True):
        torch.testing.assert_close(weight, parameter.detach(), rtol=1e-6, atol=1e-6)
        assert torch.equal(copy, weight.bfloat16())


@pytest.mark.parametrize("net", ["resnet18", "cnn4", "preresnet32"])
def test_graphs_are_no_further_from_float64_than_twice_the_plain_loop(net, make_config):
    """Ten steps in float32: later, ReLUs that flip have made rounding errors grow."""
    from isogon.lab.gpu._graphed import GraphedTraining
    from isogon.lab.run._training import Training

    def config(precision: str):
        return make_config(
            net=net, data="fashion-mini", samples=512, epochs=2, precision=precision, monitor_every=0, lr=0.02
        )

    def weights(training: Training) -> torch.Tensor:
        torch.cuda.synchronize()
        return torch.cat([p.detach().double().flatten() for p in training.model.parameters()])

    def steps(precision: str) -> list[torch.Tensor]:
        training = Training(config(precision), device="cuda")
        path = [weights(training)]
        training.begin_epoch()
        for batch in training.batches():
            training.backward(*batch)
            training.step()
            path.append(weights(training))
        return path

    exact, plain = steps("float64"), steps("float32")
    lane = GraphedTraining(Training(config("float32"), device="cuda"), torch.cuda.Stream())
    graphed = [weights(lane.training)]
    while len(graphed) < len(exact):
        lane.advance(1)
        graphed.append(weights(lane.training))
    assert lane.refused is None
    assert len(exact) == 11

    def off(path: list[torch.Tensor], step: int) -> float:
        return float((path[step] - exact[step]).norm() / (exact[step] - exact[0]).norm())

    for step in range(1, 11):
        print(f"{net}, step {step}: off by {off(graphed, step):.2e}, the plain loop by {off(plain, step):.2e}")
        # Rounding alone is below the first bound; a ReLU that flips in either, even in the first step, is not.
        assert off(graphed, step) < max(1e-4, 2 * off(plain, step))
    # A wrong formula shows in the first step, when few have flipped; later the plain loop itself may be far off.
    assert off(graphed, 1) < 0.01


def test_a_network_that_cannot_be_recorded_is_trained_step_by_step(make_config, monkeypatch):
    from isogon.lab import train
    from isogon.lab.gpu import _lanes as lane_group
    from isogon.lab.gpu.fused import _network as network

    def refuse(*args: object) -> None:
        raise RuntimeError("not this one")

    config = make_config(data="fashion-mini", samples=300, epochs=2)
    alone = train(config, device="cuda")
    monkeypatch.setattr(network.Twin, "__init__", refuse)
    with pytest.warns(UserWarning, match=r"cannot be recorded \(not this one\)"):
        (run,) = lane_group.lanes([config], device="cuda")
    np.testing.assert_allclose(run.epochs.train_loss, alone.epochs.train_loss, rtol=0.05)


def test_lanes_wait_where_memory_is_short(make_config, monkeypatch):
    from isogon.lab.gpu import _lanes as lane_group

    configs = [make_config(data="fashion-mini", samples=300, epochs=1, seed=seed) for seed in range(3)]
    _, total = torch.cuda.mem_get_info()
    monkeypatch.setattr(lane_group, "_SPARE_BYTES", total)
    with pytest.warns(UserWarning, match="1 of 3 lanes fit the GPU's memory"):
        runs = lane_group.lanes(configs, device="cuda", at_once=3)
    assert [run.status for run in runs] == ["finished"] * 3


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_refills_leave_no_memory_behind(make_config, count):
    """Neither the GPU's nor the host's, over so many lanes of one call, each of one epoch."""
    from isogon.lab.gpu import _lanes as lane_group

    configs = [make_config(data="fashion-mini", samples=100, epochs=1, seed=seed) for seed in range(count)]
    used: list[tuple[int, int]] = []

    def look(*_: object) -> None:
        free, total = torch.cuda.mem_get_info()
        used.append((total - free, resident_bytes()))

    runs = lane_group.lanes(configs, device="cuda", at_once=2, report=look)
    assert [run.status for run in runs] == ["finished"] * count == ["finished"] * len(used)
    for kind, bytes_each in zip(["GPU", "host"], zip(*used, strict=True), strict=True):
        parts = [max(bytes_each[part * count // 5 : (part + 1) * count // 5]) / 2**20 for part in range(5)]
        print(f"{kind}, MiB at most in each fifth of {count} refills:", [round(part) for part in parts])
        # A lane would leave at least a piece of 2 MiB on the GPU; on the host runs wait for the end, 18 KiB each.
        assert parts[4] - parts[1] < 16
