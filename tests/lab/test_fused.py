"""The fused kernels compute what the ordinary operations do; a step of them is a step of the training."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from isogon.lab import Training, lanes, train
from isogon.lab.gpu._graphed import GraphedTraining
from isogon.optim import Lion, MuonWithAdamW

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


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.9, 0.95), weight_decay=0.01),
    "lion": lambda p: Lion(p, lr=0.1, betas=(0.9, 0.99), weight_decay=0.01),
    "muon": lambda p: MuonWithAdamW(p[:2], p[2:], lr=0.1, weight_decay=0.01),
}


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_the_update_is_that_of_the_optimizer(name, clip):
    """With copies and averages, over three steps whose rates change, tensors of more than a chunk and of a few."""
    from isogon.lab.gpu.fused._optimizer import FusedOptimizer, Weight

    torch.manual_seed(0)
    shapes = [(64, 160), (160, 64), (4096,), (7,)]
    weights = [torch.nn.Parameter(torch.randn(shape, device="cuda")) for shape in shapes]
    parameters = [torch.nn.Parameter(w.detach().clone()) for w in weights]
    ours, torchs = OPTIMIZERS[name](weights), OPTIMIZERS[name](parameters)
    copies = [torch.empty_like(w, dtype=torch.bfloat16) for w in weights]
    averages, wanted = ([w.detach().clone() for w in weights] for _ in range(2))
    gradients = [torch.empty_like(w, dtype=torch.bfloat16) for w in weights]
    parts = zip(weights, copies, averages, strict=True)
    update = FusedOptimizer(ours, [Weight(*tensors, torch.bfloat16) for tensors in parts], 3)
    lrs, decays, share = np.array([0.1, 0.05, 0.02]), np.array([0.01, 0.02, 0.03]), np.array([0.5, 0.3, 0.1])
    correction = np.array([0.0, 0.3, 0.0]) if name in ("momentum", "nesterov") else np.zeros(3)
    update.set_rates([(lrs, decays, correction)] * len(ours.param_groups), 0, share)
    update.point_to(gradients)
    for step in range(3):
        for gradient, parameter in zip(gradients, parameters, strict=True):
            gradient.normal_()
            parameter.grad = gradient.float()
            if correction[step]:
                torchs.state[parameter]["momentum_buffer"].add_(parameter.detach(), alpha=correction[step])
        for group in torchs.param_groups:
            group["lr"], group["weight_decay"] = lrs[step], decays[step]
        factor = None
        if clip is not None:
            norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
            factor = clip / (norm + 1e-6)
        torchs.step()
        for average, parameter in zip(wanted, parameters, strict=True):
            average.lerp_(parameter.detach(), share[step])
        update.launch(torch.tensor([step], device="cuda"), factor)
    update.count(3)
    for weight, copy, parameter in zip(weights, copies, parameters, strict=True):
        # A product's order of sums may differ between one matrix and a stack, and Muon's are of bfloat16.
        close = {"rtol": 0.02, "atol": 2e-3} if name == "muon" and weight.dim() == 2 else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(weight.detach(), parameter.detach(), **close)
        assert torch.equal(copy, weight.detach().bfloat16())
        assert ours.state[weight].get("step") == torchs.state[parameter].get("step")
    for weight, average, want in zip(weights, averages, wanted, strict=True):
        close = {"rtol": 0.02, "atol": 2e-3} if name == "muon" and weight.dim() == 2 else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(average, want, **close)


TEXT = {"net": "gpt", "data": "python-stdlib?context=64", "batch_size": 16}
GPT = {"depth": 2, "width": 64, "heads": 2}
OLD = {"norm": "layer", "affine": True, "qk_norm": False, "activation": "gelu", "positions": "learned", "bias": True}
VIT = {"depth": 2, "width": 64, "heads": 2, "image_size": 28, "patch": 7}
TRANSFORMERS = {
    "gpt": TEXT | {"net_options": GPT},
    "gpt2": TEXT | {"net_options": GPT | OLD | {"tied": True}},
    "llama": TEXT | {"net_options": GPT | {"affine": True, "qk_norm": False, "activation": "swiglu"}},
    "layer norms of heads": TEXT | {"net_options": GPT | {"norm": "layer", "width": 72, "heads": 3}},
    "vit": {"net": "vit", "net_options": VIT, "batch_size": 16, "data": "fashion-mini"},
    "vit, narrow": {"net": "vit", "net_options": VIT | {"width": 20}, "data": "fashion-mini"},
    "vit, mean": {"net": "vit", "net_options": VIT | {"pool": "mean", "qk_norm": True}, "data": "fashion-mini"},
}


def transformer_config(make_config, name: str, **changes):
    config = {
        "optimizer": "adamw",
        "lr": 1e-3,
        "weight_decay": 0.1,
        "beta2": 0.95,
        "samples": 160,
        **TRANSFORMERS[name],
    }
    config |= {"monitor_every": 0, "batch_size": 16} | changes
    options = config.pop("net_options")
    return replace(make_config(**config), net_options=options)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", list(TRANSFORMERS))
def test_the_gradients_of_a_transformer(make_config, name, precision):
    """Of every weight, no further from float64 than the plain network's, twice over; and the same loss."""
    from isogon.lab.gpu.fused import FusedStep

    def started(precision: str) -> Training:
        training = Training(transformer_config(make_config, name, precision=precision), device="cuda")
        training.begin_epoch()
        return training

    def plain(precision: str) -> tuple[list[torch.Tensor], Training]:
        training = started(precision)
        training.backward(*next(training.batches()))
        return [p.grad for p in training.model.parameters()], training

    (exact, _), (usual, of_usual) = plain("float64"), plain(precision)
    training = started(precision)
    step = FusedStep(training, training.config.steps_per_epoch, 1)
    step.begin_epoch()
    step.gradients()
    scale = max(float(gradient.norm()) for gradient in exact)
    for gradient, alike, want in zip(step._gradients, usual, exact, strict=True):
        off, allowed = (float((g.double() - want).norm()) for g in (gradient, alike))
        assert off < 2 * allowed + 1e-6 * scale
    np.testing.assert_allclose(training.sums.tolist(), of_usual.sums.tolist(), rtol=0.02)


