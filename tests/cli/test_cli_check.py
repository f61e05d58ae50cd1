"""`isogon check` as a user meets it: verdicts, exit codes, refusals."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import textwrap

import pytest

from isogon.cli import main


@pytest.fixture
def isogon(tmp_path, monkeypatch):
    """Run the command line in a folder that holds `mine.py`: (exit code, stdout, stderr)."""
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            import torch
            from torch import nn

            def block(norm="batch", bias=False, width=6, layers=2):
                make = {"batch": nn.BatchNorm2d, "group": lambda c: nn.GroupNorm(2, c)}[norm]
                parts, channels = [], 3
                for _ in range(layers):
                    parts += [nn.Conv2d(channels, width, 3, padding=1, bias=bias), make(width), nn.ReLU()]
                    channels = width
                head = nn.Linear(width, 3).requires_grad_(False)
                last = nn.LayerNorm(width, elementwise_affine=False)
                return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last, head)

            class Text(nn.Module):
                def __init__(self, tied=True):
                    super().__init__()
                    self.embedding = nn.Embedding(4, 6)
                    self.norm = nn.LayerNorm(6, elementwise_affine=False)
                    self.head = nn.Linear(6, 4, bias=False)
                    if tied:
                        self.head.weight = self.embedding.weight

                def forward(self, tokens):
                    return self.head(self.norm(self.embedding(tokens)))

            class Odd(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.weight = nn.Parameter(torch.randn(4, 4))

                def forward(self, x):
                    return torch.linalg.matrix_exp(self.weight) @ x

            class Branches(nn.Module):
                def forward(self, x):
                    return x if x.sum() > 0 else -x

            ready = block()
            number = 3

            def broken():
                raise RuntimeError("no weights today")
            """
        )
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)

    def run(*arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
            main(["check", *arguments])
        return stop.value.code, out.getvalue(), err.getvalue()

    yield run
    sys.modules.pop("mine", None)


IMAGE = ("--input", "4,3,8,8")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("mine:block", *IMAGE), 0, "invariant"),
        (("mine:block", *IMAGE, "--set", "bias=True"), 0, "invariant"),
        (("mine:block", *IMAGE, "--set", "bias=True", "--set", "norm=group"), 1, "bias"),
        (("mine:block", *IMAGE, "--eval"), 1, "eval"),
        (("mine:ready", *IMAGE), 0, "invariant"),
        (("mine:Text", "--input", "2,5", "--dtype", "int64"), 1, "embedding.weight"),
        (("mine:Odd", "--input", "4,4"), 2, "unknown"),
        (("mine:block", *IMAGE, "--no-verify"), 0, "invariant"),
    ],
)
def test_verdicts_and_exit_codes(isogon, arguments, code, message):
    got, out, err = isogon(*arguments)
    assert (got, err) == (code, "")
    assert message in out


def test_json_is_the_scale_map(isogon):
    code, out, _ = isogon("mine:block", *IMAGE, "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["is_invariant"] is True
    assert {p["name"] for p in answer["parameters"]} >= {"0.weight", "1.weight"}
    assert "0.weight" in answer["invariant"]
    assert answer["disagreements"] == []


def test_symmetries_of_the_same_model(isogon):
    text = ("mine:Text", "--input", "2,5", "--dtype", "int64", "--set", "tied=False", "--symmetries")
    code, out, err = isogon(*text)
    assert (code, err) == (0, "")
    assert "embedding.weight · c" in out
    assert "verified numerically" in out
    code, out, _ = isogon(*text, "--json", "--no-verify")
    answer = json.loads(out)
    assert code == 0
    assert answer["basis"] == [{"embedding.weight": "1"}]
    assert answer["verification"] == "not verified numerically"
    code, out, _ = isogon(*text, "--explain", "head.weight")
    assert code == 0
    assert "the output of head" in out
    code, out, _ = isogon(*text, "--explain", "head.weight", "--json", "--no-verify", "--largest-eps", "1e-4")
    assert "the output of head" in json.loads(out)["explained"]["head.weight"]
    code, out, err = isogon(*text, "--explain", "haed.weight")
    assert code == 2
    assert "did you mean head.weight" in err


def test_one_parameter_is_explained(isogon):
    code, out, _ = isogon("mine:block", *IMAGE, "--set", "bias=True", "--set", "norm=group", "--explain", "3.bias")
    assert code == 1
    assert "3.bias" in out
    assert len(out.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("mine:block",), "--input must be given"),
        (("mine", *IMAGE), "model must be package.module:factory or file.py:factory, got 'mine'"),
        (("nowhere:block", *IMAGE), "model must be importable from the current folder"),
        (("mine:nothing", *IMAGE), "has no attribute 'nothing'"),
        (("mine:number", *IMAGE), "cannot be called"),
        (("mine:broken", *IMAGE), "no weights today"),
        (("mine:block", *IMAGE, "--set", "depth=3"), "it takes (norm='batch', bias=False, width=6, layers=2)"),
        (("mine:ready", *IMAGE, "--set", "bias=True"), "left out for a ready-made module"),
        (("mine:block", "--input", "a,b"), "--input must be whole numbers with commas, got 'a,b'"),
        (("mine:block", "--input", "0,3"), "--input must be a whole number"),
        (("mine:block", "--input", "2,3,8,8", "--dtype", "float33"), "--dtype must be a type that torch knows"),
        (("mine:block", *IMAGE, "--set", "bias"), "--set must be name=value"),
        (("mine:block", "--input", "4,5"), "torch.export cannot export Sequential"),
        (("mine:Branches", "--input", "4,5"), "cannot export Branches"),
        (("mine:block", *IMAGE, "--explain", "0.wieght"), "did you mean 0.weight"),
    ],
)
def test_bad_input_ends_with_code_2_and_one_sentence(isogon, arguments, sentence):
    code, out, err = isogon(*arguments)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert out == ""


def test_help_shows_an_example_that_works(isogon, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERMINAL_WIDTH", "300")
    code, out, _ = isogon("--help")
    assert code == 0
    (line,) = (line.strip() for line in out.splitlines() if line.strip().startswith("isogon check isogon"))
    # Each weight of this larger network would be measured, which the small ones above are.
    code, out, err = isogon(*line.removeprefix("isogon check ").split(), "--no-verify")
    assert (code, err) == (0, "")
    assert "jointly (all" in out
