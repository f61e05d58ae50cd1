"""`check` on whole models: what it says, what it leaves alone, and what it refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isogon.errors import ArgumentError, IsogonError
from isogon.symmetry import DisagreementWarning, ExportError, ScaleMap, check, register_rule, remove_rule

NOT = "not homogeneous"
Confirmed = Callable[..., ScaleMap]


def images() -> Tensor:
    return torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


class ResidualNet(nn.Module):
    """Two normalised layers, a residual block, a norm without affine and a frozen classifier (Yun's construction)."""

    def __init__(self, norm: Callable[[int], nn.Module], *, bias: bool = False, last: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, bias=bias), norm(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1, bias=bias), norm(8)
        self.last = last or nn.BatchNorm1d(8, affine=False)
        self.fc = frozen(nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)) + x)
        return self.fc(self.last(x.mean((2, 3))))


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, group_norm])
def test_affine_networks_are_jointly_invariant(norm: Any, confirmed: Confirmed) -> None:
    found = confirmed(ResidualNet(norm), images())
    assert found.is_invariant
    assert found.verdict == "invariant"
    assert found.breaks == ()
    assert found.invariant == ("conv1.weight", "conv2.weight")
    assert list(found.alone) == [n for n, p in ResidualNet(norm).named_parameters() if p.requires_grad]


def test_a_bias_before_batch_norm_has_no_effect(confirmed: Confirmed) -> None:
    found = confirmed(ResidualNet(nn.BatchNorm2d, bias=True), images())
    assert found.is_invariant
    assert {"conv1.bias", "conv2.bias"} <= set(found.invariant)
    assert "norm1 (BatchNorm2d)" in found.explain("conv1.bias")


def test_a_bias_before_group_norm_breaks_above_degree_1_and_alone(confirmed: Confirmed) -> None:
    found = confirmed(ResidualNet(group_norm, bias=True), images())
    assert not found.is_invariant
    assert found.verdict == "not invariant"
    assert [(b.kind, b.module) for b in found.breaks] == [("bias", "conv2")]  # conv1.bias meets a tensor of degree 1
    for piece in ("conv2.bias (degree 1)", "degree 2", "norm2 (GroupNorm)", "drop the bias"):
        assert piece in found.explain()
    assert str(found.alone["conv1.bias"]) == NOT
    assert "norm1 (GroupNorm)" in found.explain("conv1.bias")
    fed_by_input = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8, affine=False))
    assert confirmed(fed_by_input, images()).is_invariant


def test_zeros_at_the_border_keep_a_bias_alive(confirmed: Confirmed) -> None:
    """Without padding a constant stays one behind a convolution, and batch norm removes it; zeros around it show it."""

    def net(padding: int, second: type[nn.Module] = nn.Conv2d) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 1), second(4, 5, 3, padding=padding), nn.BatchNorm2d(5, affine=False))

    assert "0.bias" in confirmed(net(0), images()).invariant
    assert str(confirmed(net(1), images()).alone["0.bias"]) == NOT
    assert str(confirmed(net(0, nn.ConvTranspose2d), images()).alone["0.bias"]) == NOT


def test_a_buffer_that_the_model_writes_is_no_constant(function: Any) -> None:
    def body(m: Any, x: Tensor, write: bool) -> Tensor:
        y = x @ m.w + m.offset
        if write:
            m.offset.copy_(x.mean(0))
        return y

    for write, expected in ((False, "1"), (True, NOT)):
        model = function(lambda m, x, write=write: body(m, x, write), w=(5, 5), offset=torch.zeros(5))
        assert str(check(model, torch.randn(4, 5)).joint) == expected


def test_eval_mode_is_named_as_the_reason(confirmed: Confirmed) -> None:
    model = ResidualNet(nn.BatchNorm2d)
    assert confirmed(model, images()).is_invariant
    found = confirmed(model.eval(), images())
    assert not found.is_invariant
    assert found.breaks[0].kind == "eval"
    assert found.breaks[0].module == "norm1"
    assert "eval mode" in found.explain()
    assert "train()" in found.explain()
    model.train().norm2.eval()
    partly = confirmed(model, images())
    assert not partly.is_invariant
    assert "norm2 (BatchNorm2d) uses its running statistics" in partly.explain()
    assert [(b.kind, b.module) for b in partly.breaks] == [("eval", "norm2"), ("add", "")]


