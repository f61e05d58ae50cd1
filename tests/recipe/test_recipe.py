"""Recipes, their tuning factor, and the transfer rule."""

from __future__ import annotations

import dataclasses
import math
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from isogon import IsogonError, Recipe
from isogon.errors import ArgumentError, UnsolvableError
from isogon.recipe import REGIMES, SOLVABLE

BASE = {"lr": 0.1, "weight_decay": 5e-4, "batch_size": 128, "samples": 50_000}

recipes = st.builds(
    Recipe,
    optimizer=st.sampled_from(["sgd", "nesterov", "adamw", "lion", "muon"]),
    lr=st.floats(1e-4, 1),
    weight_decay=st.floats(1e-5, 1e-2),
    momentum=st.floats(0, 0.95),
    batch_size=st.integers(1, 4096),
    samples=st.integers(1000, 10**7),
    epochs=st.none() | st.integers(1, 500),
)
changes = st.fixed_dictionaries(
    {},
    optional={
        "batch_size": st.integers(1, 4096),
        "samples": st.integers(1000, 10**7),
        "lr": st.floats(1e-3, 1),
        "weight_decay": st.floats(1e-5, 1e-2),
        "momentum": st.floats(0, 0.95),
        "epochs": st.integers(1, 500),
    },
)


@given(recipe=recipes, changed=changes, solve=st.sampled_from(SOLVABLE))
def test_a_transfer_keeps_the_tuning_factor(recipe, changed, solve):
    changed.pop(solve, None)
    try:
        moved = recipe.transfer(solve=solve, regime="several epochs", **changed)
    except IsogonError:
        # only what has no answer may be refused
        assume(solve in ("momentum", "batch_size"))
        return
    rounded = any("rounded" in warning for warning in moved.warnings)
    if not rounded:
        # A momentum near 1 has few digits left in 1 − μ.
        momenta = [1 - case.momentum for case in (recipe, moved.recipe) if case.momentum is not None]
        rel = 1e-12 + 4 * sys.float_info.epsilon / min(momenta, default=1.0)
        assert moved.recipe.tuning_factor == pytest.approx(recipe.tuning_factor, rel=rel)
    for name, value in changed.items():
        assert getattr(moved.recipe, name) == value
    untouched = {"lr", "weight_decay", "momentum", "batch_size", "samples", "epochs"} - {solve, *changed}
    assert all(getattr(moved.recipe, name) == getattr(recipe, name) for name in untouched)


@given(
    recipe=recipes, changed=changes, solve=st.sampled_from(["weight_decay", "lr"]), regime=st.sampled_from(REGIMES[:2])
)
def test_there_and_back_again(recipe, changed, solve, regime):
    changed.pop(solve, None)
    try:
        there = recipe.transfer(solve=solve, regime=regime, **changed).recipe
    except ArgumentError:
        assume(False)  # so large a decay that no equilibrium is left
    before = {name: value for name in changed if (value := getattr(recipe, name)) is not None}
    back = there.transfer(solve=solve, regime=regime, **before).recipe
    assert getattr(back, solve) == pytest.approx(getattr(recipe, solve), rel=1e-12)


@given(recipe=recipes, within=st.floats(1, 10))
def test_the_interval_is_the_factor_asked_for(recipe, within):
    moved = recipe.transfer(solve="weight_decay", samples=recipe.samples * 2, within=within)
    low, high = moved.interval
    assert low == pytest.approx(moved.recipe.weight_decay / within)
    assert high == pytest.approx(moved.recipe.weight_decay * within)


def test_there_is_no_interval_for_batch_or_momentum():
    recipe = Recipe(**BASE)
    assert recipe.transfer(solve="batch_size", samples=100_000).interval is None
    assert recipe.transfer(solve="momentum", lr=0.05).interval is None


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adamw", "lion", "muon"])
def test_equal_tuning_factor_is_equal_epoch_angle(optimizer):
    """The point of it all: the transferred run turns alike every epoch, though not every step."""
    recipe = Recipe(optimizer=optimizer, **{**BASE, "lr": 1e-4, "weight_decay": 0.05, "samples": 500_000})
    moved = recipe.transfer(solve="weight_decay", samples=4_000_000, batch_size=256).recipe
    angles = [float(r.motion.angle(r.steps_per_epoch)) for r in (recipe, moved)]
    assert angles[0] == pytest.approx(angles[1], rel=0.03)
    assert float(moved.motion.angle(1)) < 0.6 * float(recipe.motion.angle(1))


