"""`isogon report` as a user meets it."""

from __future__ import annotations

import shutil

import pytest
import typer

import isogon.cli
from isogon.cli import _report_command as report_command


@pytest.fixture
def isogon_report(monkeypatch, capsys):
    """Run the command through the command line's own entry point: (exit code, stdout, stderr)."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    report_command.add_to(app)
    monkeypatch.setattr(isogon.cli, "app", app)

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            isogon.cli.main(["report", *map(str, arguments)])
        return stop.value.code, *capsys.readouterr()

    return call


def test_a_run_becomes_a_page_and_a_picture(run_folder, tmp_path, isogon_report):
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    code, out, err = isogon_report(run_folder, "--out", page, "--png", picture, "--layer", "all")
    assert (code, err) == (0, "")
    assert str(page) in out
    assert str(picture) in out
    assert "warning: The learning rate fell by 10 at step 40" in out
    text = page.read_text(encoding="utf-8")
    assert "body.1.conv.weight</label>" not in text
    assert "all</label>" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_page_lies_in_the_runs_folder_unless_told(run_folder, tmp_path, isogon_report):
    copy = shutil.copytree(run_folder, tmp_path / "copy")
    assert isogon_report(copy)[0] == 0
    assert isogon_report(copy / "records.parquet")[0] == 0
    assert {file.name for file in copy.glob("*.html")} == {"report.html", "records.html"}


def test_bad_calls_end_with_2_and_one_sentence(run_folder, tmp_path, isogon_report):
    (tmp_path / "empty").mkdir()
    (tmp_path / "noise.parquet").write_bytes(b"noise")
    page = ["--out", tmp_path / "page.html"]
    bad = [
        [tmp_path / "nowhere"],
        [tmp_path / "empty"],
        [tmp_path / "noise.parquet"],
        [run_folder, *page, "--layer", "nowhere"],
        [run_folder, "--out", tmp_path / "page.png"],
        [run_folder, *page, "--png", tmp_path / "page.gif"],
        [run_folder, *page, "--png", tmp_path / "nowhere" / "page.png"],
        [],
    ]
    for arguments in bad:
        code, out, err = isogon_report(*arguments)
        assert (code, out) == (2, ""), arguments
        assert err.count("\n") == 1, arguments
        assert "Traceback" not in err
    assert not list(tmp_path.rglob("*.html")), "a refused call leaves nothing behind"


def test_a_terminal_is_not_given_orders(records, run_folder, tmp_path, isogon_report):
    copy = shutil.copytree(run_folder, tmp_path / "copy")
    rows = records.replace({"layer": {"stem.conv.weight": "\x1b[2Jgone"}})
    rows.loc[rows.layer == "\x1b[2Jgone", "step_angle"] = 0.0
    rows.to_parquet(copy / "records.parquet")
    code, out, _ = isogon_report(copy)
    assert code == 0
    assert "[2Jgone turns by 0 rad" in out
    assert "\x1b" not in out