IMAGES = {"data": "fashion-mini", "samples": 512, "epochs": 2, "monitor_every": 0}
TRAINED = {
    "resnet18": lambda make, **how: make(net="resnet18", lr=0.02, **IMAGES, **how),
    "cnn4": lambda make, **how: make(net="cnn4", lr=0.02, **IMAGES, **how),
    "preresnet32": lambda make, **how: make(net="preresnet32", lr=0.02, **IMAGES, **how),
    "cnn4, adamw": lambda make, **how: make(optimizer="adamw", lr=1e-3, **IMAGES, **how),
    "gpt, adamw": lambda make, **how: transformer_config(make, "gpt", clip=0.5, average=0.9, **how),
    "gpt2, lion": lambda make, **how: transformer_config(make, "gpt2", optimizer="lion", lr=1e-4, **how),
    "gpt, muon": lambda make, **how: transformer_config(make, "gpt", optimizer="muon", beta2=None, **how),
    "vit, adamw": lambda make, **how: transformer_config(make, "vit", decay_on="matrices", layer_decay=0.8, **how),
}


@pytest.mark.parametrize("name", list(TRAINED))
def test_graphs_are_no_further_from_float64_than_twice_the_plain_loop(name, make_config):
    """Ten steps in float32: later, ReLUs that flip have made rounding errors grow."""

    def config(precision: str):
        return TRAINED[name](make_config, precision=precision)

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
        print(f"{name}, step {step}: off by {off(graphed, step):.2e}, the plain loop by {off(plain, step):.2e}")
        # Rounding alone is below the first bound; a ReLU that flips in either, even in the first step, is not.
        assert off(graphed, step) < max(1e-4, 2 * off(plain, step))
    # A wrong formula shows in the first step, when few have flipped; later the plain loop itself may be far off, and
    # with signs (Lion) and products in bfloat16 (Muon) at once.
    assert off(graphed, 1) < max(0.01, 1.1 * off(plain, 1))


def test_a_random_lane_draws_as_it_would_alone(make_config):
    """Its masks follow from its seed and the step: neighbours, their number and a restart change nothing."""

    def config(seed: int, epochs: int = 2):
        options = TRANSFORMERS["gpt"]["net_options"] | {"dropout": 0.3}
        base = transformer_config(make_config, "gpt", seed=seed, init_seed=0, epochs=epochs, batch_size=20)
        return replace(base, net_options=options)

    (alone,) = lanes([config(1)], device="cuda")
    together = lanes([config(seed) for seed in (0, 1, 2)], device="cuda")
    plain = train(config(1), device="cuda")
    without = lanes([replace(config(1), net_options=TRANSFORMERS["gpt"]["net_options"])], device="cuda")[0]
    for other in (together[1], plain):
        np.testing.assert_allclose(other.epochs.train_loss, alone.epochs.train_loss, rtol=1e-4)
    for other in (together[0], without):
        assert abs(other.epochs.train_loss[0] / alone.epochs.train_loss[0] - 1) > 1e-3


def test_the_optimizer_and_the_average_know_how_many_steps_were_made(make_config, tmp_path):

    config = transformer_config(make_config, "gpt", average=0.9, epochs=2, samples=168, last_batch="keep")
    lane = GraphedTraining(Training(config, tmp_path, device="cuda"), torch.cuda.Stream())
    while lane.advance(3):
        pass
    assert lane.refused is None
    assert config.steps == 22  # of which two are ordinary ones
    assert {int(state["step"]) for state in lane.training.optimizer.state.values()} == {22}
    assert lane.training.average.state_dict()["steps"] == 22
    lane.finish()


def test_a_network_that_cannot_be_recorded_is_trained_step_by_step(make_config, monkeypatch):
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


@pytest.mark.parametrize("nested", [False, True])
def test_the_twin_of_a_layer_that_is_used_twice(nested):
    from isogon.lab.gpu.fused._network import Twin

    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 64)
    parts = [torch.nn.Sequential(layer) if nested else layer for _ in range(2)]
    network, x = torch.nn.Sequential(parts[0], torch.nn.ReLU(), parts[1]).cuda(), torch.randn(32, 64, device="cuda")
    twin = Twin(network, torch.bfloat16, 1)
    with torch.autocast("cuda", torch.bfloat16):
        losses = [model(x).float().square().mean() for model in (twin.network, network)]
    gradients = twin.gradients(torch.autograd.grad(losses[0], twin.leaves))
    for gradient, wanted in zip(gradients, torch.autograd.grad(losses[1], list(network.parameters())), strict=True):
        assert distance(gradient, wanted) < 0.02


def test_the_twin_calls_hooks():
    from isogon.lab.gpu.fused._network import Twin

    network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3, bias=False)).cuda()
    network[2].register_forward_hook(lambda module, inputs, output: output * 0)
    assert not Twin(network, torch.bfloat16, 1).network(torch.randn(4, 8, device="cuda")).any()


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