def test_eval_mode_is_harmless_where_nothing_scales(confirmed: Confirmed) -> None:
    model = nn.Sequential(nn.BatchNorm2d(3, affine=False).eval(), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=False))
    assert confirmed(model, images()).is_invariant


def test_a_trainable_classifier_gives_the_output_a_degree(confirmed: Confirmed) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4, affine=False), nn.Flatten(), nn.LazyLinear(3)
    )
    model(images())
    found = confirmed(model, images())
    assert str(found.joint) == "1"
    assert found.breaks[0].kind == "output"
    assert found.breaks[0].module == "3"
    assert "degree 1" in found.explain()
    assert "freeze" in found.explain()
    assert str(found.alone["0.weight"]) == "0"
    assert str(found.alone["3.weight"]) == NOT


@pytest.mark.parametrize(
    ("last", "verdict"), [("batch", "invariant"), ("layer", "not invariant"), ("group", "not invariant")]
)
def test_concatenated_channels_of_unequal_degree(last: str, verdict: str, confirmed: Confirmed) -> None:
    """DenseNet: batch norm sends every channel to degree 0, a norm across channels mixes them."""

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.Conv2d(4, 4, 3, padding=1, bias=False)
            self.norm = {
                "batch": nn.BatchNorm2d(8, affine=False),
                "layer": nn.LayerNorm([8, 8, 8], elementwise_affine=False),
                "group": nn.GroupNorm(1, 8, affine=False),
            }[last]

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            return self.norm(torch.cat([x, self.b(x)], 1))

    found = confirmed(Dense(), images())
    assert found.verdict == verdict
    if verdict == "not invariant":
        assert found.breaks[0].kind == "channels"
        assert "1, 2" in found.explain()
    assert str(found.alone["a.weight"]) == "0"  # alone, both halves have degree 1


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (lambda y: y.flatten(1), "0"),
        (lambda y: y.permute(0, 2, 3, 1).reshape(6, -1), "0"),
        (lambda y: y.view(6, 2, 4, 8, 8).transpose(1, 2).reshape(6, 8, 8, 8), "0"),
        (lambda y: y.roll(3, 1), "0"),
        (lambda y: torch.cat(y.chunk(2, 1)[::-1], 1), "0"),
        (lambda y: y.repeat(1, 2, 1, 1), "0"),
        (lambda y: y[:, 2:6], "0"),
        (lambda y: y[:, :4].flip(1), "0"),
        (lambda y: F.max_pool2d(F.relu(y), 2), "0"),
        (lambda y: F.conv2d(y, y.new_ones(8, 1, 1, 1), groups=8), "0"),
        (lambda y: F.pixel_shuffle(y, 2), "0"),
        (lambda y: F.conv2d(y, y.new_ones(8, 8, 1, 1)), NOT),
        (lambda y: y.view(6, 4, 2 * 64), "0"),
        (lambda y: y.mean(1, keepdim=True), NOT),
    ],
)
def test_channels_are_followed_through_shapes(route: Any, expected: str, function: Any, confirmed: Confirmed) -> None:
    def body(m: Any, x: Tensor) -> Tensor:
        y = F.conv2d(x, m.w)
        return F.batch_norm(route(torch.cat([y, F.conv2d(y, m.v)], 1)), None, None, training=True)

    found = confirmed(function(body, w=(4, 3, 1, 1), v=(4, 4, 1, 1)), images())
    assert str(found.joint) == expected


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (lambda y: y[:, :4], "1"),
        (lambda y: y.flip(1)[:, :4], "2"),
        (lambda y: y.roll(2, 1)[:, 2:6], "1"),
        (lambda y: y.chunk(2, 1)[1], "2"),
        (lambda y: y.permute(0, 2, 3, 1)[..., 7], "2"),
        (lambda y: y.view(6, 2, 4, 8, 8).transpose(1, 2).reshape(6, 8, 8, 8)[:, 1::2], "2"),
        (lambda y: y.flatten(1)[:, : 4 * 64], "1"),
        (lambda y: y.repeat_interleave(2, 1).unbind(1)[7], "1"),
        (lambda y: F.conv2d(y, y.new_ones(4, 4, 1, 1), groups=2)[:, 2:], "2"),
    ],
)
def test_the_right_channels_come_out(route: Any, expected: str, function: Any, confirmed: Confirmed) -> None:
    """The first four channels have degree 1, the others degree 2."""

    def body(m: Any, x: Tensor) -> Tensor:
        y = F.conv2d(x, m.w)
        return route(torch.cat([y, F.conv2d(y, m.v)], 1))

    assert str(confirmed(function(body, w=(4, 3, 1, 1), v=(4, 4, 1, 1)), images()).joint) == expected