def test_the_worked_example():
    small = Recipe(lr=0.1, weight_decay=0.0016, momentum=0.9, batch_size=512, samples=80_000, epochs=200)
    moved = small.transfer(samples=1_280_000, solve="weight_decay")
    assert moved.recipe.weight_decay == pytest.approx(1.0e-4, rel=1e-12)
    assert moved.recipe.tuning_factor == pytest.approx(0.25)
    # The best tuning factor grows as samples^0.3 in the printed tables, so the interval lies above the rule.
    assert moved.interval == pytest.approx((1e-4 / math.sqrt(2), 4e-4))
    assert moved.warnings == ()


def test_a_batch_size_is_rounded_with_a_warning():
    recipe = Recipe(**BASE)
    moved = recipe.transfer(solve="batch_size", samples=50_100)
    assert moved.recipe.batch_size == 128
    assert any("128.256" in warning and "rounded" in warning for warning in moved.warnings)
    exact = recipe.transfer(solve="batch_size", samples=100_000)
    assert exact.recipe.batch_size == 256
    assert exact.warnings == ()
    assert recipe.transfer(solve="batch_size", lr=1e-6).recipe.batch_size == 1


@pytest.mark.parametrize(
    ("recipe", "transfer", "match"),
    [
        ({"weight_decay": 0}, {"solve": "weight_decay", "samples": 1}, "no tuning factor to keep"),
        ({}, {"solve": "lr", "weight_decay": 0}, "weight_decay is 0 in the new recipe"),
        ({}, {"solve": "momentum", "samples": 5_000_000}, "outside 0 ≤ momentum < 1"),
        ({"optimizer": "adamw"}, {"solve": "momentum", "lr": 0.2}, "has no momentum in it"),
        ({}, {"solve": "lr", "lr": 0.2}, "changes must be without lr"),
        ({}, {"solve": "samples"}, "solve must be one of"),
        ({}, {"solve": "lr", "dropout": 0.2}, "changes must be one of"),
        ({}, {"solve": "lr", "within": 0.5}, "within must be"),
        ({}, {"solve": "batch_size", "lr": 1e300}, "cannot be solved for"),
        ({}, {"solve": "weight_decay", "lr": 1e-320}, "cannot be solved for"),
        ({"momentum": 0}, {"solve": "weight_decay", "samples": 1}, "weights grow without bound"),
    ],
)
def test_what_cannot_be_solved_is_refused_in_one_sentence(recipe, transfer, match):
    with pytest.raises((ArgumentError, UnsolvableError), match=match) as caught:
        Recipe(**{**BASE, **recipe}).transfer(**transfer)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lr", 0),
        ("lr", math.nan),
        ("lr", "0.1"),
        ("weight_decay", -1e-4),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("batch_size", 0),
        ("batch_size", 1.5),
        ("batch_size", True),
        ("samples", 10**400),
        ("epochs", 0),
        ("epochs", math.inf),
        ("optimizer", "adagrad"),
        ("beta2", 0.9),
    ],
)
def test_bad_fields_are_named(field, value):
    with pytest.raises(ArgumentError, match=f"^{field} must be .*, got ") as caught:
        Recipe(**{**BASE, field: value})
    assert len(str(caught.value)) < 300


def find_warnings(part, **fields):
    return [warning for warning in Recipe(**{**BASE, **fields}).warnings if part in warning]


@pytest.mark.parametrize(
    ("part", "quiet", "loud", "number"),
    [
        ("equilibrium takes", {"epochs": 200}, {"epochs": 5}, "the run has 5"),
        ("Plain SGD", {"momentum": 0, "batch_size": 1024}, {"momentum": 0, "batch_size": 2048}, "2048"),
        ("momentum 0.9 remembers", {"batch_size": 4096}, {"batch_size": 8192}, "6.1 steps"),
        ("momentum 0.99 remembers", {"optimizer": "lion"}, {"optimizer": "lion", "samples": 12_000}, "93.8 steps"),
        ("is near the bound", {"weight_decay": 0.013}, {"weight_decay": 0.0135}, "0.00263"),
        ("underdamped", {"weight_decay": 0.026}, {"weight_decay": 0.0265}, "0.0263"),
        ("larger than the data", {"samples": 128}, {"samples": 127}, "127 samples"),
        ("is approximate", {}, {"optimizer": "muon"}, "2 %"),
    ],
)
def test_warnings_come_when_they_should_with_their_number(part, quiet, loud, number):
    assert not find_warnings(part, **quiet)
    (sentence,) = find_warnings(part, **loud)
    assert number in sentence


