"""Ghost batch norm is batch norm on chunks, in every way torch can run it; `make_norm` normalises what it says."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from isogon.errors import ArgumentError
from isogon.nets import GhostBatchNorm1d, GhostBatchNorm2d, make_norm

CHANNELS = 3
FORMS = {"2d": (GhostBatchNorm2d, (5, 2)), "1d": (GhostBatchNorm1d, ()), "1d sequence": (GhostBatchNorm1d, (6,))}


def ghost_norm(kind: type[nn.Module] = GhostBatchNorm2d, ghost_batch: int = 4) -> nn.Module:
    """A layer in float64 with affine parameters and running statistics that are not the initial ones."""
    generator = torch.Generator().manual_seed(1)
    layer = kind(CHANNELS, ghost_batch).double()
    for tensor in (layer.weight.data, layer.bias.data, layer.running_mean):
        tensor.normal_(generator=generator)
    layer.running_var.uniform_(0.5, 2, generator=generator)
    return layer


def images(samples: int, *, positions: tuple[int, ...] = (5, 2)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(samples, CHANNELS, *positions, generator=generator, dtype=torch.float64) * 3 + 1


def run(layer: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Output, the gradients of a function of it that is not linear, and the buffers afterwards."""
    x = x.detach().requires_grad_()
    y = layer(x)
    gradients = torch.autograd.grad(y.sin().sum(), (x, layer.weight, layer.bias))
    return [y.detach(), *gradients, *(buffer.clone() for buffer in layer.buffers())]


def run_by_chunks(layer: nn.Module, x: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    mean, var = layer.running_mean.clone(), layer.running_var.clone()
    x = x.detach().requires_grad_()
    weight, bias = layer.weight, layer.bias
    y = torch.cat([functional.batch_norm(chunk, mean, var, weight, bias, training=True) for chunk in x.split(sizes)])
    gradients = torch.autograd.grad(y.sin().sum(), (x, weight, bias))
    return [y.detach(), *gradients, mean, var, layer.num_batches_tracked + len(sizes)]


def assert_all_close(actual: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float = 1e-12) -> None:
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("samples", "sizes"),
    [
        pytest.param(8, [4, 4], id="multiple"),
        pytest.param(10, [4, 4, 2], id="remainder"),
        pytest.param(9, [4, 5], id="remainder of one"),
        pytest.param(4, [4], id="one chunk"),
        pytest.param(3, [3], id="smaller"),
    ],
)
def test_training_is_batch_norm_on_each_chunk_in_turn(form: str, samples: int, sizes: list[int]) -> None:
    kind, positions = FORMS[form]
    x = images(samples, positions=positions)
    expected = run_by_chunks(ghost_norm(kind), x, sizes)
    assert_all_close(run(ghost_norm(kind), x), expected)


def test_running_mean_decays_once_per_chunk() -> None:
    layer, x = GhostBatchNorm2d(CHANNELS, 4, momentum=0.3).double(), images(12)
    layer(x)
    first, second, third = (chunk.mean((0, 2, 3)) for chunk in x.split(4))
    torch.testing.assert_close(layer.running_mean, 0.3 * (0.7**2 * first + 0.7 * second + third))
    assert layer.num_batches_tracked == 3


def test_without_running_statistics_or_affine() -> None:
    layer, x = GhostBatchNorm2d(CHANNELS, 4, affine=False, track_running_stats=False).double(), images(8)
    expected = torch.cat([functional.batch_norm(chunk, None, None, training=True) for chunk in x.split(4)])
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)
    assert not layer.state_dict()
    # As in torch, eval mode then takes the statistics of the batch, all of it.
    torch.testing.assert_close(layer.eval()(x), functional.batch_norm(x, None, None, training=True))


@pytest.mark.parametrize(
    ("ghost", "standard", "positions"),
    [(GhostBatchNorm2d, nn.BatchNorm2d, (5, 2)), (GhostBatchNorm1d, nn.BatchNorm1d, ())],
)
def test_eval_mode_and_state_dict_are_those_of_batch_norm(
    ghost: type[nn.Module], standard: type[nn.Module], positions: tuple[int, ...]
) -> None:
    layer = ghost_norm(ghost)
    twin = standard(CHANNELS).double()
    twin.load_state_dict(layer.state_dict())
    x = images(9, positions=positions)
    assert torch.equal(layer.eval()(x), twin.eval()(x))
    assert isinstance(layer, standard)


def test_channels_last_gives_the_same_and_stays_so() -> None:
    x = images(10)
    last = x.to(memory_format=torch.channels_last)
    assert_all_close(run(ghost_norm(), last), run(ghost_norm(), x))
    assert ghost_norm()(last).is_contiguous(memory_format=torch.channels_last)


