"""Li, Lyu and Arora's experiments: set-ups as printed, and verdicts that follow the tables they are given."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from isogon.lab import train
from isogon.papers._printed import other_table
from isogon.papers.lla import EXPERIMENTS
from isogon.papers.lla import _averages as lla_averages
from isogon.papers.lla import _full_batch as lla_full_batch
from isogon.papers.lla import _mnist as lla_mnist
from isogon.papers.lla import _rates as lla_rates
from isogon.papers.lla import _recovery as lla_recovery
from isogon.papers.lla import _schedules as lla_schedules
from isogon.papers.lla._judging import rank_correlation
from isogon.papers.reproduction._experiment import SCALES, Options
from isogon.schedules import from_name

BY_ID = {experiment.id: experiment for experiment in EXPERIMENTS}
TRAINED = [experiment for experiment in EXPERIMENTS if experiment.keep is not None]


def planned(id_, scale="paper", **options):
    return BY_ID[id_].plan(Options(scale=scale, **options))


def rates(config, epoch):
    schedule = from_name(config.schedule, config.recipe, epochs=config.epochs, steps_per_epoch=config.steps_per_epoch)
    step = round(epoch * config.steps_per_epoch)
    return float(schedule.lr(step)), float(schedule.weight_decay(step))


def verdict(id_, table):
    return BY_ID[id_].judge(table).verdict


def test_rank_correlation_is_spearmans_with_ties_and_gaps():
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    for _ in range(20):
        first = pd.Series(rng.integers(0, 6, 12).astype(float))
        second = (first + rng.normal(0, 2, 12)).round().rename("other")
        assert rank_correlation(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)
        # Labels are matched, and what either lacks counts in neither.
        gaps = second.mask(second.index == 3).drop(index=7).sample(frac=1, random_state=1)
        both = first.index.difference([3, 7])
        known = stats.spearmanr(first[both], second[both]).statistic
        assert rank_correlation(first, gaps) == pytest.approx(known)


def test_all_fourteen_are_there():
    assert [experiment.id for experiment in EXPERIMENTS] == [
        "lla/table1",
        *(f"lla/fig{number}" for number in range(1, 14)),
    ]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("experiment", TRAINED, ids=lambda experiment: experiment.id)
def test_plans_have_configs_that_differ_and_labels(experiment, scale):
    runs = experiment.plan(Options(scale=scale))
    assert len({training.config.key for training in runs}) == len(runs)
    assert all({"column", "seed"} <= set(training.labels) for training in runs)
    if scale == "tiny":
        assert sum(training.config.epochs for training in runs) <= 60


@pytest.mark.parametrize("experiment", TRAINED, ids=lambda experiment: experiment.id)
def test_seeds_are_those_asked_for(experiment):
    assert {training.labels["seed"] for training in experiment.plan(Options(scale="small", seeds=2))} == {0, 1}


def test_at_tiny_scale_figures_share_their_runs():
    keys = {training.config.key for id_ in ("lla/fig1", "lla/fig12", "lla/fig13") for training in planned(id_, "tiny")}
    assert len(keys) == 5
    trials = {training.config.key for id_ in ("lla/fig3", "lla/fig9") for training in planned(id_, "tiny")}
    assert len(trials) == 16


def test_figure_1_trains_the_printed_schedules():
    printed = other_table("lla", 1)
    for id_, net, data in (
        ("lla/fig1", "preresnet32", "cifar10"),
        ("lla/fig12", "vgg16", "cifar10"),
        ("lla/fig13", "preresnet32", "cifar100"),
    ):
        runs = planned(id_)
        assert {(training.config.net, training.config.data, training.config.recipe.momentum) for training in runs} == {
            (net, data, 0.0)
        }
        assert {(training.config.recipe.batch_size, training.config.recipe.samples) for training in runs} == {
            (128, 50_000)
        }
        for training in runs:
            for cell in printed[printed["row"] == training.labels["column"]].itertuples():
                measured = rates(training.config, int(cell.column.removeprefix("epoch ")))
                assert measured == pytest.approx((cell.lr, cell.weight_decay)), (training.labels, cell.column)


def test_set_ups_are_as_printed():
    halving, decaying = (training.config for training in planned("lla/fig4"))
    for epoch, part in ((0, 1), (199, 1), (200, 2), (1199, 16), (1200, 32), (4000, 128), (7999, 128)):
        assert rates(halving, epoch) == pytest.approx((3.2 / part, 5e-4))
        assert rates(decaying, epoch) == pytest.approx((3.2, 5e-4 / part))
    assert rates(halving, 8000) == pytest.approx((3.2 / 128 / 10, 0))
    (full,) = planned("lla/fig5")
    assert (full.config.recipe.samples, full.config.recipe.batch_size, full.config.steps_per_epoch) == (1000, 1000, 1)
    assert rates(full.config, 29_999) == (1.6, 5e-4)
    assert rates(full.config, 30_000) == (1.6, 0)
    starts = planned("lla/fig8")
    assert len(starts) == 16
    assert {training.config.initialisation for training in starts} == {
        "ntk",
        "kaiming",
        "kaiming*1000",
        "kaiming*0.001",
    }
    factors = sorted({training.labels["factor"] for training in starts})
    np.testing.assert_allclose(np.array(factors) / factors[0], [1, 5, 10, 50], rtol=0.01)
    for id_, momentum, start in (("lla/fig2", 0.9, 0.001), ("lla/fig10", 0.0, 0.01)):
        small = next(training.config for training in planned(id_) if training.labels["column"] == lla_rates.SMALL)
        assert small.recipe.momentum == momentum
        assert rates(small, 4999) == pytest.approx((start, 5e-4))
        assert rates(small, 5000) == pytest.approx((start / 10, 5e-4))


def test_mnist_trials_are_as_printed():
    runs = planned("lla/fig3")
    assert len(runs) == 3 * 500 * 2
    for training in (training for training in runs if training.labels["seed"] == 7 and training.labels["stage"] == 200):
        name = training.labels["column"]
        for epoch, factor in ((0, 4), (39, 4), (40, 2), (80, 1), (119, 1)):
            expected = (0.1 * (factor if name == "LR-decay" else 1), 0.1 * (factor if name == "WD-decay" else 1))
            assert rates(training.config, epoch) == pytest.approx(expected)
        assert rates(training.config, 120) == (0.01, 0)
        assert training.config.epochs == 200
    fixed = [
        training.config for training in planned("lla/fig9", seeds=3) if training.labels["column"] == lla_mnist.FIXED
    ]
    assert {config.init_seed for config in fixed} == {0}
    assert len({config.seed for config in fixed}) == 3


def test_recovery_keeps_the_intrinsic_rate_and_leaves_equilibrium():
    for training in planned("lla/fig11"):
        change = training.labels["change"] / training.config.steps_per_epoch
        before, after = rates(training.config, change - 1), rates(training.config, change)
        assert np.prod(before) == pytest.approx(np.prod(after)) == pytest.approx(training.labels["intrinsic_lr"])
        assert after[0] == pytest.approx(before[0] / 10)


def test_table_1_is_ours_and_printed():
    experiment = BY_ID["lla/table1"]
    table = experiment.compute(Options(scale="tiny"))
    assert experiment.judge(table).verdict == "holds"
    for exhibit in experiment.show(table):
        assert len(exhibit.ours) == len(exhibit.printed) == 35
        for place, cell in exhibit.ours.items():
            assert cell.mean == pytest.approx(exhibit.printed[place])
    late = table.assign(lr=table["lr"].where((table["column"] != "Schedule_1") | (table["epoch"] != 500), 0.2))
    assert verdict("lla/table1", late) == "fails"
    assert verdict("lla/table1", table[table["column"] == "Schedule_2"]) == "undecided"


def five(gap=0.0, noise=0.0, seeds=3, end_gap=0.0, rate_gap=0.0, draw=0):
    """Five schedules, `gap` between best and worst after the switch; `noise` between seeds."""
    rng, rows = np.random.default_rng(draw), []
    for place, name in enumerate(lla_schedules.OPERATIONS):
        for seed in range(seeds):
            luck = noise * rng.standard_normal()
            for epoch in range(120):
                part = place / 4
                accuracy = 0.7 + luck + (end_gap if epoch >= 100 else gap) * part
                rate = 0.01 * np.exp(5 * part if epoch < 50 else rate_gap * part)
                rows.append((name, seed, epoch, accuracy, accuracy, 10.0, rate))
    columns = ["column", "seed", "epoch", "train_accuracy", "test_accuracy", "norm", "effective_lr"]
    return pd.DataFrame(rows, columns=columns).assign(status="finished", switch=50, decay=100)


@pytest.mark.parametrize("id_", ["lla/fig1", "lla/fig12", "lla/fig13"])
def test_schedules_merge(id_, mostly_undecided):
    assert verdict(id_, five(gap=0.003, noise=0.001)) == "holds"
    assert verdict(id_, five(gap=0.05, noise=0.001)) == "fails"
    assert verdict(id_, five(end_gap=0.05, noise=0.001)) == "fails"
    assert verdict(id_, five(rate_gap=0.5, noise=0.001)) == "fails"
    assert mostly_undecided(lambda draw: verdict(id_, five(noise=0.02, draw=draw)))
    assert verdict(id_, five().query("column == 'Schedule_1'")) == "undecided"
    assert verdict(id_, five().assign(status="diverged")) == "undecided"
    judgement = BY_ID[id_].judge(five(rate_gap=0.05))
    assert judgement.numbers["log effective rate before the switch"] == pytest.approx(5)
    assert judgement.numbers["log effective rate after the switch"] == pytest.approx(0.05)
    assert judgement.numbers["log effective rate at the end"] == pytest.approx(0.05)
    assert [len(figure.lines) for figure in BY_ID[id_].show(five())] == [5] * 4


def two(rate=0.0, accuracy=0.0, late=True):
    rows = []
    for place, name in enumerate(("LR halved", "WD halved")):
        for epoch in range(100):
            value = 0.6 + 0.3 * ((epoch >= 80) if late else (epoch == 10)) + accuracy * place
            # Right after a halving the two differ much, whatever they do most of the time.
            gap = 0.7 if epoch % 20 < 4 else rate
            rows.append((name, 0, epoch, value, value, 10.0, np.exp(gap * place)))
    columns = ["column", "seed", "epoch", "train_accuracy", "test_accuracy", "norm", "effective_lr"]
    return pd.DataFrame(rows, columns=columns).assign(status="finished", end=80)


def test_halving_rate_or_decay_is_the_same():
    assert verdict("lla/fig4", two(rate=0.03)) == "holds"
    assert verdict("lla/fig4", two(rate=0.5)) == "fails"
    assert verdict("lla/fig4", two(accuracy=0.1)) == "fails"
    assert verdict("lla/fig4", two(late=False)) == "fails"
    assert verdict("lla/fig4", two().query("epoch < 5")) == "undecided"
    assert verdict("lla/fig4", two().query("column == 'LR halved'")) == "undecided"


def small_rate(end, seeds=3, noise=0.001, reached=300, draw=1):
    rng, rows = np.random.default_rng(draw), []
    for column, length, rise, final in (("baseline", 200, 80, 0.94), (lla_rates.SMALL, 400, reached, end)):
        for seed in range(seeds):
            luck = noise * rng.standard_normal()
            rows += [(column, seed, e, luck + (final if e >= rise else 0.8)) for e in range(length)]
    table = pd.DataFrame(rows, columns=["column", "seed", "epoch", "test_accuracy"])
    return table.assign(panel="abc", status="finished", train_accuracy=0.9, norm=1.0, effective_lr=0.1)


def equilibria(slope, noise=0.001, seeds=3, draw=2):
    rng, rows = np.random.default_rng(draw), []
    for place, lr in enumerate((3.2, 1.6, 0.8, 0.4)):
        for seed in range(seeds):
            level = 0.9 + slope * place + noise * rng.standard_normal()
            rows += [(f"{lr:g}", seed, e, 0.7 if e < 50 else level, lr * 5e-4) for e in range(60)]
    table = pd.DataFrame(rows, columns=["column", "seed", "epoch", "test_accuracy", "intrinsic_lr"])
    return table.assign(panel="d", status="finished", drop=50, train_accuracy=0.9, norm=1.0, effective_lr=0.1)


@pytest.mark.parametrize("id_", ["lla/fig2", "lla/fig10"])
def test_a_small_rate_is_as_good_and_slow(id_, mostly_undecided):
    good = [equilibria(0.01)] if id_ == "lla/fig2" else []
    for table, expected in (
        (small_rate(0.94), "holds"),
        (small_rate(0.96), "holds"),
        (small_rate(0.90), "fails"),
        (small_rate(0.94, reached=10), "fails"),
        (small_rate(0.94).query("column == 'baseline'"), "undecided"),
    ):
        assert verdict(id_, pd.concat([table, *good])) == expected
    assert mostly_undecided(lambda draw: verdict(id_, pd.concat([small_rate(0.93, noise=0.02, draw=draw), *good])))
    assert len(BY_ID[id_].show(small_rate(0.94))) == 4


def test_a_smaller_intrinsic_rate_ends_better(mostly_undecided):
    for table, expected in (
        (equilibria(0.01), "holds"),
        (equilibria(-0.01), "fails"),
        (equilibria(0.01).query("intrinsic_lr > 5e-4"), "undecided"),
    ):
        assert verdict("lla/fig2", table) == expected
    assert mostly_undecided(lambda draw: verdict("lla/fig2", equilibria(0.001, noise=0.02, draw=draw)))
    before, after = BY_ID["lla/fig2"].show(equilibria(0.01))[0].lines
    assert set(before.y) == {0.7}
    assert np.diff(after.y).max() < 0


def starts(behind=0.1, spread=0.0, slopes=(1, 1, 1, 1), noise=0.001, status="finished", draw=3):
    rng, rows = np.random.default_rng(draw), []
    settings = [(f"{lr} LR, {wd} WD", f) for lr, wd, f in _SETTINGS]
    for row in lla_rates.INITIALISATIONS:
        for (column, factor), slope in zip(settings, slopes, strict=True):
            for seed in range(3):
                level = 0.93 - (row != "kaiming") * (spread if column == "large LR, large WD" else behind)
                level += noise * rng.standard_normal()
                for epoch in range(20):
                    norm = 1e5 * np.exp(-slope * factor * epoch)
                    rows.append((row, column, seed, factor, epoch, level, norm))
    table = pd.DataFrame(rows, columns=["row", "column", "seed", "factor", "epoch", "test_accuracy", "norm"])
    lost = (table["row"] == "kaiming*1000") & (table["column"] == "large LR, large WD")
    return table.assign(status=np.where(lost, status, "finished"))


_SETTINGS = (("large", "large", 0.2), ("large", "small", 0.04), ("small", "large", 0.02), ("small", "small", 0.004))


def test_an_early_large_rate_forgets_the_start(mostly_undecided):
    assert verdict("lla/fig8", starts()) == "holds"
    assert verdict("lla/fig8", starts(spread=0.1)) == "fails"
    assert verdict("lla/fig8", starts(behind=0.0)) == "fails"
    assert verdict("lla/fig8", starts(slopes=(1, 1, 1, 2))) == "fails"
    assert mostly_undecided(lambda draw: verdict("lla/fig8", starts(noise=0.05, behind=0.05, draw=draw)))
    assert verdict("lla/fig8", starts(status="diverged")) == "undecided"
    assert verdict("lla/fig8", starts().query("row == 'kaiming'")) == "undecided"
    table = BY_ID["lla/fig8"].show(starts())[0]
    assert table.ours["ntk", "small LR, small WD"].mean == pytest.approx(83, abs=0.3)


def trials(wrong, count=64, images=200, first=lla_mnist.CONST, error=None, draw=4):
    """Predictions that are right but for chance; those of the other schedules are `wrong` in a way of their own."""
    rng, rows = np.random.default_rng(draw), []
    truth = rng.integers(0, 10, images)
    for column in (first, *lla_mnist.OTHERS):
        for stage in (120, 200):
            for seed in range(count):
                predicted = np.where(rng.random(images) < 0.1, (truth + 1) % 10, truth)
                if column != first:
                    predicted = np.where(rng.random(images) < wrong, (truth + 2) % 10, predicted)
                text = "".join(map(str, predicted))
                mistakes = float(np.mean(predicted != truth)) if error is None else error
                for epoch in range(stage // 20):
                    last = epoch == stage // 20 - 1
                    rows.append((column, stage, seed, epoch, mistakes, mistakes, text if last else ""))
    columns = ["column", "stage", "seed", "epoch", "train_error", "test_error", "predictions"]
    return pd.DataFrame(rows, columns=columns).assign(status="finished", equal_from=4, fine_from=6)


@pytest.mark.parametrize(("id_", "first"), [("lla/fig3", lla_mnist.CONST), ("lla/fig9", lla_mnist.FIXED)])
def test_predictions_are_alike_in_distribution(id_, first, mostly_undecided):
    assert verdict(id_, trials(0.0, first=first, error=0.1)) == "holds"
    # As far apart as the errors are large: the baseline itself, were the errors what they are said to be.
    assert verdict(id_, trials(0.5, first=first, error=0.1)) == "fails"
    # Far apart for good: more trials bring them no nearer, however large the errors.
    assert verdict(id_, trials(1.0, first=first, error=0.9)) == "undecided"
    assert mostly_undecided(lambda draw: verdict(id_, trials(0.0, count=4, first=first, draw=draw)))
    table = trials(0.0, count=8, first=first)
    titles = [exhibit.title for exhibit in BY_ID[id_].show(table)]
    assert titles[-2:] == ["Predictions at epoch 6", "Predictions at epoch 10"], "a twentieth of the paper's"
    assert "(LR-decay, epoch 10)" in BY_ID[id_].judge(table).sentence
    assert BY_ID[id_].show(table[table["stage"] == 120])[-1].title == titles[-2]


def test_errors_that_differ_fail():
    table = trials(0.0, error=0.1)
    shifted = table["test_error"] + 0.05 * (table["column"] == "LR-decay")
    assert verdict("lla/fig3", table.assign(test_error=shifted)) == "fails"


def test_predictions_are_kept_and_read_back(tmp_path):
    config = lla_mnist.trial("tiny", "LR-decay", stage=120, seed=3)
    run = train(config, tmp_path / "run", device="cpu", progress=False)
    rows = lla_mnist.keep_trial(run).assign(column="LR-decay", stage=120, seed=3)
    np.testing.assert_array_equal(lla_mnist.predictions(rows, "LR-decay", 120), [run.predictions])
    assert rows["test_error"].iloc[-1] == pytest.approx(1 - run.accuracy)


def full_batch(falls, falls_after=0):
    """Train accuracies of 1 but for dips below 0.95, so many before weight decay goes and after."""
    accuracy = np.ones(100)
    accuracy[5 + 4 * np.arange(falls)] = 0.5
    accuracy[90 + 2 * np.arange(falls_after)] = 0.5
    table = pd.DataFrame({"epoch": np.arange(100), "train_accuracy": accuracy, "test_accuracy": 0.4})
    return table.assign(panel="bc", column="full batch", seed=0, off=60, status="finished")


def test_full_batch_descent_never_settles():
    toy = lla_full_batch.toy(Options())
    assert verdict("lla/fig5", toy) == "holds"
    calm = toy.assign(angle=np.where(toy["column"] == "start 1", 0.1, 0.1 + 1e-6), loss=-toy["step"])
    assert verdict("lla/fig5", calm) == "fails"
    assert verdict("lla/fig5", pd.concat([toy, full_batch(4)])) == "holds"
    assert verdict("lla/fig5", full_batch(0)) == "fails"
    assert verdict("lla/fig5", full_batch(4, falls_after=1)) == "fails"
    assert verdict("lla/fig5", full_batch(1)) == "undecided"
    assert verdict("lla/fig5", full_batch(4).assign(train_accuracy=0.9)) == "undecided"
    assert len(BY_ID["lla/fig5"].show(pd.concat([toy, full_batch(4)]))) == 3


def test_the_toy_descends_its_loss():
    """One step from (x, y) against the gradient of x²/(x² + y²), found by differences, and weight decay."""
    rows = lla_full_batch.toy(Options()).query("column == 'start 1'")
    (x, y), after = rows[["x", "y"]].iloc[0], rows[["x", "y"]].iloc[1]
    step = 1e-6
    slopes = [
        ((x + a) ** 2 / ((x + a) ** 2 + (y + b) ** 2) - (x - a) ** 2 / ((x - a) ** 2 + (y - b) ** 2)) / (2 * step)
        for a, b in ((step, 0), (0, step))
    ]
    expected = [value - 0.1 * (slope + 0.5 * value) for value, slope in zip((x, y), slopes, strict=True)]
    np.testing.assert_allclose(after, expected, rtol=1e-8)


def snapshots(gain, growth=1.0, noise=0.001, norm=10.0, draw=5):
    rng, rows = np.random.default_rng(draw), []
    for first in range(5):
        for second in range(first + 1, 6):
            average = 0.8 + gain + noise * rng.standard_normal()
            distance = 3 * (second - first) ** (0.5 * growth)
            rows.append((f"epoch {first}", 0, first, second, distance, norm, 0.8, 0.8, average))
    names = ["first", "second", "distance", "norm", "first_accuracy", "second_accuracy", "average_accuracy"]
    return pd.DataFrame(rows, columns=["column", "seed", *names])


@pytest.mark.parametrize("id_", ["lla/fig6", "lla/fig7"])
def test_averages_gain_and_distances_grow(id_, mostly_undecided):
    assert verdict(id_, snapshots(0.04)) == "holds"
    assert verdict(id_, snapshots(-0.04)) == "fails"
    assert verdict(id_, snapshots(0.04, growth=-1)) == "fails"
    assert verdict(id_, snapshots(0.04, norm=100)) == "fails"
    assert mostly_undecided(lambda draw: verdict(id_, snapshots(0.01, noise=0.05, draw=draw)))
    assert verdict(id_, snapshots(0.04).head(2)) == "undecided"
    assert [len(figure.lines) for figure in BY_ID[id_].show(snapshots(0.04))] == [6, 6]


def test_snapshots_are_of_one_run(tmp_path):
    """The average of a network with itself would gain nothing and be no way off; here they do differ."""
    (planned,) = lla_averages.plan_run(0.0, Options())
    table = lla_averages.pairs(train(planned.config, tmp_path / "run", device="cpu", progress=False))
    places = list(zip(table["first"], table["second"], strict=True))
    assert places == [(2, 3), (2, 4), (2, 5), (3, 4), (3, 5), (4, 5)]
    assert (table["distance"] > 0).all()
    assert (table["distance"] < 2 * table["norm"]).all()
    assert table["average_accuracy"].between(0.1, 1).all()


def recovery(power, noise=0.0, seeds=1, until=3.0, draw=0):
    """Effective rates that come back as theory says with time scaled as x^−power."""
    rng, rows = np.random.default_rng(6 + draw), []
    for x in (1e-4, 2e-4, 4e-4, 8e-4):
        for seed in range(seeds):
            luck = np.exp(noise * rng.standard_normal())
            times = np.linspace(0, until / x, 400)
            ratio = (1 + 99 * np.exp(-4 * (x / 2e-4) ** power * 2e-4 * luck * times)) ** -0.5
            rows += [(f"{x:g}", seed, x, t - 2 / x, 0.05) for t in np.linspace(0, 2 / x, 50, endpoint=False)]
            rows += [(f"{x:g}", seed, x, t, 0.05 * r) for t, r in zip(times, ratio, strict=True)]
    table = pd.DataFrame(rows, columns=["column", "seed", "intrinsic_lr", "step", "effective_lr"])
    return table.assign(change=2 / table["intrinsic_lr"], step=table["step"] + 2 / table["intrinsic_lr"], norm=1.0)


def test_recovery_takes_time_in_inverse_proportion(mostly_undecided):
    assert verdict("lla/fig11", recovery(1.0)) == "holds"
    assert verdict("lla/fig11", recovery(0.5, until=10)) == "fails"
    assert mostly_undecided(lambda draw: verdict("lla/fig11", recovery(1.0, noise=0.4, until=10, draw=draw)))
    assert verdict("lla/fig11", recovery(1.0, until=0.5)) == "undecided"
    times = lla_recovery.recoveries(recovery(1.0))
    expected = [lla_recovery.theory_steps(x) for x in times["intrinsic_lr"]]
    np.testing.assert_allclose(times["steps"], expected, rtol=0.02)
    trace, relation = BY_ID["lla/fig11"].show(recovery(1.0))
    assert trace.lines[-1].dashed
    assert relation.lines[-1].dashed
    np.testing.assert_allclose(
        np.interp(1.0, trace.lines[0].x, trace.lines[0].y), (1 + 99 * np.exp(-4)) ** -0.5, rtol=0.02
    )


def test_a_run_with_no_epoch_gives_no_rows(tmp_path):
    from isogon.lab import Run

    for experiment in TRAINED:
        config = experiment.plan(Options())[0].config
        failed = Run(config, "failed", pd.DataFrame(), folder=tmp_path, error="no")
        assert len(experiment.keep(failed)) == 0
