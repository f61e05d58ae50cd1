"""What a transfer answers beside the kept tuning factor: regimes, sentences, relative values, conventions, the SDE."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isogon import Recipe
from isogon.errors import ArgumentError, UnsolvableError
from isogon.recipe import CONVENTIONS

IMAGES = {"lr": 0.1, "weight_decay": 5e-4, "batch_size": 128, "samples": 50_000, "epochs": 200}
TEXT = {
    "optimizer": "AdamW", "lr": 3e-3, "weight_decay": 0.1, "beta2": 0.95,
    "batch_size": 256, "samples": 1_000_000, "epochs": 1,
}  # fmt: skip
TUNED = {"optimizer": "adamw", "lr": 2e-5, "weight_decay": 0.01, "batch_size": 32, "samples": 10_000, "epochs": 3}


def has(moved, part):
    return any(part in warning for warning in moved.warnings)


def test_weight_decay_is_solved_by_default_and_the_sentence_says_so():
    moved = Recipe(**IMAGES).transfer(batch_size="x4")
    assert moved.recipe.weight_decay == pytest.approx(2e-3)
    assert moved.summary == "Set weight decay to 0.002 (×4) and keep the learning rate at 0.1."
    assert str(moved).splitlines()[0] == moved.summary
    assert "several epochs" in str(moved)
    # both changes cancel
    assert Recipe(**IMAGES).transfer(batch_size="x4", samples="x4").summary.startswith("Keep weight decay at 0.0005")


@pytest.mark.parametrize(
    ("change", "batch", "samples"),
    [
        ({"batch": "x4"}, 512, 50_000),
        ({"batch-size": "×0.5"}, 64, 50_000),
        ({"batch_size": 512}, 512, 50_000),
        ({"batch_size": "512"}, 512, 50_000),
        ({"data": "X10"}, 128, 500_000),
    ],
)
def test_values_and_names_are_taken_as_people_write_them(change, batch, samples):
    moved = Recipe(**IMAGES).transfer(**change).recipe
    assert (moved.batch_size, moved.samples) == (batch, samples)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"batch_size": "x"}, "batch_size must be a number, or a factor such as x4"),
        ({"batch_size": "x-4"}, "batch_size must be a factor above 0"),
        ({"batch_size": "x0.0001"}, "batch_size must be a whole number from 1"),
        ({"momentum": "xnan"}, "momentum must be a factor above 0"),
        ({"params": 4}, "params must be a factor such as x4"),
        ({"batch": 2, "batch_size": 4}, "changes must be one value for batch_size"),
        ({"depth": 2}, "changes must be one of"),
        ({"beta2": "half-life"}, "beta2 must be left out for sgd"),
        ({"epochs": "x2"}, "epochs must be a number where the recipe has none"),
        ({"rule": "linear"}, "rule must be one of factor, sde"),
        ({"regime": "two epochs"}, "regime must be one of several epochs"),
        ({"convention": "cautious"}, "convention must be coupled for sgd"),
        ({"regime": "short run"}, "regime must be another one where epochs is not given"),
    ],
)
def test_bad_changes_are_refused_in_one_sentence(change, match):
    with pytest.raises(ArgumentError, match=match):
        Recipe(**{**IMAGES, "epochs": None}).transfer(**change)


@given(growth=st.floats(0.05, 50), params=st.floats(0.05, 50))
def test_in_one_epoch_the_factor_grows_as_the_root_of_samples_per_parameter(growth, params):
    recipe = Recipe(**TEXT)
    moved = recipe.transfer(samples=round(1e6 * growth), params=f"x{params}")
    ratio = moved.recipe.samples / recipe.samples / params
    assert moved.regime == "one epoch"
    assert moved.recipe.tuning_factor / recipe.tuning_factor == pytest.approx(math.sqrt(ratio))
    low, high = moved.interval
    for exponent in (0, 1):  # whatever m is between them
        assert low <= 0.1 / moved.recipe.samples * recipe.samples * ratio**exponent * (1 + 1e-9)
        assert high >= 0.1 / moved.recipe.samples * recipe.samples * ratio**exponent * (1 - 1e-9)


def test_ten_times_the_tokens_in_one_epoch():
    moved = Recipe(**TEXT).transfer(samples="x10")
    assert moved.recipe.weight_decay == pytest.approx(0.1 / math.sqrt(10))
    assert moved.interval == pytest.approx((0.01, 0.1))
    assert moved.recipe.lr == 3e-3


def test_the_regime_is_the_runs_unless_it_is_given():
    assert Recipe(**IMAGES).transfer(samples="x2").regime == "several epochs"
    assert Recipe(**TEXT).transfer(samples="x2").regime == "one epoch"
    assert Recipe(**{**TEXT, "epochs": None}).transfer(samples="x2").regime == "several epochs"
    assert has(Recipe(**{**TEXT, "epochs": None}).transfer(samples="x2"), "give epochs=1")
    assert Recipe(**TEXT).transfer(samples="x2", epochs=4).regime == "several epochs"
    assert Recipe(**TUNED).transfer(batch="x4").regime == "short run"
    forced = Recipe(**TEXT).transfer(samples="x2", regime="several epochs")
    assert forced.recipe.tuning_factor == pytest.approx(Recipe(**TEXT).tuning_factor)


def test_a_short_run_is_told_that_weight_decay_does_next_to_nothing():
    recipe = Recipe(**TUNED)
    moved = recipe.transfer(batch="x4")
    lost = 1 - math.exp(-3 * 10_000 / 128 * 2e-5 * 0.01)
    assert moved.summary.startswith("Keep weight decay at 0.01 ")
    assert f"takes {lost:.2g} of the" in moved.summary
    assert moved.recipe.weight_decay == 0.01
    assert has(moved, "937.5 steps become 234.4")
    assert has(moved, "×2 if steps are mostly noise and by ×4 if they agree")
    low, high = moved.interval
    # at the interval's end weight decay begins to act
    assert low == 0
    end = Recipe(**{**TUNED, "batch_size": 128, "weight_decay": high})
    assert 3 * end.tuning_factor == pytest.approx(0.1)


def test_a_learning_rate_that_carries_the_change_is_warned_of():
    assert has(Recipe(**TEXT).transfer(samples="x4", solve="lr"), "within ×2 of the best in 93 %")
    assert has(Recipe(**IMAGES).transfer(samples="x4", solve="lr"), "misses it by learning rate")
    assert not has(Recipe(**IMAGES).transfer(samples="x4"), "learning rate")
    # and has a wider interval than weight decay
    widths = [math.dist(*[[math.log(end)] for end in Recipe(**TEXT).transfer(batch="x4", solve=solve).interval])
              for solve in ("lr", "weight_decay")]  # fmt: skip
    assert widths[0] > widths[1]


def test_larger_batches_of_adamw_are_compared_with_the_critical_one():
    recipe = Recipe(**{**TEXT, "samples": 5_000_000})
    assert has(recipe.transfer(batch="x4"), "Give tokens_per_sample")
    # 1e10 tokens: about 5e5 tokens a batch
    assert has(recipe.transfer(batch="x4", tokens_per_sample=2000), "above it")
    assert has(recipe.transfer(batch=200, tokens_per_sample=2000), "") is True
    assert not has(recipe.transfer(batch="x0.5", tokens_per_sample=2000), "critical")
    assert has(
        Recipe(**{**TEXT, "batch_size": 32, "samples": 5_000_000}).transfer(batch="x2", tokens_per_sample=2000), "below"
    )
    assert not has(Recipe(**IMAGES).transfer(batch="x4"), "critical")


def test_beta2_keeps_its_half_life_in_samples_where_asked():
    recipe = Recipe(**TEXT)
    moved = recipe.transfer(batch="x4", beta2="half-life").recipe
    steps = [math.log(0.5) / math.log(r.beta2) * r.batch_size for r in (recipe, moved)]
    assert steps[0] == pytest.approx(steps[1])
    assert has(recipe.transfer(batch="x4"), "0.8145 would keep its half-life")
    assert not has(recipe.transfer(batch="x4", beta2="half-life"), "half-life")
    assert not has(recipe.transfer(samples="x4"), "half-life")


def test_the_width_is_disputed_and_both_rules_are_named():
    moved = Recipe(**TEXT).transfer(width="x4")
    assert moved.recipe == Recipe(**TEXT)
    assert has(moved, "λ ∝ width (0.4 here")
    assert has(moved, "λ ∝ √width (0.2,")
    assert has(Recipe(**TEXT).transfer(params="x4"), "learning rate is kept though the model's size changes")


def test_the_stochastic_equation_of_adamw():
    recipe = Recipe(**TEXT)
    moved = recipe.transfer(batch="x4", rule="sde")
    assert moved.recipe.lr == pytest.approx(6e-3)
    assert moved.recipe.weight_decay == pytest.approx(0.2)
    assert (moved.recipe.momentum, moved.recipe.beta2) == pytest.approx((0.6, 0.8))
    # what the equation fixes per sample: decay, and the memory of the averages
    for quantity in (
        lambda r: r.intrinsic_lr / r.batch_size,
        lambda r: (1 - r.momentum) / r.batch_size,
        lambda r: r.lr**2 / r.batch_size,
    ):
        assert quantity(moved.recipe) == pytest.approx(quantity(recipe))
    assert moved.recipe.tuning_factor == pytest.approx(recipe.tuning_factor)
    assert has(moved, "eps is to be divided by 2")
    assert moved.interval is None
    independent = recipe.in_convention("independent").transfer(batch="x4", rule="sde").recipe
    assert independent.intrinsic_lr == pytest.approx(moved.recipe.intrinsic_lr)


def test_the_stochastic_equation_of_sgd_is_the_linear_rule():
    moved = Recipe(**IMAGES).transfer(batch="x4", rule="sde").recipe
    assert (moved.lr, moved.weight_decay, moved.momentum) == pytest.approx((0.4, 5e-4, 0.9))


@pytest.mark.parametrize(
    ("recipe", "change", "match"),
    [
        (TEXT, {"batch": "x100"}, "momentum cannot be solved for"),
        (TEXT, {"batch": "x4", "samples": "x2"}, "rule must be factor where more than the batch size changes"),
        (TEXT, {"batch": "x4", "solve": "lr"}, "rule must be factor where more than the batch size changes"),
        ({**TEXT, "optimizer": "lion"}, {"batch": "x4"}, "rule must be factor for lion"),
    ],
)
def test_where_no_stochastic_equation_is_known_it_is_refused(recipe, change, match):
    with pytest.raises((ArgumentError, UnsolvableError), match=match):
        Recipe(**recipe).transfer(rule="sde", **change)


@given(convention=st.sampled_from(CONVENTIONS[1:]), other=st.sampled_from(CONVENTIONS[1:]))
def test_conventions_translate_there_and_back(convention, other):
    recipe = Recipe(**TEXT).in_convention(convention)
    moved = recipe.in_convention(other)
    for quantity in ("tuning_factor", "intrinsic_lr"):
        assert getattr(moved, quantity) == pytest.approx(getattr(recipe, quantity))
    assert float(moved.motion.angle(1)) == pytest.approx(float(Recipe(**TEXT).motion.angle(1)))
    assert moved.in_convention(convention).weight_decay == pytest.approx(recipe.weight_decay)
    assert moved.in_convention(None).convention is None
    # a transfer carries the convention, and can change it
    carried = recipe.transfer(batch="x2").recipe
    assert carried.convention == recipe.convention
    changed = recipe.transfer(batch="x2", convention=other)
    assert changed.recipe.weight_decay == pytest.approx(moved.transfer(batch="x2").recipe.weight_decay)


def test_each_convention_says_what_it_does_to_a_weight():
    """x, the share that one step takes: the definition, by stepping a weight without gradient."""
    lr, decay, weight = 0.01, 0.2, 1.0
    steps = {"decoupled": weight - lr * decay * weight, "independent": weight - decay * weight}
    for convention, after in steps.items():
        recipe = Recipe(optimizer="adamw", lr=lr, weight_decay=decay, batch_size=1, samples=10, convention=convention)
        assert recipe.intrinsic_lr == pytest.approx(weight - after)
    cautious = Recipe(optimizer="adamw", lr=lr, weight_decay=decay, batch_size=1, samples=10, convention="cautious")
    assert cautious.intrinsic_lr == pytest.approx(lr * decay / 2)
    assert any("half its value" in warning for warning in cautious.warnings)


def test_independent_decay_does_not_depend_on_lr():
    recipe = Recipe(**TEXT).in_convention("independent")
    assert recipe.transfer(lr="x10").recipe.weight_decay == pytest.approx(recipe.weight_decay)
    with pytest.raises(UnsolvableError, match="independent weight decay is not multiplied by it"):
        recipe.transfer(batch="x4", solve="lr")
    with pytest.raises(ArgumentError, match="no universal angle"):
        Recipe(**TEXT, convention="coupled")


def test_a_run_is_short_only_where_both_are():
    """100 times the steps of a run in which weight decay hardly acted: now it does, and is carried by the rule."""
    short = Recipe(optimizer="adamw", lr=3e-4, weight_decay=0.01, batch_size=256, samples=1_000_000, epochs=1)
    assert short.transfer(samples="x2").regime == "short run"
    for change in ({"samples": "x100"}, {"batch": 2}):
        moved = short.transfer(**change)
        assert moved.regime == "one epoch"
        assert "half or double" not in moved.summary
    back = short.transfer(samples="x100").recipe.transfer(samples=1_000_000)
    assert back.recipe.weight_decay == pytest.approx(0.01)
    # Asked for all the same, it does not claim that weight decay does nothing.
    forced = Recipe(**TEXT).transfer(samples="x2", regime="short run")
    assert forced.interval is None
    assert "half or double" not in forced.summary
    assert has(forced, "which is not short")


def test_a_learning_rate_of_a_short_run_is_refused_with_what_to_try():
    with pytest.raises(ArgumentError, match=r"try 4e-05 \(×2\), .* mostly noise, and 8e-05 \(×4\)"):
        Recipe(**TUNED).transfer(batch="x4", solve="lr")
    with pytest.raises(ArgumentError, match="the number of steps stays"):
        Recipe(**TUNED).transfer(batch="x4", samples="x4", solve="lr")


def test_in_one_epoch_all_samples_of_the_run_count():
    half = Recipe(**{**TEXT, "epochs": 0.5})
    moved, double = half.transfer(epochs=1), Recipe(**TEXT).transfer(samples="x2")
    assert moved.recipe.weight_decay == pytest.approx(0.1 / math.sqrt(2))
    assert moved.recipe.weight_decay == pytest.approx(double.recipe.weight_decay)
    assert moved.interval == pytest.approx(double.interval)
    assert not has(moved, "epoch budget")


@pytest.mark.parametrize("convention", [None, "independent", "cautious"])
def test_both_rules_of_width_are_about_the_learning_rate_that_goes_with_them(convention):
    """x = ηλ stays, or falls as 1/√width: the same two values whether the learning rate was divided by us or not."""
    recipe = Recipe(**TEXT).in_convention(convention)
    alone, with_lr = recipe.transfer(width="x4"), recipe.transfer(width="x4", lr="x0.25")
    assert alone.summary == with_lr.summary
    x = recipe.intrinsic_lr
    for intrinsic in (x, x / 2):
        decay = Recipe(**{**TEXT, "lr": 3e-3 / 4, "weight_decay": intrinsic / (3e-3 / 4)}).in_convention(convention)
        assert f"{decay.weight_decay:.4g}" in alone.summary
    # The interval is about the recipe's own learning rate, and holds both.
    low, high = alone.interval
    for intrinsic in (x, x / 2):
        own = Recipe(**{**TEXT, "weight_decay": intrinsic / 3e-3}).in_convention(convention).weight_decay
        assert low <= own * (1 + 1e-9)
        assert own <= high * (1 + 1e-9)


def test_uncertainties_of_data_and_batch_add_up():
    recipe = Recipe(**TEXT)
    data, both = recipe.transfer(samples="x10"), recipe.transfer(samples="x10", batch="x4")
    widths = [math.log(moved.interval[1] / moved.interval[0]) for moved in (data, both)]
    assert widths[1] > widths[0] * 1.1


def test_evidence_names_whom_it_is_about():
    assert "AdamW alone" in Recipe(**{**TEXT, "optimizer": "lion", "beta2": None}).transfer(batch="x4").interval_text
    assert "AdamW alone" in Recipe(**{**IMAGES, "epochs": 1}).transfer(batch="x4").interval_text
    assert "judgement" in Recipe(**TEXT).transfer(samples="x4").interval_text
    assert has(Recipe(**{**IMAGES, "samples": 5_000_000}).transfer(batch="x1000"), "end at ×16")
    assert has(Recipe(**TEXT).transfer(batch="x4", tokens_per_sample=2048), "4e+09 to 1e+11 tokens, which yours is not")
    assert has(Recipe(**TEXT).transfer(batch="x4"), "2.2·D^0.54 tokens")


def test_the_stochastic_equation_names_itself_and_takes_no_interval():
    assert "rule sde" in str(Recipe(**TEXT).transfer(batch="x4", rule="SDE"))
    assert "F grows" not in str(Recipe(**TEXT).transfer(batch="x4", rule="sde"))
    with pytest.raises(ArgumentError, match="rule must be factor where within"):
        Recipe(**TEXT).transfer(batch="x4", rule="sde", within=2)


@pytest.mark.parametrize("text", ["x4", "X4", "×4", "*4", "4x", "4×", "4 x"])
def test_factors_are_taken_as_people_write_them(text):
    assert Recipe(**IMAGES).transfer(batch=text).recipe.batch_size == 512
    for over in ("/4", "÷4", "x0.25"):
        assert Recipe(**IMAGES).transfer(batch=over).recipe.batch_size == 32


def test_words_are_taken_in_any_case():
    recipe = Recipe(**{**TEXT, "convention": "Cautious"})
    assert recipe.convention == "cautious"
    assert recipe.transfer(batch="x2", regime="Several-Epochs").regime == "several epochs"