def test_compiles_to_one_graph() -> None:
    layer, x = ghost_norm(), images(10)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    expected = run(ghost_norm(), x)
    y = compiled(x.requires_grad_())
    gradients = torch.autograd.grad(y.sin().sum(), (x, layer.weight, layer.bias))
    assert_all_close([y.detach(), *gradients, *layer.buffers()], expected)


def test_vmap_runs_many_layers_at_once() -> None:
    stack = [ghost_norm() for _ in range(3)]
    with torch.no_grad():
        for number, layer in enumerate(stack):
            layer.weight.mul_(number + 2)
            layer.running_mean.add_(number)
    parameters, buffers = torch.func.stack_module_state(stack)
    x = torch.stack([images(10), images(10).flip(0), images(10) ** 2])

    def call(parameters: dict, buffers: dict, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(stack[0], (parameters, buffers), (x,))

    y = torch.func.vmap(call)(parameters, buffers, x)
    for number, layer in enumerate(stack):
        torch.testing.assert_close(y[number], layer(x[number]), rtol=1e-12, atol=1e-12)
        for name, buffer in layer.named_buffers():
            torch.testing.assert_close(buffers[name][number], buffer, rtol=1e-12, atol=1e-12)


def test_autocast_keeps_statistics_in_float32() -> None:
    layer = GhostBatchNorm2d(CHANNELS, 4, momentum=1.0)
    x = images(8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    last = x[4:].double()
    torch.testing.assert_close(layer.running_mean, last.mean((0, 2, 3)).float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.running_var, last.var((0, 2, 3)).float(), rtol=1e-5, atol=1e-5)


def test_export_shows_batch_norm_between_split_and_cat() -> None:
    program = torch.export.export(GhostBatchNorm2d(CHANNELS, 4), (images(10).float(),))
    operations = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert operations.count("aten.batch_norm.default") == 3
    rest = set(operations) - {"aten.batch_norm.default", "<built-in function getitem>", "aten.add_.Tensor"}
    assert rest == {"aten.split_with_sizes.default", "aten.cat.default"}


def test_bad_ghost_batch_is_refused() -> None:
    with pytest.raises(ArgumentError, match="ghost_batch must be a whole number"):
        GhostBatchNorm2d(CHANNELS, 0)


# Axes of activations viewed as (ghost batch, sample, group, channel of the group, position).
@pytest.mark.parametrize(
    ("kind", "axes"),
    [("batch", (0, 1, 4)), ("ghost", (1, 4)), ("group", (3, 4)), ("layer", (2, 3, 4)), ("instance", (4,))],
)
def test_make_norm_normalises_over_the_axes_it_says_and_no_fewer(kind: str, axes: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 32, 6, 6, generator=generator, dtype=torch.float64) * 5 + 2
    layer = make_norm(kind, 32, affine=False, ghost_batch=4).double()
    y = layer(x).view(2, 4, 16, 2, 36)
    assert y.mean(axes).abs().max() < 1e-12
    torch.testing.assert_close(y.var(axes, correction=0), torch.ones_like(y.mean(axes)), rtol=1e-5, atol=0)
    assert len(axes) == 1 or y.mean(axes[1:]).abs().max() > 1e-2
    assert not list(layer.parameters())


@pytest.mark.parametrize("kind", ["group", "layer", "instance"])
def test_features_have_layer_norm_for_the_kinds_that_work_per_sample(kind: str) -> None:
    x = images(4, positions=())
    expected = functional.layer_norm(x, (CHANNELS,))
    torch.testing.assert_close(make_norm(kind, CHANNELS, affine=False, dim=1)(x), expected)


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("kind", ["batch", "ghost", "group", "layer", "instance"])
def test_affine_norms_start_as_those_without(kind: str, dim: int) -> None:
    x = images(6, positions=(5, 2) if dim == 2 else ()).float()
    affine = make_norm(kind, CHANNELS, ghost_batch=3, dim=dim)
    assert sorted(parameter.shape for parameter in affine.parameters()) == [(CHANNELS,)] * 2
    plain = make_norm(kind, CHANNELS, affine=False, ghost_batch=3, dim=dim)
    torch.testing.assert_close(affine(x), plain(x))


@pytest.mark.parametrize(
    ("channels", "groups"), [(64, 32), (96, 32), (32, 16), (48, 16), (24, 8), (20, 4), (4, 2), (2, 1), (3, 1)]
)
def test_group_norm_has_the_most_groups_of_two_channels_or_more(channels: int, groups: int) -> None:
    assert make_norm("group", channels).num_groups == groups


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ArgumentError, match="kind must be one of batch, ghost, group, layer, instance, got 'bn'"):
        make_norm("bn", CHANNELS)
