"""Yun's tables and figures: what is planned at each scale, and verdicts on tables that were made up."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from isogon.lab import train
from isogon.papers import _printed as printed
from isogon.papers.reproduction._experiment import SCALES, Options
from isogon.papers.yun._angle_figures import windows
from isogon.papers.yun._columns import judge_table
from isogon.papers.yun._figures import EXPERIMENTS

BY_ID = {experiment.id: experiment for experiment in EXPERIMENTS}
ANGLES = ("fig3", "fig4", "fig5", "fig6", "fig7", "fig9")


def planned(name, scale="paper", **options):
    return BY_ID[f"yun/{name}"].plan(Options(scale=scale, **options))


# What is planned


def test_every_table_and_figure_is_there():
    assert list(BY_ID) == [f"yun/table{n}" for n in range(1, 12)] + [f"yun/fig{n}" for n in range(1, 10)]
    assert all(experiment.title and experiment.claim and experiment.choices for experiment in EXPERIMENTS)


@pytest.mark.parametrize("number", range(1, 12))
def test_the_paper_scale_has_every_printed_cell_three_times(number):
    cells = printed.yun_table(number)
    planned_cells = Counter(
        (p.labels["panel"], r.samples, r.batch_size, r.lr, r.weight_decay)
        for p in planned(f"table{number}")
        for r in [p.config.recipe]
    )
    names = ["panel", "samples", "batch_size", "lr", "weight_decay"]
    assert planned_cells == {tuple(row): 3 for row in cells[names].itertuples(index=False, name=None)}
    known = {p.labels.get("printed") for p in planned(f"table{number}")} - {None}
    assert known == set(cells["accuracy"].dropna())


@pytest.mark.parametrize("number", range(1, 12))
def test_every_column_has_one_marked_cell_and_it_is_the_papers(number):
    cells = [p for p in planned(f"table{number}", seeds=1) if p.labels["factor"] == 1.0]
    columns = printed.yun_headline(number)
    places = {(p.labels["panel"], int(p.labels["column"])): p for p in cells}
    assert len(cells) == len(places) == len(columns)
    table = printed.yun_table(number)
    varied = "batch_size" if number in (3, 4, 10, 11) else "samples"
    for panel, column, rank in columns[["panel", "column", "rank"]].itertuples(index=False):
        rivals = table[(table["panel"] == panel) & (table[varied] == column)]["accuracy"]
        assert int((rivals > places[panel, column].labels["printed"]).sum()) + 1 == rank


def test_the_papers_epochs_schedules_and_networks():
    for name, expected in {
        "table1": ("resnet18", "cifar10", 300, "step", 0.9),
        "table2": ("resnet18", "cifar10", 300, "step", 0.0),
        "table6": ("resnet18", "cifar10", 300, "cosine", 0.9),
        "table8": ("densenet100", "cifar100", 300, "step", 0.9),
        "table9": ("resnet18", "tiny-imagenet", 120, "step", 0.9),
        "fig8": ("efficientnet_b0", "imagefolder:imagenet?size=256", 200, "lr_100_150_180", 0.9),
    }.items():
        configs = [p.config for p in planned(name, seeds=1)]
        assert {(c.net, c.data, c.epochs, c.schedule, c.recipe.momentum) for c in configs} == {expected}
    assert not any(p.config.net_options for p in planned("table7"))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [experiment.id.removeprefix("yun/") for experiment in EXPERIMENTS])
def test_plans_have_one_run_for_each_set_of_labels(name, scale):
    plan = planned(name, scale)
    assert len({tuple(sorted(p.labels.items())) for p in plan}) == len(plan) > 0
    assert all({"panel", "row", "column", "seed", "factor"} <= set(p.labels) for p in plan)
    assert {p.labels["seed"] for p in planned(name, scale, seeds=2)} == {0, 1}
    assert not any(p.config.save_weights for p in plan)
    measured = name.startswith("fig") or scale != "tiny"
    assert all(p.config.monitor_every for p in plan) or not measured


def test_no_small_experiment_takes_more_than_an_hour_and_tiny_ones_share_their_runs():
    # ResNet-18 at 60,000 images a second; DenseNet, EfficientNet and images of 64 pixels at 10,000.
    slow = {"yun/table8", "yun/table9", "yun/table10", "yun/fig8"}
    for experiment in EXPERIMENTS:
        assert experiment.images("small") / (10_000 if experiment.id in slow else 60_000) < 3600
    # Figure 8 has pictures of its own, in ImageNet's layout.
    runs = {
        p.config.key
        for experiment in EXPERIMENTS
        if experiment.id != "yun/fig8"
        for p in experiment.plan(Options(scale="tiny"))
    }
    assert len(runs) <= 48
    assert len(planned("fig8", "tiny")) == 6


def test_figures_draw_runs_that_their_tables_train():
    for figure, table in {"fig3": 1, "fig4": 3, "fig5": 5, "fig6": 6, "fig7": 7, "fig9": 11}.items():
        for scale in SCALES:
            trained = {p.config.key for p in planned(f"table{table}", scale)}
            assert {p.config.key for p in planned(figure, scale)} <= trained


def test_the_six_well_tuned_runs_have_the_tuning_factors_of_the_tables():
    assert [p.labels["factor"] for p in planned("fig1")] == [1, 2, 1, 1, 1, 0.5]
    bad = [p.labels["factor"] for p in planned("fig2") if p.labels["kind"] == "contrast"]
    assert min(bad) == 1 / 16
    assert max(bad) == 8


# Verdicts on tables


def made_up(top=0.0, *, seeds=3, noise=0.1, height=90.0, fall=1.0, name="table1", draw=1):
    """Accuracies that fall with the squared octaves from 2^top times the stated factor."""
    rng = np.random.default_rng(draw)
    rows = []
    for p in planned(name, seeds=seeds):
        octaves = math.log2(p.labels["factor"]) - top
        accuracy = (height - fall * octaves**2 + noise * rng.standard_normal()) / 100
        rows.append({"status": "finished", "accuracy": accuracy, **p.labels})
    return pd.DataFrame(rows)


@pytest.mark.parametrize("number", range(1, 12))
def test_a_table_with_its_top_at_the_stated_factor_holds_and_one_with_it_elsewhere_fails(number):
    name = f"table{number}"
    judge = BY_ID[f"yun/{name}"].judge
    judgement = judge(made_up(name=name))
    assert judgement.verdict == "holds"
    # Table 4 is judged up to B = 512.
    assert (
        judgement.numbers["columns"]
        == judgement.numbers["met"]
        == (9 if number == 4 else len(printed.yun_headline(number)))
    )
    # Four octaves away: beyond ×2 in every column that has such a cell.
    assert judge(made_up(top=3.0, name=name)).verdict == "fails"
    assert judge(made_up(top=-2.0, name=name)).verdict == "fails"


@pytest.mark.parametrize("seeds", [1, 3])
def test_noise_larger_than_the_differences_leaves_a_table_undecided(seeds, mostly_undecided):
    assert mostly_undecided(lambda draw: judge_table(made_up(noise=20.0, fall=0.05, seeds=seeds, draw=draw)).verdict)


def test_one_seed_can_decide_where_the_columns_are_smooth():
    assert judge_table(made_up(seeds=1)).verdict == "holds"
    assert judge_table(made_up(top=3.0, seeds=1)).verdict == "fails"


def test_a_single_missed_column_fails_a_claim_about_every_column_but_not_one_about_most():
    good, bad = made_up(), made_up(top=3.0)
    there = (good["panel"] == "a") & (good["column"] == "50000")
    mixed = pd.concat([good[~there], bad[there]])
    assert judge_table(mixed).verdict == "fails"
    assert judge_table(mixed, every=False).verdict == "holds"


def test_a_cell_that_both_neighbours_beat_is_a_miss_and_one_that_a_single_neighbour_beats_is_not():
    table = made_up()
    dip = table["factor"] == 1.0
    assert judge_table(table.assign(accuracy=table["accuracy"] - 0.02 * dip)).verdict == "fails"
    assert judge_table(made_up(top=0.7)).verdict == "holds"


def test_a_marked_cell_that_always_diverges_is_a_miss_and_failed_runs_are_no_data():
    table = made_up()
    marked = table["factor"] == 1.0
    diverged = table.assign(status=np.where(marked, "diverged", "finished"), accuracy=table["accuracy"].where(~marked))
    assert judge_table(diverged).verdict == "fails"
    failed = diverged.assign(status=np.where(marked, "failed", "finished"))
    assert judge_table(failed).verdict == "undecided"


def test_too_few_cells_leave_a_table_undecided():
    table = made_up()
    assert judge_table(table[table["factor"].isin((0.5, 1.0))]).verdict == "undecided"


def test_the_printed_numbers_of_table_1_do_not_fail_and_those_of_table_4_fail_beyond_b_512():
    for name, fails in {"table1": False, "table3": False, "table4": True}.items():
        rows = pd.DataFrame([{"status": "finished", **p.labels} for p in planned(name, seeds=1)])
        rows = rows.assign(accuracy=rows["printed"] / 100)
        assert (judge_table(rows).verdict == "fails") == fails
        assert BY_ID[f"yun/{name}"].judge(rows).verdict != "fails"


def test_a_table_is_shown_in_the_printed_layout():
    shown = BY_ID["yun/table3"].show(made_up(name="table3"))
    assert [exhibit.title for exhibit in shown] == ["Table 3 (a)", "Table 3 (b)", "Table 3 (c)"]
    first = shown[0]
    assert first.columns == ["2048", "1024", "512", "256", "128"]
    assert (first.rows[0], first.rows[-1]) == ("6.4 / 0.0001", "0.1 / 0.0001")
    assert len(first.ours) == len(first.printed) == 35
    rates = [f"{lr} / 0.0001" for lr in (3.2, 1.6, 0.8, 0.4, 0.2)]
    assert first.marked == set(zip(rates, first.columns, strict=True))
    assert first.printed["0.4 / 0.0001", "128"] == 95.13
    assert all(cell.runs == 3 and cell.mean > 40 for cell in first.ours.values())


# Verdicts on figures


def angles(name, *, exponent=0.5, wobble=0.01, epochs=40, level=lambda labels: 1.0, draw=2):
    """Curves that lie at F^exponent; by theory the exponent is ½ and tuned ones coincide."""
    rng = np.random.default_rng(draw)
    rows = []
    for p in planned(name):
        for epoch in range(epochs):
            drop = 1.0 if epoch < epochs // 2 else 0.3 if epoch < 3 * epochs // 4 else 0.1
            angle = 0.4 * p.labels["factor"] ** exponent * drop * level(p.labels)
            angle *= math.exp(wobble * rng.standard_normal())
            rows.append(
                {"epoch": epoch, "status": "finished", "epoch_angle": angle, "predicted_epoch_angle": 0.4 * drop}
                | dict(p.labels)
            )
    return pd.DataFrame(rows)


@pytest.mark.parametrize("name", ["fig2", *ANGLES])
def test_curves_by_theory_hold_others_fail_and_noisy_ones_are_undecided(name, mostly_undecided):
    judge = BY_ID[f"yun/{name}"].judge
    assert judge(angles(name)).verdict == "holds"
    first = planned(name)[0].labels["column"]
    apart = angles(name, level=lambda labels: 4.0 if labels["column"] == first and labels["kind"] == "tuned" else 1.0)
    assert judge(apart).verdict == "fails"
    assert mostly_undecided(lambda draw: judge(angles(name, wobble=0.5, exponent=0.1, draw=draw)).verdict)
    # Without a difference in the contrast, agreement says nothing.
    assert judge(angles(name, exponent=0.0)).verdict != "holds"
    assert judge(angles(name, epochs=4)).verdict != "fails"


def test_a_curve_that_leaves_the_others_in_one_phase_alone_fails_and_the_phase_is_said():
    table = angles("fig3", wobble=0.0)
    late = (table["epoch"] >= 30) & (table["column"] == "3125") & (table["kind"] == "tuned")
    table.loc[late, "epoch_angle"] *= 3
    judgement = BY_ID["yun/fig3"].judge(table)
    assert judgement.verdict == "fails"
    assert "within a factor of 1.00, 1.00, 3.00 of each other" in judgement.sentence


def test_the_first_epochs_do_not_count():
    table = angles("fig3")
    early = (table["epoch"] < 8) & (table["column"] == "3125") & (table["kind"] == "tuned")
    table.loc[early, "epoch_angle"] *= 10
    assert BY_ID["yun/fig3"].judge(table).verdict == "holds"


def test_windows_are_the_last_halves_of_the_phases():
    assert windows(4, (0.5, 0.75)) == [(1, 2), (2, 3), (3, 4)]
    assert windows(300, (0.5, 0.75))[0] == (75, 150)


def test_an_angle_figure_shows_tuned_panels_theory_and_the_contrast():
    shown = BY_ID["yun/fig4"].show(angles("fig4"))
    assert [exhibit.title[:12] for exhibit in shown] == ["Figure 4 (a)", "Figure 4 (b)", "Figure 4 (c)", "For contrast"]
    assert [line.dashed for line in shown[0].lines] == [False] * 5 + [True]
    assert len(shown[-1].lines) == 5
    assert [len(exhibit.lines) for exhibit in BY_ID["yun/fig2"].show(angles("fig2"))] == [7, 6]


def rates(*, level=lambda labels: 1.0, drift=0.0, wobble=0.01, epochs=80, draw=3):
    """η_eff from 1/10 of its level up to it; per epoch it is √(N F)."""
    rng = np.random.default_rng(draw)
    rows = []
    for p in planned("fig1"):
        k = p.config.recipe.steps_per_epoch
        per_epoch = math.sqrt(p.labels["samples"] * p.labels["factor"]) * level(p.labels)
        for epoch in range(epochs):
            rise = 1 - 0.9 * math.exp(-epoch) + drift * epoch
            value = per_epoch * rise * math.exp(wobble * rng.standard_normal())
            rows.append(
                {"epoch": epoch, "status": "finished", "effective_lr": value / k, "effective_lr_epoch": value}
                | dict(p.labels)
            )
    return pd.DataFrame(rows)


def test_effective_rates_hold_by_theory_and_fail_where_equal_data_differ_or_nothing_settles(mostly_undecided):
    judge = BY_ID["yun/fig1"].judge
    assert judge(rates()).verdict == "holds"
    assert judge(rates(level=lambda labels: 9.0 if labels["column"] == "1" else 1.0)).verdict == "fails"
    assert judge(rates(drift=0.1)).verdict == "fails"
    assert mostly_undecided(lambda draw: judge(rates(wobble=0.5, draw=draw)).verdict)
    assert judge(rates(epochs=4)).verdict == "undecided"
    assert [len(exhibit.lines) for exhibit in BY_ID["yun/fig1"].show(rates())] == [6, 6]


def transfer(part=0.0, whole=0.0, *, noise=0.05, seeds=3, draw=4):
    rng = np.random.default_rng(draw)
    rows = []
    for p in planned("fig8", seeds=seeds):
        octaves = math.log2(p.labels["factor"]) - (part if p.labels["panel"] == "a" else whole)
        accuracy = (70 - octaves**2 + noise * rng.standard_normal()) / 100
        rows.append({"status": "finished", "accuracy": accuracy, **p.labels})
    return pd.DataFrame(rows)


def test_a_search_on_a_part_transfers_where_the_tops_are_within_a_factor_of_two(mostly_undecided):
    judge = BY_ID["yun/fig8"].judge
    assert judge(transfer()).verdict == "holds"
    assert judge(transfer(whole=-1.0)).verdict == "holds"
    assert judge(transfer(whole=-2.0)).verdict == "fails"
    assert mostly_undecided(lambda draw: judge(transfer(noise=10.0, draw=draw)).verdict)
    assert judge(transfer().query("panel == 'a'")).verdict == "undecided"


def test_imagenets_weight_decays_are_those_of_the_figure():
    decays = {
        panel: [p.config.recipe.weight_decay for p in planned("fig8") if p.labels["panel"] == panel] for panel in "ab"
    }
    assert decays["a"] == [0.0004, 0.0008, 0.0016, 0.0032, 0.0064]
    assert decays["b"] == [2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4]
    shown = BY_ID["yun/fig8"].show(transfer())
    assert [list(exhibit.lines[0].x) for exhibit in shown] == list(decays.values())
    assert [exhibit.log_x for exhibit in shown] == [True, True]


# The printed numbers, and one short training


def test_the_printed_numbers_are_those_of_the_catalogue(shared_papers):
    whole = pd.read_csv(shared_papers / "tables.csv")
    ours = pd.concat([printed.yun_table(number) for number in range(1, 12)])
    np.testing.assert_array_equal(ours["accuracy"], whole["accuracy"])
    headline = pd.read_csv(shared_papers / "headline.csv")
    np.testing.assert_array_equal(
        pd.concat([printed.yun_headline(number) for number in range(1, 12)])["rank"], headline["yellow_rank"]
    )
    assert len(printed.other_table("lla", 1)) == 35


def test_a_tiny_run_gives_rows_that_can_be_shown():
    experiment = BY_ID["yun/fig5"]
    plan = experiment.plan(Options(scale="tiny"))
    first = next(p for p in plan if p.config.recipe.samples == 200)
    run = train(first.config, progress=False)
    rows = experiment.keep(run).assign(**first.labels)
    assert list(rows["epoch"]) == list(range(first.config.epochs))
    assert rows[["epoch_angle", "effective_lr", "effective_lr_epoch", "predicted_epoch_angle"]].notna().all(axis=None)
    assert experiment.judge(rows).verdict == "undecided"
    assert len(experiment.show(rows)[0].lines) == 2
    assert BY_ID["yun/table5"].keep(run)["accuracy"].iloc[0] == run.accuracy
