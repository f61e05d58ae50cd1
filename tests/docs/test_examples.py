"""The scripts in docs/examples, run as a reader runs them: what each shows is what the page about it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import isogon.cli
from isogon.dynamics import findings, read, read_epochs, read_run
from isogon.recipe import Recipe

#: script → the steps at which its learning rate falls, its last step, and the packages it needs
SCRIPTS = {
    "watch_a_run": ([1000, 1600], 1999, ()),
    "watch_lightning": ([300, 600], 799, ("lightning",)),
    "watch_transformers": ([300, 600], 799, ("transformers", "accelerate")),
}


# The callbacks themselves are tested in tests/integrations; these take a quarter of a minute each.
MARKED = [pytest.param(name, marks=[] if name == "watch_a_run" else pytest.mark.slow) for name in SCRIPTS]


@pytest.fixture(scope="module", params=MARKED)
def example(request, root, tmp_path_factory):
    """(the script's name, its run's folder, what it printed)."""
    for package in SCRIPTS[request.param][2]:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    place = tmp_path_factory.mktemp(request.param)
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, root / "docs" / "examples" / f"{request.param}.py", "run"],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert [file.name for file in place.iterdir()] == ["run"], "nothing is left outside of its folder"
    return request.param, place / "run", done.stdout


def root_mean_square(values) -> float:
    return float(np.sqrt((values**2).mean()))


def test_the_drop_the_relaxation_and_the_finding_are_there(example, capsys):
    name, folder, printed = example
    (first, second), last, _ = SCRIPTS[name]
    records = read(folder)
    joint = records[records.layer == "all"].set_index("step")
    assert joint.index.max() == last
    assert joint.index[joint.lr.diff() < 0].tolist() == [first, second]
    assert joint.in_equilibrium.loc[first - 1]
    assert not joint.in_equilibrium.loc[first:].any()
    # After a drop by κ the angle is √κ below its new law and creeps back, with a norm that shrinks.
    after = joint.loc[first : second - 1]
    early, late = (root_mean_square(part.step_angle) for part in (after.iloc[:10], after.iloc[-10:]))
    assert early < 0.5 * after.predicted_step_angle.iloc[0]
    assert late > 1.08 * early
    assert after.norm.iloc[-1] < 0.95 * after.norm.iloc[0]

    all_findings = findings(records, Recipe(**read_run(folder)["recipe"]))
    (finding,) = (each for each in all_findings if each.name == "early_decay")
    assert finding.numbers["step"] == second
    assert finding.advice in printed
    assert len(read_epochs(folder).loss) == joint.epoch.max() + 1

    with pytest.raises(SystemExit) as stop:
        isogon.cli.main(["report", str(folder)])
    assert stop.value.code == 0
    assert finding.advice in capsys.readouterr().out
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert finding.advice in page
    assert f"lr ÷ {finding.numbers['factor']:.3g}" in page


def test_the_table_it_prints_is_the_record(example):
    _, folder, printed = example
    joint = read(folder).query("layer == 'all'").groupby("epoch").last()
    rows = re.findall(r"^(\d+) +([\d.]+) +([\d.]+) ", printed, re.MULTILINE)
    assert [int(epoch) for epoch, _, _ in rows] == joint.index.tolist()
    for epoch, lr, norm in rows:
        assert (float(lr), float(norm)) == (pytest.approx(joint.lr[int(epoch)]), round(joint.norm[int(epoch)], 4))


@pytest.mark.slow
def test_a_sharded_run_is_measured_as_a_whole(root, tmp_path):
    """As the page on clusters calls it, with two processes."""
    script = str(root / "docs" / "examples" / "watch_fsdp.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, script, "run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    records = read(tmp_path / "run")
    stream = records.query("layer == 'group:residual'").groupby("epoch").last()
    assert len(stream) == 6
    assert stream.predicted_epoch_angle.notna().all()
    assert f"{stream.norm.iloc[-1]:.4f}" in done.stdout


@pytest.mark.parametrize("example", ["watch_a_run"], indirect=True)
def test_step_angles_agree_with_theory_in_equilibrium(example):
    name, folder, _ = example
    first = SCRIPTS[name][0][0]
    records = read(folder)
    settled = records[(records.step >= first / 2) & (records.step < first)]
    assert settled.in_equilibrium.mean() > 0.9
    for layer, rows in settled.groupby("layer"):
        ratio = root_mean_square(rows.step_angle) / rows.predicted_step_angle.iloc[0]
        assert ratio == pytest.approx(1, abs=0.1), layer
