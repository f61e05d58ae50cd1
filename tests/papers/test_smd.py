"""Wan et al.'s experiments: what is trained at each scale, and claims on tables that were made up."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from isogon.lab import Config, train
from isogon.lab.run._k_step_angles import column_of
from isogon.lab.run._training import Training
from isogon.papers import _imagenet as imagenet
from isogon.papers.reproduction._experiment import SCALES, Options
from isogon.papers.smd import _figures as smd
from isogon.papers.smd import _scaling as smd_scaling
from isogon.recipe import Recipe
from isogon.theory.motion import law

BY_ID = {experiment.id: experiment for experiment in smd.EXPERIMENTS}
TRAINED = ["smd/fig2", "smd/fig3", "smd/fig6", "smd/fig9", "smd/table1"]


def verdict(name, table):
    judgement = BY_ID[name].judge(table)
    assert judgement.sentence
    return judgement.verdict


def test_all_are_there():
    assert list(BY_ID) == [*(f"smd/fig{number}" for number in range(2, 10)), "smd/table1", "smd/table2"]


def steps(ratios, *, noise=0.01, seeds=2, draw=0):
    """Rows by step: `ratios` maps a row to its angle and its norm over the law, a pair for each stage."""
    rng = np.random.default_rng(draw)
    rows = []
    for row, by_stage in ratios.items():
        for seed in range(seeds):
            for step in range(120):
                angle, norm = by_stage[step * len(by_stage) // 120]
                rows.append(
                    {
                        "row": row,
                        "seed": seed,
                        "step": step,
                        "stage": step * len(by_stage) // 120,
                        "step_angle": 0.01 * angle * (1 + noise * rng.standard_normal()),
                        "predicted_step_angle": 0.01,
                        "norm": 5 * norm * (1 + noise * rng.standard_normal()),
                        "predicted_norm": 5.0,
                        "status": "finished",
                    }
                )
    return pd.DataFrame(rows)


def test_figure_2_wants_angles_and_norms_at_the_law(mostly_undecided):
    def table(angle=1.0, norm=1.0, noise=0.01, draw=0):
        return steps({smd.SGD: [(1, 1)], smd.SGDM: [(angle, norm)]}, noise=noise, draw=draw)

    assert verdict("smd/fig2", table()) == "holds"
    assert verdict("smd/fig2", table(angle=0.7)) == "fails"
    assert verdict("smd/fig2", table(norm=1.3)) == "fails"
    assert mostly_undecided(lambda draw: verdict("smd/fig2", table(noise=0.3, draw=draw)))
    assert verdict("smd/fig2", table().query("row == 'SGD'")) == "undecided"


def layers(ratios, *, noise=0.01, seeds=2, status="finished", panel="a", draw=1):
    """Rows by layer: `ratios` maps a row to its angle over the law in each stage of ten epochs."""
    rng = np.random.default_rng(draw)
    rows = [
        {
            "panel": panel,
            "row": row,
            "seed": seed,
            "layer": f"conv{layer}",
            "epoch": 10 * stage + epoch,
            "stage": stage,
            "step_angle": 0.01 * max(0.01, ratio * (1 + noise * rng.standard_normal())),
            "predicted_step_angle": 0.01,
            "norm": 5.0,
            "rescaled_norm": 5.0,
            "adjusted_grad_sq": (5.0 if layer else 500.0) * 4.0**-stage,
            "status": status,
        }
        for row, by_stage in ratios.items()
        for seed in range(seeds)
        for layer in range(4)
        for stage, ratio in enumerate(by_stage)
        for epoch in range(10)
    ]
    return pd.DataFrame(rows)


def test_figure_3_wants_the_rescaled_run_at_the_law_and_the_standard_one_below(mostly_undecided):
    def table(standard=(1, 1, 0.4, 0.3), rescaled=(1, 1, 1, 1), **options):
        return layers({smd.STANDARD: standard, smd.RESCALED: rescaled}, **options)

    assert verdict("smd/fig3", table()) == "holds"
    assert verdict("smd/fig3", table(rescaled=(1, 1, 0.7, 0.4))) == "fails"
    assert verdict("smd/fig3", table(standard=(1, 1, 1, 1))) == "fails"
    assert mostly_undecided(lambda draw: verdict("smd/fig3", table(noise=0.5, draw=draw)))
    assert verdict("smd/fig3", table(status="diverged")) == "undecided"
    assert verdict("smd/fig3", table().query("row == 'Standard'")) == "undecided"
    # Where the first stage starts is not part of the claim.
    assert verdict("smd/fig3", table(rescaled=(3, 1, 1, 1))) == "holds"
    assert len(BY_ID["smd/fig3"].show(table())) == 3
    # Gradients that shrink are told, and decide nothing.
    judgement = BY_ID["smd/fig3"].judge(table())
    assert "unit gradients √h of these stages are 0.50, 0.25, 0.12 of those before the first drop" in judgement.sentence
    assert judgement.numbers["√h, stage 4"] == pytest.approx(1 / 8)
    assert verdict("smd/fig3", table().drop(columns="adjusted_grad_sq")) == "holds", "results of older versions"


def test_figure_6_wants_the_norm_of_the_rescaled_run_at_the_law_and_the_standard_one_above(mostly_undecided):
    def table(standard=1.5, rescaled=1.0, **options):
        return steps({smd.STANDARD: [(1, 1), (1, standard)], smd.RESCALED: [(1, 1), (1, rescaled)]}, **options)

    assert verdict("smd/fig6", table()) == "holds"
    assert verdict("smd/fig6", table(standard=1.0)) == "fails"
    assert verdict("smd/fig6", table(rescaled=1.4)) == "fails"
    assert mostly_undecided(lambda draw: verdict("smd/fig6", table(noise=1.5, draw=draw)))


def test_figure_9_wants_both_networks_at_the_law(mostly_undecided):
    def table(second, **options):
        return pd.concat(
            [layers({smd.STANDARD: (ratio,)}, panel=p, **options) for p, ratio in (("a", 1), ("b", second))]
        )

    assert verdict("smd/fig9", table(1)) == "holds"
    assert verdict("smd/fig9", table(0.6)) == "fails"
    assert mostly_undecided(lambda draw: verdict("smd/fig9", table(1, noise=0.7, draw=draw)))


def test_table_1_wants_no_harm():
    def table(*differences):
        rows = [
            {"row": row, "seed": seed, "accuracy": 0.76 + more, "status": "finished"}
            for seed, difference in enumerate(differences)
            for row, more in ((smd.STANDARD, 0), (smd.RESCALED, difference))
        ]
        return pd.DataFrame(rows)

    assert verdict("smd/table1", table(0.0002, -0.0003, 0.0001)) == "holds"
    assert verdict("smd/table1", table(-0.03, -0.031, -0.029)) == "fails"
    assert verdict("smd/table1", table(-0.03, 0.03, 0.0)) == "undecided"
    assert verdict("smd/table1", table(0.0002)) == "undecided"
    (shown,) = BY_ID["smd/table1"].show(table(0.01, 0.01))
    assert shown.printed[smd.RESCALED, "top-1 accuracy"] == 76.27
    assert shown.ours[smd.RESCALED, "top-1 accuracy"].mean == pytest.approx(77)


def test_table_2_wants_the_precisions_to_stay():
    experiment = BY_ID["smd/table2"]
    assert experiment.unavailable
    columns = experiment.show(pd.DataFrame({"row": []}).reindex(columns=["row", *_APS]))[0].columns

    def table(difference, spread=0.0):
        return pd.DataFrame(
            [
                {"row": row, **dict.fromkeys(columns, 39 + more + spread * seed)}
                for row, more in ((smd.STANDARD, 0), (smd.RESCALED, difference))
                for seed in range(2)
            ]
        )

    assert experiment.judge(table(-0.5)).verdict == "holds"
    assert experiment.judge(table(-3)).verdict == "fails"
    assert experiment.judge(table(-0.5, spread=5)).verdict == "undecided"


_APS = ("box AP", "box AP50", "box AP75", "mask AP", "mask AP50", "mask AP75")


@pytest.mark.parametrize("name", ["smd/fig4", "smd/fig5"])
def test_the_simulated_norm_follows_its_target_and_one_that_does_not_is_told(name):
    experiment = BY_ID[name]
    table = experiment.compute(Options("tiny"))
    assert experiment.judge(table).verdict == "holds"
    assert experiment.judge(table.assign(norm_sq=1.2 * table["norm_sq"])).verdict == "fails"
    assert experiment.judge(table.assign(norm_sq=1.07 * table["target"])).verdict == "undecided"
    assert experiment.judge(table[table["step"] < 100]).verdict == "undecided"
    assert len(experiment.show(table)) == 4


def test_figure_5_wants_momentum_to_be_faster():
    table = BY_ID["smd/fig5"].compute(Options("tiny"))
    assert verdict("smd/fig5", table.assign(settled=100.0)) == "fails"


def scaling(many, one, *, noise=0.01, gradient=2.0, draw=2):
    """Angles over a small step of 0.01, for k = 4 and 16, over twelve epochs."""
    rng = np.random.default_rng(draw)

    def angle(times):
        return 0.01 * times * math.exp(noise * rng.standard_normal())

    rows = []
    for (panel, k), epoch in itertools.product(smd_scaling.PANELS.items(), range(12)):
        common = {"panel": panel, "seed": 0, "epoch": epoch, "status": "finished", "predicted_1": 0.01}
        small = {f"angle_{k}": angle(many(k)), f"predicted_{k}": 0.01, f"gradient_{k}": gradient}
        rows.append({**common, "row": smd_scaling.SMALL, "angle_1": angle(1), **small})
        rows.append({**common, "row": smd_scaling.ONE, "angle_1": angle(one(k))})
    return pd.DataFrame(rows)


def test_figure_7_wants_small_steps_to_turn_further(mostly_undecided):
    assert verdict("smd/fig7", scaling(lambda k: 2 * k**0.5, math.sqrt)) == "holds"
    assert verdict("smd/fig7", scaling(math.sqrt, math.sqrt)) == "fails"

    def noisy(draw):
        return verdict("smd/fig7", scaling(lambda k: 1.4 * k**0.5, math.sqrt, noise=1.0, draw=draw))

    assert mostly_undecided(noisy)


def test_the_law_of_figure_7_is_that_of_each_epochs_rate():
    config = smd_scaling.SETUPS["small"].config(4, 0)
    rates = [0.2, 0.2, 0.02, 0.002, 0.0002]
    for k in (1, 4):
        expected = [float(law("sgd", lr=rate, weight_decay=5e-4, momentum=0.9).angle(k)) for rate in rates]
        assert smd_scaling.law_angles(config, [0, 9, 10, 20, 29], k) == pytest.approx(expected, rel=1e-12)
    figure = BY_ID["smd/fig7"].show(scaling(math.sqrt, math.sqrt))[0]
    assert [(line.name, line.dashed) for line in figure.lines] == [
        ("k small steps", False),
        ("k small steps: law", True),
        ("one large step", False),
        ("one large step: law", True),
    ]


def test_figure_8_wants_the_angle_to_grow_as_the_root_of_k_whatever_the_gradient_does(mostly_undecided):
    assert verdict("smd/fig8", scaling(math.sqrt, math.sqrt, gradient=3.9)) == "holds"
    assert verdict("smd/fig8", scaling(math.sqrt, lambda k: k)) == "fails"
    assert mostly_undecided(lambda draw: verdict("smd/fig8", scaling(math.sqrt, math.sqrt, noise=1.0, draw=draw)))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", TRAINED)
def test_every_training_is_planned_at_every_scale(name, scale):
    planned = BY_ID[name].plan(Options(scale))
    assert len(planned) >= 2
    assert len({training.config.key for training in planned}) == len(planned)
    assert len(BY_ID[name].plan(Options(scale, seeds=3))) % 3 == 0


def test_the_papers_scale_is_as_printed():
    for name in ("smd/fig3", "smd/fig6", "smd/table1"):
        by_row = {training.labels["row"]: training.config for training in BY_ID[name].plan(Options("paper"))}
        standard = by_row["Standard"]
        assert (standard.net, standard.schedule, standard.epochs) == ("resnet50", "lr_30_60_80", 90)
        assert by_row["Rescale"].schedule == "balanced(lr_30_60_80)"
        recipe = standard.recipe
        assert (recipe.lr, recipe.weight_decay, recipe.momentum, recipe.batch_size) == (0.1, 1e-4, 0.9, 256)
        assert standard.data.startswith("imagefolder:")
        assert BY_ID[name].unavailable
    fixed = {training.labels["row"]: training.config.recipe for training in BY_ID["smd/fig2"].plan(Options("paper"))}
    assert [(fixed[row].lr, fixed[row].weight_decay, fixed[row].momentum) for row in ("SGD", "SGDM")] == [
        (0.2, 1e-4, 0.0),
        (0.2, 1e-4, 0.9),
    ]
    mobile = [training.config for training in BY_ID["smd/fig9"].plan(Options("paper"))]
    assert [config.net for config in mobile] == ["mobilenet_v2", "shufflenet_v2_plus"]
    assert all((config.recipe.lr, config.recipe.weight_decay) == (0.5, 4e-5) for config in mobile)
    large = smd_scaling.SETUPS["paper"].config(16, 0)
    assert (large.recipe.batch_size, large.recipe.lr) == (4096, pytest.approx(1.6))


def test_the_three_of_the_stages_share_their_runs():
    keys = [
        {training.config.key for training in BY_ID[name].plan(Options("tiny"))}
        for name in ("smd/fig3", "smd/fig6", "smd/table1")
    ]
    assert keys[0] == keys[1] == keys[2]


def small_config(schedule, **options):
    recipe = Recipe(lr=0.1, weight_decay=0.02, batch_size=20, samples=100, epochs=2)
    net = {"width": 4, **options}
    return Config(
        recipe=recipe, net="cnn4", net_options=net, data="fashion-mini", augmentation="none", schedule=schedule,
        precision="float64", monitor_every=1,
    )  # fmt: skip


def test_kept_rows_of_a_rescaled_run_have_stages_at_one_norm_and_shown_norms_that_drop():
    run = train(small_config("balanced(lr_1)", scale_invariant="plain"), progress=False)
    rows = BY_ID["smd/fig3"].keep(run)
    assert rows.groupby("epoch")["stage"].first().tolist() == [0, 1]
    law = rows.groupby("stage")["predicted_step_angle"].first()
    assert law[0] / law[1] == pytest.approx(math.sqrt(10), rel=1e-3)
    ratio = (rows["rescaled_norm"] / rows["norm"]).groupby(rows["stage"]).first()
    np.testing.assert_allclose(ratio, [1, 10**-0.25])
    assert set(rows["layer"]) == {"stem.conv.weight", "body.1.conv.weight", "body.3.conv.weight"}
    steps_kept = BY_ID["smd/fig6"].keep(run)
    assert len(steps_kept) == 10
    assert steps_kept["mean_unit_grad_sq"].iloc[1] == pytest.approx(steps_kept["unit_grad_sq"].iloc[:2].mean())


def test_weights_that_are_not_invariant_keep_the_standard_schedule_under_rescaling():
    trial = Training(small_config("balanced(lr_1)"))  # the published network: γ, β and classifier are trained
    trial.driver.load_state_dict({**trial.driver.state_dict(), "step": 5})
    invariant, others = trial.optimizer.param_groups
    assert [weight.dim() for weight in invariant["params"]] == [4, 4, 4]
    root = math.sqrt(10)
    assert (invariant["lr"], invariant["weight_decay"]) == pytest.approx((0.1 / root, 0.02 / root))
    assert (others["lr"], others["weight_decay"]) == pytest.approx((0.01, 0.02))


def test_both_sides_of_the_linear_scaling_rule_are_kept(tmp_path):
    by_row = {training.labels["row"]: training for training in BY_ID["smd/fig7"].plan(Options("tiny", panels=("a",)))}
    recipe = Recipe(lr=0.1, weight_decay=0.02, batch_size=20, samples=100, epochs=2)
    turns = {"body.1.conv.weight": [1, 4, 16]}
    small = replace(small_config("constant"), recipe=recipe, turns=turns, snapshot_every=1)
    run = train(small, tmp_path / "small", progress=False)
    rows = BY_ID["smd/fig7"].keep(run)
    angles = run.epochs[column_of("body.1.conv.weight", 4)]
    np.testing.assert_array_equal(rows["angle_4"], angles)
    assert rows["angle_16"].isna().all(), "an epoch has five steps"
    motion = law("sgd", lr=0.1, weight_decay=0.02, momentum=0.9)
    assert rows["predicted_4"].tolist() == pytest.approx([float(motion.angle(4))] * 2)
    assert rows["gradient_4"].between(1, 4.5).all()
    assert rows["gradient_16"].isna().all()
    # A kept run is judged and shown alone, too.
    alone = rows.assign(**by_row[smd_scaling.SMALL].labels)
    for name in ("smd/fig7", "smd/fig8"):
        assert verdict(name, alone) == "undecided"
        assert len(BY_ID[name].show(alone)) == 1


def test_the_small_run_of_the_linear_scaling_rule_is_trained_once():
    planned = BY_ID["smd/fig7"].plan(Options("small"))
    assert len(planned) == 4
    assert len({training.config.key for training in planned}) == 3
    seen = sum(batch * (imagenet.SAMPLES // batch) for batch in (256, 4 * 256, 16 * 256))
    assert BY_ID["smd/fig8"].images("paper") == 90 * seen