def test_a_changed_epoch_budget_is_warned_of():
    recipe = Recipe(**BASE, epochs=100)
    assert any("from 100 to 300" in w for w in recipe.transfer(epochs=300).warnings)
    assert recipe.transfer(samples=100_000).warnings == ()


def test_recipes_are_values():
    recipe = Recipe(**BASE)
    assert recipe == Recipe(**BASE)
    assert hash(recipe) == hash(Recipe(**BASE))
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.lr = 1
    with pytest.raises(TypeError):
        Recipe("sgd", 0.1, 1e-4)


@given(recipe=recipes)
def test_files_keep_every_digit(recipe, tmp_path_factory):
    path = tmp_path_factory.mktemp("recipes") / "recipe.toml"
    recipe.save(path)
    assert Recipe.load(path) == recipe
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("lr = ", "a TOML file"),
        ("", "add lr, weight_decay, batch_size, samples"),
        ("lr = 0.1\nlearning = 2", "key in .* must be one of"),
        ("lr = -1\nweight_decay = 0\nbatch_size = 1\nsamples = 1", "lr must be"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, match):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=match):
        Recipe.load(path)
    with pytest.raises(ArgumentError, match="a file we can read"):
        Recipe.load(tmp_path / "nowhere.toml")


class TestFromOptimizer:
    """On PyTorch's own optimizers."""

    @pytest.fixture
    def parameters(self):
        torch = pytest.importorskip("torch")
        return [torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))]

    def test_sgd_and_nesterov(self, parameters):
        import torch

        for nesterov, name in ((False, "sgd"), (True, "nesterov")):
            optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=nesterov)
            assert Recipe.from_optimizer(optimizer, batch_size=128, samples=50_000) == Recipe(optimizer=name, **BASE)

    def test_adamw_and_muon(self, parameters):
        import torch

        optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.8, 0.95), weight_decay=0.1)
        recipe = Recipe.from_optimizer(optimizer, batch_size=8, samples=80, epochs=2)
        assert (recipe.optimizer, recipe.momentum, recipe.beta2, recipe.epochs) == ("adamw", 0.8, 0.95, 2)
        muon = torch.optim.Muon(parameters[:1], lr=1e-3, momentum=0.95, weight_decay=0.1)
        assert Recipe.from_optimizer(muon, batch_size=8, samples=80).optimizer == "muon"

    def test_a_lion_is_known_by_its_name(self, parameters):
        import torch

        class Lion(torch.optim.Optimizer):
            def __init__(self, params):
                super().__init__(params, {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 1.0})

        assert Recipe.from_optimizer(Lion(parameters), batch_size=8, samples=80).optimizer == "lion"

    @pytest.mark.parametrize(
        ("name", "rule"),
        [("PagedAdamW8bit", "adamw"), ("AdamW32bit", "adamw"), ("Lion8bit", "lion"), ("FusedAdamW", "adamw")],
    )
    def test_other_peoples_classes_are_known_by_their_names(self, parameters, name, rule):
        import torch

        defaults = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 1.0}
        optimizer = type(name, (torch.optim.Optimizer,), {})(parameters, defaults)
        assert Recipe.from_optimizer(optimizer, batch_size=8, samples=80).optimizer == rule

    def test_muon_with_an_adamw_inside_is_about_muons_matrices(self, parameters):
        import torch

        groups = [
            {"params": parameters[1:], "lr": 1e-3, "betas": (0.9, 0.95), "use_muon": False},
            {"params": parameters[:1], "lr": 0.02, "momentum": 0.95, "use_muon": True},
        ]
        optimizer = type("SingleDeviceMuonWithAuxAdam", (torch.optim.Optimizer,), {})(groups, {"weight_decay": 0.1})
        recipe = Recipe.from_optimizer(optimizer, batch_size=8, samples=80)
        assert (recipe.optimizer, recipe.lr, recipe.momentum) == ("muon", 0.02, 0.95)

    def test_lion_pytorchs_decoupled_decay_is_independent(self, parameters):
        import torch

        optimizer = type("Lion", (torch.optim.Optimizer,), {"decoupled_wd": True})(
            parameters, {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 1e-4}
        )
        recipe = Recipe.from_optimizer(optimizer, batch_size=8, samples=80)
        assert (recipe.convention, recipe.intrinsic_lr) == ("independent", 1e-4)

    def test_groups_whose_decay_means_different_things_are_refused(self, parameters):
        import torch

        groups = [{"params": parameters[:1], "cautious_wd": True}, {"params": parameters[1:]}]
        optimizer = torch.optim.AdamW(groups, lr=1e-3)
        with pytest.raises(ArgumentError, match="alike in cautious_wd"):
            Recipe.from_optimizer(optimizer, batch_size=8, samples=80)
        for group in ("a", 2, -1):
            with pytest.raises(ArgumentError, match="group must be a whole number from 0 to 1"):
                Recipe.from_optimizer(optimizer, batch_size=8, samples=80, group=group)

    def test_what_is_no_optimizer_is_refused_before_its_groups_are_looked_at(self, parameters):
        from torch.optim import Adam

        with pytest.raises(ArgumentError, match="one of adamw, lion, muon, sgd"):
            Recipe.from_optimizer("sgd", batch_size=1, samples=1)
        groups = [{"params": parameters[:1], "lr": 0.1}, {"params": parameters[1:], "lr": 0.2}]
        with pytest.raises(ArgumentError, match="no universal angle"):
            Recipe.from_optimizer(Adam(groups, weight_decay=0.1), batch_size=1, samples=1)

    def test_adam_and_strangers_are_refused(self, parameters):
        import torch

        with pytest.raises(ArgumentError, match="no universal angle"):
            Recipe.from_optimizer(torch.optim.Adam(parameters), batch_size=8, samples=80)
        with pytest.raises(ArgumentError, match="'Rprop'"):
            Recipe.from_optimizer(torch.optim.Rprop(parameters), batch_size=8, samples=80)

    def test_dampening_is_refused(self, parameters):
        import torch

        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=1e-4)
        with pytest.raises(ArgumentError, match="dampening must be 0"):
            Recipe.from_optimizer(optimizer, batch_size=8, samples=80)

    def test_groups(self, parameters):
        import torch

        weights, biases = [parameters[0]], [parameters[1]]
        optimizer = torch.optim.SGD([{"params": weights, "weight_decay": 1e-3}, {"params": biases}], lr=0.1)
        assert Recipe.from_optimizer(optimizer, batch_size=8, samples=80).weight_decay == 1e-3
        optimizer.param_groups[1]["weight_decay"] = 1e-2
        with pytest.raises(ArgumentError, match="alike in weight_decay"):
            Recipe.from_optimizer(optimizer, batch_size=8, samples=80)
        assert Recipe.from_optimizer(optimizer, batch_size=8, samples=80, group=1).weight_decay == 1e-2
        with pytest.raises(ArgumentError, match="group must be a whole number from 0 to 1"):
            Recipe.from_optimizer(optimizer, batch_size=8, samples=80, group=2)

    def test_a_schedulers_base_rate_counts(self, parameters):
        import torch

        optimizer = torch.optim.SGD(parameters, lr=0.4, weight_decay=1e-3)
        torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01)
        assert optimizer.param_groups[0]["lr"] < 0.1
        assert Recipe.from_optimizer(optimizer, batch_size=8, samples=80).lr == 0.4


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_the_recipe_under_one_cycle_is_that_of_its_peak(kind):
    torch = pytest.importorskip("torch")
    weights = [torch.nn.Parameter(torch.ones(2))]
    if kind == "sgd":
        optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=1e-3)
    else:
        optimizer = torch.optim.AdamW(weights, lr=0.1, weight_decay=1e-3)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.4, total_steps=100)
    recipe = Recipe.from_optimizer(optimizer, batch_size=128, samples=50_000)
    assert (recipe.lr, recipe.momentum, recipe.weight_decay) == (0.4, 0.85, 1e-3)
    assert recipe.beta2 == (None if kind == "sgd" else 0.999)