def test_channels_that_cannot_be_followed_are_unknown(function: Any, confirmed: Confirmed) -> None:
    def body(m: Any, x: Tensor) -> Tensor:
        y = F.conv2d(x, m.w)
        picked = torch.cat([y, F.conv2d(y, m.v)], 1)[:, torch.tensor([0, 5])]
        return F.batch_norm(picked, None, None, training=True)

    assert str(confirmed(function(body, w=(4, 3, 1, 1), v=(4, 4, 1, 1)), images()).joint) == "unknown"


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, norm: Callable[[int], nn.Module], bias: bool = True) -> None:
        super().__init__()
        self.norm1, self.norm2, self.heads = norm(width), norm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.up, self.down = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = (p.view(n, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, d)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def plain_layer_norm(width: int) -> nn.Module:
    return nn.LayerNorm(width, elementwise_affine=False)


class GPT(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.position = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.blocks = nn.ModuleList(Block(8, 2, nn.LayerNorm) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return {"logits": self.head(self.norm(x))}


def test_a_gpt_with_tied_weights(confirmed: Confirmed) -> None:
    ids = torch.randint(0, 11, (2, 6), generator=torch.Generator().manual_seed(0))
    found = confirmed(GPT(), ids)
    assert found.verdict == "not invariant"
    assert found.invariant == ()
    assert found.aliases == {"token.weight": ("head.weight",)}
    assert "head.weight" not in found.alone
    assert found.explain("head.weight") == found.explain("token.weight")
    assert "tied to head.weight" in str(found)


def test_a_vit_block_with_normalised_queries_and_keys(confirmed: Confirmed) -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.patch = nn.Conv2d(3, 8, 4, stride=4, bias=False)
            self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))
            self.norm = plain_layer_norm(8)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.patch(x).flatten(2).transpose(1, 2))
            q, k = self.norm(self.q(x)), self.norm(self.k(x))
            x = F.scaled_dot_product_attention(q, k, self.v(x))
            return self.norm(x).mean(1)

    found = confirmed(Normalised(), images())
    assert found.is_invariant
    assert len(found.invariant) == 4
    plain = nn.Sequential(Block(8, 2, plain_layer_norm, bias=False), plain_layer_norm(8))
    mixed = confirmed(plain, torch.randn(2, 5, 8))
    assert not mixed.is_invariant
    assert "attention" in mixed.explain()


def test_parameters_without_effect(function: Any, confirmed: Confirmed) -> None:
    found = confirmed(function(lambda m, x: F.normalize(x @ m.w, dim=-1), w=(5, 5), idle=(3,)), torch.randn(4, 5))
    assert str(found.alone["idle"]) == "0"
    assert "no effect" in found.explain("idle")


