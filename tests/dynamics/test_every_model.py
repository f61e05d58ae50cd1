"""The monitor on models of which no weight is invariant by itself: groups as layers, and what is said where none is."""

from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from isogon import Recipe, check, symmetries
from isogon.dynamics import Finding, Monitor, RunFolder, findings, read
from isogon.dynamics.measure._layers import check_model
from isogon.errors import ArgumentError
from isogon.report.run._tables import summarise
from isogon.theory import law

WIDTH, WORDS = 16, 40
MADE = {"batch_size": 8, "samples": 32, "every_steps": 1}


class Block(nn.Module):
    """A transformer block as Llama has it, one head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(WIDTH, 24, bias=False), nn.Linear(WIDTH, 24, bias=False)
        self.down = nn.Linear(24, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.o(F.scaled_dot_product_attention(self.q(y), self.k(y), self.v(y), is_causal=True))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Two blocks between an embedding and a head, which may be one tensor."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embed, self.h = nn.Embedding(WORDS, WIDTH), nn.Sequential(Block(), Block())
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.h(self.embed(ids))))


STREAM = ["embed.weight", "h.0.o.weight", "h.0.down.weight", "h.1.o.weight", "h.1.down.weight"]


def make(*, tied: bool = False, seed: int = 0) -> tuple[Llama, torch.Tensor]:
    torch.manual_seed(seed)
    return Llama(tied=tied), torch.randint(0, WORDS, (64, 9))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor, steps: int, **options) -> Monitor:
    with Monitor(model, optimizer, **{**MADE, **options}) as monitor:
        for step in range(steps):
            batch = ids[torch.randint(0, len(ids), (8,), generator=torch.Generator().manual_seed(step))]
            optimizer.zero_grad()
            F.cross_entropy(model(batch[:, :-1]).float().flatten(0, 1), batch[:, 1:].flatten()).backward()
            optimizer.step()
    return monitor


def stacked(model: nn.Module) -> torch.Tensor:
    parameters = dict(model.named_parameters())
    return torch.cat([parameters[name].detach().flatten() for name in STREAM]).double().clone()


def test_the_residual_stream_is_a_layer_with_the_angle_of_its_joint_vector_and_a_law():
    model, ids = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    seen = [stacked(model)]
    optimizer.register_step_post_hook(lambda *_: seen.append(stacked(model)))
    monitor = train(model, optimizer, ids, 8, inputs=ids[:2, :-1])
    assert monitor.silence is None
    assert monitor.notes == {}
    matrices = [name for name, p in model.named_parameters() if p.dim() == 2]
    assert monitor.records.layer.unique().tolist() == [*matrices, "group:residual", "all"]
    rows = monitor.records.query("layer == 'group:residual'")
    np.testing.assert_allclose(rows.norm, [w.norm() for w in seen[:-1]], rtol=1e-5)
    turned = [torch.atan2((b - a * (a @ b) / (a @ a)).norm(), (a @ b) / a.norm()) for a, b in pairwise(seen)]
    np.testing.assert_allclose(rows.step_angle, turned, rtol=1e-3)
    # Float32 leaves 1e-7; what ε of the norms leaves of an embedding of variance 1 is about as much.
    assert np.sqrt(np.mean(rows.radial**2)) < 1e-4
    motion = law("adamw", lr=1e-3, weight_decay=0.1, momentum=0.9, beta2=0.999)
    np.testing.assert_allclose(rows.predicted_step_angle, motion.angle(1), rtol=1e-9)
    np.testing.assert_allclose(rows.predicted_epoch_angle.dropna(), motion.angle(4), rtol=1e-9)
    others = monitor.records[~monitor.records.layer.isin(["group:residual"])]
    assert others.filter(like="predicted").isna().all(axis=None)
    assert others.in_equilibrium.isna().all()
    assert (others.step_angle > 0).all()


def test_a_matrix_that_theory_is_not_about_is_not_called_without_effect():
    """Queries and keys of a young transformer matter little: attention is flat, and their gradients are small."""
    model, ids = make()
    with torch.no_grad():
        for block in model.h:
            block.q.weight.mul_(1e-3)
            block.k.weight.mul_(1e-3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.1)
    monitor = train(model, optimizer, ids, 8, inputs=ids[:2, :-1])
    energies = monitor.records.groupby("layer").unit_grad_sq.mean()
    assert energies["h.0.q.weight"] < 1e-4 * energies["group:residual"]
    recipe = Recipe.from_optimizer(optimizer, batch_size=8, samples=32)
    assert "without_effect" not in {f.name for f in findings(monitor.records, recipe, about=monitor.about)}


class Shifted(Block):
    """Keys with a bias, which softmax ignores."""

    def __init__(self) -> None:
        super().__init__()
        self.k = nn.Linear(WIDTH, WIDTH)
        nn.init.zeros_(self.k.bias)  # as transformers are initialised


def test_where_only_weights_without_effect_are_invariant_all_has_no_law():
    model, ids = make()
    model.h = nn.Sequential(Shifted(), Shifted())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    asked = check(model, ids[:2, :-1])
    assert asked.invariant == ("h.0.k.bias", "h.1.k.bias")
    monitor = train(model, optimizer, ids, 8, inputs=ids[:2, :-1])
    later = monitor.records.query("step >= 2")
    law = later.groupby("layer").predicted_step_angle.apply(lambda values: values.notna().any())
    assert law[law].index.tolist() == ["group:residual"]
    # It is the network that `all` joins, not those biases.
    norms = monitor.records[monitor.records.step == 7].set_index("layer").norm
    assert norms["all"] > norms["group:residual"]
    recipe = Recipe.from_optimizer(optimizer, batch_size=8, samples=32)
    found = {(f.name, f.layer) for f in findings(monitor.records, recipe, about=monitor.about)}
    assert {("without_effect", "h.0.k.bias"), ("without_effect", "h.1.k.bias")} == found


def test_groups_can_come_from_symmetries_that_were_asked_before():
    model, ids = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    options = {"scale_map": check(model, ids[:2, :-1]), "symmetries": symmetries(model, ids[:2, :-1])}
    records = train(model, optimizer, ids, 2, **options).records
    assert records.query("layer == 'group:residual'").predicted_step_angle.notna().all()


def test_a_group_whose_members_are_decayed_differently_has_no_law_and_the_report_names_why(tmp_path):
    """As where embeddings are spared from weight decay; rates that a schedule changes alike do no harm."""
    model, ids = make()
    spared = [model.embed.weight]
    others = [p for p in model.parameters() if p is not model.embed.weight]
    optimizer = torch.optim.AdamW(
        [{"params": spared, "weight_decay": 0.0}, {"params": others}], lr=1e-3, weight_decay=0.1
    )
    monitor = train(model, optimizer, ids, 4, inputs=ids[:2, :-1], sinks=[RunFolder(tmp_path / "run")])
    rows = monitor.records.query("layer == 'group:residual'")
    assert (rows.step_angle > 0).all()
    assert rows.predicted_step_angle.isna().all()
    assert (rows.lr == 1e-3).all()
    assert rows.weight_decay.isna().all()
    reason = "different weight decays (0 for embed.weight, 0.1 for h.0.o.weight)"
    assert monitor.notes == {"group:residual": f"has no law, since its members have {reason}"}
    (remark,) = [each for each in summarise(tmp_path / "run").findings if each.name == "remark"]
    assert (remark.layer, reason in remark.advice) == ("group:residual", True)


def test_layer_wise_rates_are_read_and_each_group_gets_its_own(tmp_path):
    model, ids = make()
    named = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p], "lr": 1e-3 * 0.9**i} for i, p in enumerate(named.values())], weight_decay=0.1
    )
    sinks = [RunFolder(tmp_path / "run")]
    first = train(model, optimizer, ids, 1, inputs=ids[:2, :-1], sinks=sinks).records.set_index("layer")
    for i, (name, p) in enumerate(named.items()):
        if p.dim() == 2:
            assert first.lr[name] == pytest.approx(1e-3 * 0.9**i, rel=1e-12)
    assert np.isnan(first.lr["all"])
    # The recipe is that of the largest group, the embedding's.
    assert summarise(tmp_path / "run").recipe.lr == 1e-3


def test_tied_weights_get_the_vector_that_is_left_and_the_sentence():
    model, ids = make(tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    with pytest.warns(
        UserWarning, match=r"embed\.weight is tied to head\.weight and scales only in .*norm\.weight / c"
    ):
        monitor = train(model, optimizer, ids, 2, inputs=ids[:2, :-1])
    assert set(monitor.records.layer) == {n for n, p in model.named_parameters() if p.dim() == 2} | {"all"}
    assert monitor.records.filter(like="predicted").isna().all(axis=None)


def test_a_member_that_is_not_trained_leaves_the_group_unmeasured():
    model, ids = make()
    model.embed.requires_grad_(False)
    groups = symmetries(make()[0], ids[:2, :-1])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        monitor = train(model, optimizer, ids, 1, symmetries=groups, scale_map=check(make()[0], ids[:2, :-1]))
    assert "group:residual" not in set(monitor.records.layer)
    assert monitor.notes["group:residual"] == "is not measured, since embed.weight is not trained by this optimizer"


def test_a_run_with_groups_resumes_where_it_was():
    def build() -> tuple[Llama, torch.Tensor, torch.optim.Optimizer]:
        model, ids = make()
        return model, ids, torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    model, ids, optimizer = build()
    asked = {"scale_map": check(model, ids[:2, :-1]), "symmetries": symmetries(model, ids[:2, :-1])}
    whole = train(model, optimizer, ids, 12, **asked).records.query("step >= 6").reset_index(drop=True)
    model, ids, optimizer = build()
    first = train(model, optimizer, ids, 6, **asked)
    with Monitor(model, optimizer, **MADE, **asked) as second:
        second.load_state_dict(first.state_dict())
        for step in range(6, 12):
            batch = ids[torch.randint(0, len(ids), (8,), generator=torch.Generator().manual_seed(step))]
            optimizer.zero_grad()
            F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
            optimizer.step()
    np.testing.assert_allclose(
        second.records.select_dtypes("number").to_numpy(float),
        whole.select_dtypes("number").to_numpy(float),
        rtol=1e-12,
    )


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_angles_below_what_rounding_does_are_called_so(kind, tmp_path):
    model, ids = make()
    model.to(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.1)
    train(model, optimizer, ids, 12, inputs=ids[:2, :-1], sinks=[RunFolder(tmp_path / "run")])
    coarse = [finding for finding in summarise(tmp_path / "run").findings if finding.name == "below_resolution"]
    assert len(coarse) == (kind == torch.bfloat16)
    if coarse:
        # Rounding to nearest moves a number by a uniform part of half a spacing: measured on random numbers.
        x = torch.randn(100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        turned = float((x.to(kind).double() - x).norm() / x.norm())
        assert coarse[0].numbers["resolution"] == pytest.approx(turned, rel=0.15)
        assert "keep the weights in float32" in coarse[0].advice


def test_each_finding_is_passed_on_once_while_the_run_goes_on():
    model, ids = make(tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    calls = []
    with pytest.warns(UserWarning, match="without a law"):
        monitor = train(model, optimizer, ids, 12, inputs=ids[:2, :-1], on_finding=calls.append)
    recipe = Recipe.from_optimizer(optimizer, batch_size=8, samples=32)
    assert [finding.name for finding in calls] == ["no_law"]
    assert calls == findings(monitor.records, recipe, about=monitor.about)
    model, ids = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    when: list[tuple[str, int]] = []

    def remember(finding: Finding) -> None:
        when.append((finding.name, len(model.steps)))

    model.steps = []  # type: ignore[assignment]
    optimizer.register_step_post_hook(lambda *_: model.steps.append(1))
    train(model, optimizer, ids, 12, on_finding=remember)
    assert when == [("no_law", 4)], "at the end of the first epoch, and not again"


def test_a_listener_that_fails_ends_no_training():
    model, ids = make(tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    def fail(finding: Finding) -> None:
        raise OSError("no room for a message")

    with (
        pytest.warns(UserWarning, match="without a law"),
        pytest.warns(
            UserWarning, match=r"on_finding raised \(OSError: no room for a message\) and is not called again"
        ),
    ):
        monitor = train(model, optimizer, ids, 12, inputs=ids[:2, :-1], on_finding=fail)
    assert monitor.records.step.max() == 11


def test_flat_shards_are_refused_when_the_monitor_is_made():
    model, _ = make()
    optimizer = torch.optim.AdamW(model.parameters())
    model.head.weight.ds_id = 7  # what DeepSpeed's ZeRO-3 marks its parameters with
    with pytest.raises(ArgumentError, match=r"DeepSpeed.*fully_shard"):
        Monitor(model, optimizer, **MADE)


def test_a_compiled_model_and_a_wrapped_one_have_the_records_of_the_plain_one():
    """Names are those of the model inside; `eager` compiles without a C compiler, through the same wrapper."""
    records = []
    for wrap in (lambda model: model, lambda model: torch.compile(model, backend="eager"), nn.DataParallel):
        model, ids = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
        records.append(train(wrap(model), optimizer, ids, 4, inputs=ids[:2, :-1]).records)
    plain, *wrapped = records
    assert "group:residual" in set(plain.layer)
    for other in wrapped:
        assert other.layer.tolist() == plain.layer.tolist()
        np.testing.assert_allclose(other.step_angle, plain.step_angle, rtol=1e-4)
        np.testing.assert_array_equal(other.predicted_step_angle, plain.predicted_step_angle)


def test_inputs_may_have_stayed_on_another_device():
    """As under a Trainer, which moves the model and not the example; the meta device stands for a GPU."""
    model, ids = make()
    scale_map, answer, reason = check_model(model.to("meta"), ids[:2, :-1])
    assert reason is None
    assert answer.groups
    assert scale_map is not None


def test_a_warm_up_hides_no_difference_between_rates():
    """Schedulers set every rate to 0 before the monitor is made; the rates that they rise to differ."""
    model, ids = make()
    groups = [{"params": [p], "lr": 1e-3 * (1 + place)} for place, p in enumerate(model.parameters())]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    assert {group["lr"] for group in optimizer.param_groups} == {0.0}
    with Monitor(model, optimizer, **MADE, inputs=ids[:2, :-1]) as monitor:
        notes = [note for layer, note in monitor.notes.items() if layer.startswith("group:")]
    assert any("different learning rates" in note for note in notes)


def test_the_first_line_gives_the_reason_that_is_known():
    """Weight decay on matrices alone, as the Trainer has it: the group's law fails for that, not for any leak."""
    model, ids = make()
    decayed = [p for p in model.parameters() if p.dim() >= 2 and p is not model.embed.weight]
    rest = [p for p in model.parameters() if not any(p is other for other in decayed)]
    groups = [{"params": decayed}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
    monitor = train(model, optimizer, ids, 8, inputs=ids[:2, :-1])
    silent = [f for f in findings(monitor.records, None, about=monitor.about) if f.name == "no_law"]
    remarks = [f.advice for f in findings(monitor.records, None, about=monitor.about) if f.name == "remark"]
    assert any("different weight decays" in text for text in remarks)
    assert all("share of" not in f.advice for f in silent)


def test_rows_and_findings_come_before_the_end_of_a_long_epoch(monkeypatch, tmp_path):
    """In one-epoch training an epoch is all of the run: a page that follows it, and a kill, must find something."""
    monkeypatch.setattr("isogon.dynamics._monitor._FLUSH_SECONDS", 0.0)
    model, ids = make(tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    calls, folder = [], RunFolder(tmp_path / "run")
    with pytest.warns(UserWarning, match="without a law"):
        monitor = Monitor(
            model, optimizer, batch_size=8, samples=10**6, every_steps=1, inputs=ids[:2, :-1], sinks=[folder],
            on_finding=calls.append,
        )  # fmt: skip
    for _ in range(4):
        optimizer.zero_grad()
        model(ids[:, :-1]).square().mean().backward()
        optimizer.step()
    assert read(tmp_path / "run").step.max() >= 2
    assert [finding.name for finding in calls] == ["no_law"]
    monitor.close()
    assert read(tmp_path / "run").equals(monitor.records)


def test_an_optimizer_that_accelerate_wraps_round_deepspeeds_is_refused():
    model, _ = make()
    inner = torch.optim.AdamW(model.parameters())
    kind = type("DeepSpeedOptimizerWrapper", (torch.optim.AdamW,), {"__module__": "accelerate.utils.deepspeed"})
    wrapper = kind(model.parameters())
    wrapper.optimizer = inner
    with pytest.raises(ArgumentError, match="DeepSpeed"):
        Monitor(model, wrapper, **MADE)
