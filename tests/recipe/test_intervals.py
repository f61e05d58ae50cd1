"""The intervals that a transfer prints, against what Yun et al. printed; StepLaw's sweeps where they are at hand."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import pytest

from isogon import Recipe
from isogon.recipe import published_recipes

_FILE = Path(__file__).parents[2] / "benchmarks" / "rules.py"
_SPEC = importlib.util.spec_from_file_location("rules", _FILE)
rules = importlib.util.module_from_spec(_SPEC)
sys.modules["rules"] = rules
_SPEC.loader.exec_module(rules)


def covered(tables, solve, kind):
    """Whether each change between two columns of a table has its best inside the interval."""
    return [rules.inside(old, new, rules.transfer_of(solve, "sgd", name)(old, new)) for name, sweeps in tables.items()
            for old, new in rules.changes([sweeps], among=rules.KINDS[kind])]  # fmt: skip


@pytest.mark.parametrize("solve", ["weight_decay", "lr"])
@pytest.mark.parametrize(("kind", "count"), [("data", 112), ("batch", 44)])
def test_nine_tenths_of_yuns_changes_lie_in_the_interval(solve, kind, count):
    tables = {name: sweeps for name, sweeps in rules.yun_tables(solve).items() if rules.kind_of(sweeps) == kind}
    hits = covered({name: sweeps for name, sweeps in tables.items() if name != "4"}, solve, kind)
    assert len(hits) >= count
    assert sum(hits) / len(hits) >= 0.9
    if kind == "batch":  # plain SGD at large batches, which has an interval of its own
        hits = covered({"4": tables["4"]}, solve, kind)
        assert sum(hits) / len(hits) >= 0.9


def test_without_the_drift_fewer_would():
    """What the shift of 0.3 octaves per octave is for: a factor 2 round the rule holds three quarters."""
    tables = [sweeps for sweeps in rules.yun_tables("weight_decay").values() if rules.kind_of(sweeps) == "data"]
    misses = rules.score(
        rules.Rule("constant F", batch=1, data=-1), list(rules.changes(tables, among=rules.data_changes))
    )
    assert misses.summary()["within_2"] < 0.85


def test_steplaws_language_models(steplaw):
    """One epoch by the learning rate: the interval is wide, as the evidence is against it."""
    sweeps = rules.steplaw_sweeps(steplaw / "steplaw_dense.csv")
    for kind in ("data", "batch"):
        pairs = list(rules.changes(rules.by_size(sweeps), among=rules.KINDS[kind]))
        hits = [rules.inside(old, new, rules.transfer_of("lr", "adamw", "")(old, new)) for old, new in pairs]
        assert sum(hits) / len(hits) >= 0.9
        # And not only on average: also where data or batch change by much.
        grown = [abs(math.log2(getattr(new.place, kind) / getattr(old.place, kind))) for old, new in pairs]
        for octave in range(5):
            far = [hit for hit, octaves in zip(hits, grown, strict=True) if int(octaves) == octave]
            assert len(far) < 10 or sum(far) / len(far) >= 0.89


@pytest.fixture(scope="module")
def steplaw(root):
    folder = root.parent / "shared" / "data"
    if not (folder / "steplaw_dense.csv").exists():
        pytest.skip("StepLaw's table is not beside the project")
    return folder


def test_the_critical_batch_is_fitted_to_steplaw(steplaw):
    from isogon.theory import horizon

    fitted = rules.fit_critical_batch(rules.steplaw_sweeps(steplaw / "steplaw_dense.csv"))
    for tokens in (4e9, 1e10, 1e11):
        assert horizon.critical_batch(tokens) == pytest.approx(fitted(tokens), rel=0.03)


def test_an_interval_holds_the_rule_and_mirrors_the_way_back():
    recipe = Recipe(lr=0.1, weight_decay=1e-3, batch_size=128, samples=10_000, epochs=100)
    for changes in ({"samples": "x16"}, {"batch": "x8"}, {"batch": "x4", "samples": "x0.25"}, {"lr": "x3"}):
        moved = recipe.transfer(**changes)
        low, high = moved.interval
        assert low * 1.4 < moved.recipe.weight_decay < high / 1.4
        back = moved.recipe.transfer(samples=recipe.samples, batch=recipe.batch_size, lr=recipe.lr)
        widths = [math.log(end[1] / end[0]) for end in (moved.interval, back.interval)]
        assert widths[0] == pytest.approx(widths[1])


def test_published_recipes_are_sorted_and_in_a_narrow_band():
    """What makes 'is mine normal?' a question with an answer: from scratch all turn 3 to 100 radians' worth."""
    entries = published_recipes()
    assert len(entries) >= 20
    assert [entry.turning for entry in entries] == sorted(entry.turning for entry in entries)
    assert all(entry.source for entry in entries)
    assert len({entry.name for entry in entries}) == len(entries)
    long = [entry for entry in entries if entry.turning > 1]
    assert len(long) >= 0.8 * len(entries)
    assert max(entry.turning for entry in long) < 100