def test_no_grad_and_autocast_blocks_are_entered(function: Any, confirmed: Confirmed) -> None:
    def body(m: Any, x: Tensor) -> Tensor:
        y = x @ m.w
        with torch.no_grad():
            size = y.norm(dim=-1, keepdim=True)
        return y / size

    found = confirmed(function(body, w=(5, 5)), torch.randn(4, 5))
    assert found.is_invariant

    def cast(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ m.w

    assert str(check(function(cast, w=(5, 5)), torch.randn(4, 5)).joint) == "1"


def test_detached_tensors_are_mentioned(function: Any) -> None:
    found = check(function(lambda m, x: x @ m.w / m.w.norm().detach(), w=(5, 5)), torch.randn(4, 5))
    assert any("detaches" in sentence for sentence in found.assumptions)


#: views of a tensor which no schema calls so
HIDDEN_VIEWS = {
    "einsum": lambda y: torch.einsum("ij->ji", y),
    "meshgrid": lambda y: torch.meshgrid(y[0], y[1], indexing="ij")[0][:, 0],  # the rest repeats it
    "broadcast_tensors": lambda y: torch.broadcast_tensors(torch.ones(5, 5), y)[1],
    "atleast_2d": lambda y: torch.atleast_2d(torch.ones(5), y)[1],
}


@pytest.mark.parametrize("name", HIDDEN_VIEWS)
def test_what_is_written_into_a_view_reaches_the_tensor(name: str, function: Any, confirmed: Confirmed) -> None:
    def body(m: Any, x: Tensor) -> Tensor:
        y = x @ m.w
        HIDDEN_VIEWS[name](y).add_(1)
        return F.normalize(y, dim=-1)

    assert "w" not in confirmed(function(body, w=(5, 5)), torch.randn(5, 5)).invariant


def test_hidden_views_share_memory_as_torch_has_it() -> None:
    y = torch.randn(5, 5)
    for name, view in HIDDEN_VIEWS.items():
        assert view(y).untyped_storage().data_ptr() == y.untyped_storage().data_ptr(), name


def test_writing_in_place_through_a_view_is_seen(function: Any, confirmed: Confirmed) -> None:
    def body(m: Any, x: Tensor, value: Callable[[Tensor], Any]) -> Tensor:
        y = x @ m.w
        y[:, 0] = value(y)
        return y

    def joint(value: Callable[[Tensor], Any]) -> str:
        return str(confirmed(function(lambda m, x: body(m, x, value), w=(5, 5)), torch.randn(4, 5)).joint)

    assert joint(lambda y: 0.0) == "1"
    assert joint(lambda y: 2 * y[:, 1]) == "1"
    assert joint(lambda y: 3.0) == "unknown"
    assert joint(lambda y: y[:, 1] ** 2) == "unknown"


def test_several_outputs_must_all_be_invariant(function: Any, confirmed: Confirmed) -> None:
    @dataclass
    class Out:
        logits: Tensor
        extra: Tensor

    torch.export.register_dataclass(Out)

    def both(m: Any, x: Tensor) -> Out:
        y = x @ m.w
        return Out(F.normalize(y, dim=-1), y)

    found = check(function(both, w=(5, 5)), torch.randn(4, 5))
    assert found.verdict == "not invariant"
    assert "0, 1" in found.explain()
    indices = function(lambda m, x: (F.normalize(x @ m.w, dim=-1), (x @ m.w > 1).long()), w=(5, 5))
    assert confirmed(indices, torch.randn(4, 5)).is_invariant  # integer outputs do not count


def test_assumptions_list_every_epsilon_once(confirmed: Confirmed) -> None:
    found = confirmed(ResidualNet(nn.BatchNorm2d), images())
    assert len(found.assumptions) == 1
    assert all(piece in found.assumptions[0] for piece in ("1e-05", "batch_norm", "norm1", "norm2", "last"))


def test_a_norm_over_two_values_is_mentioned() -> None:
    found = check(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)), torch.randn(2, 5))
    assert any("±1" in sentence for sentence in found.assumptions)


def snapshot(model: nn.Module) -> Any:
    state = {
        name: (t.clone(), t._version, t.requires_grad, t.grad)
        for name, t in [*model.named_parameters(), *model.named_buffers()]
    }
    modes = {name: (m.training, sorted(m._forward_hooks)) for name, m in model.named_modules()}
    return state, modes, torch.get_rng_state()


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_left_as_it_is(verify: bool, training: bool) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(144, 5)),
    )  # fmt: skip
    model[0].bias.requires_grad_(False)
    model(images()).sum().backward()
    model.train(training)
    model[1].eval()
    (before, modes, rng), x = snapshot(model), images()
    kept = x.clone()
    check(model, x, verify=verify)
    after, modes_after, rng_after = snapshot(model)
    assert modes == modes_after
    assert torch.equal(rng, rng_after)
    assert torch.equal(x, kept)
    for name, (value, version, requires_grad, grad) in before.items():
        now = after[name]
        assert torch.equal(value, now[0]), name
        assert (version, requires_grad) == now[1:3], name
        assert grad is now[3], name


def test_python_attributes_are_left_as_they_are() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.calls, self.seen = nn.Linear(3, 3), 0, ["nothing"]

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.seen.append("something")
            self.latest = "something"
            torch.manual_seed(5)
            return self.linear(x)

    model, x = Counting(), torch.randn(2, 3)
    rng = torch.get_rng_state()
    check(model, x, verify=True)
    assert (model.calls, model.seen) == (0, ["nothing"])
    assert not hasattr(model, "latest")
    assert torch.equal(rng, torch.get_rng_state())


def test_wrappers_are_seen_through() -> None:
    inner = ResidualNet(nn.BatchNorm2d)
    for wrapped in (nn.DataParallel(inner), torch.compile(inner)):
        where = next(inner.parameters()).device  # DataParallel moves the model where there is a GPU
        found = check(wrapped, images().to(where))  # type: ignore[arg-type]
        assert found.is_invariant
        assert "conv1.weight" in found.alone


def test_keyword_arguments(function: Any) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor, *, mask: Tensor) -> Tensor:
            return self.linear(x) + mask

    x = torch.randn(2, 4)
    mask = torch.tensor([0.0, float("-inf"), 0.0, 0.0])
    assert str(check(Masked(), x, kwargs={"mask": mask}).joint) == "1"  # zeros and -∞ have any degree
    assert str(check(Masked(), x, kwargs={"mask": torch.zeros(4)}).joint) == NOT  # an example's values prove nothing


def test_what_cannot_be_checked_is_refused_in_one_sentence() -> None:
    with pytest.raises(ExportError, match=r"torch\.export cannot export Linear .*: check that"):
        check(nn.Linear(3, 4), torch.randn(2, 5))
    assert issubclass(ExportError, IsogonError)
    with pytest.raises(ArgumentError, match=r"model must be a torch\.nn\.Module"):
        check(torch.relu, torch.randn(2))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="floating-point"):
        check(_Argmax(), torch.tensor([1]))


class _Argmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids).argmax(-1)


def test_explain_suggests_close_names() -> None:
    found = check(nn.Sequential(nn.Linear(3, 4)), torch.randn(2, 3))
    with pytest.raises(ArgumentError, match=r"did you mean 0\.weight"):
        found.explain("0.weigth")
    with pytest.raises(ArgumentError, match=r"\.alone"):
        found.explain("something else")


def test_the_table_and_the_data_say_the_same() -> None:
    found = check(ResidualNet(group_norm, bias=True), images(), verify=True)
    text, data = str(found), json.loads(json.dumps(found.to_dict()))
    for row in data["parameters"]:
        line = next(line for line in text.splitlines() if line.startswith(row["name"] + " "))
        assert row["alone"] in line
        assert row["verdict"] in line
        assert "×".join(map(str, row["shape"])) in line
    assert text.splitlines()[-1].startswith("jointly (all 8 together): not invariant. ")
    assert data["verdict"] == "not invariant"
    assert data["breaks"][0]["module"] == "conv2"
    assert data["disagreements"] == []
    assert "verified" in data["verification"]


def test_verification_agrees_and_judges_what_is_unknown(function: Any) -> None:
    model = function(lambda m, x: F.normalize(torch.special.bessel_j0(x @ m.w) @ m.v, dim=-1), w=(5, 5), v=(5, 5))
    found = check(model, torch.randn(6, 5), verify=True)
    assert found.disagreements == ()
    assert str(found.alone["w"]) == "unknown"
    assert (found.measured["w"], found.measured["v"], found.measured["joint"]) == (
        "not invariant",
        "invariant",
        "not invariant",
    )
    assert "measured: not invariant" in str(found)
    assert found.explain("w").endswith("Measured in double precision: not invariant.")
    assert "Cure" not in found.explain("w")


def test_a_wrong_rule_is_caught_loudly(function: Any) -> None:
    model = function(lambda m, x: torch.special.bessel_j0(x @ m.w), w=(5, 5))
    register_rule("aten.special_bessel_j0")(lambda op, self: op.sign(self))
    try:
        with pytest.warns(DisagreementWarning, match="joint: the rules say invariant, the measurement says not"):
            found = check(model, torch.randn(6, 5), verify=True)
    finally:
        remove_rule("aten.special_bessel_j0")
    assert {d.name for d in found.disagreements} == {"joint", "w"}
    assert "DISAGREEMENT" in str(found)


def test_a_failing_verification_is_said() -> None:
    class OnlyOnce(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)

        def __deepcopy__(self, memo: Any) -> Any:
            raise RuntimeError("not to be copied")

    found = check(OnlyOnce(), torch.randn(2, 3), verify=True)
    assert "could not be verified" in found.verification
    assert "not to be copied" in found.verification
    assert found.measured == {}
    assert copy.copy(found) == found
