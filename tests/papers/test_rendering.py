"""Exhibits as pages, Markdown, LaTeX and pictures: every number is there, and no text breaks any of them."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pandas as pd
import pytest

from isogon.papers.reproduction._experiment import Judgement, Options
from isogon.papers.reproduction._provenance import command_of, place_of
from isogon.papers.reproduction._registry import COMMITTED, experiments
from isogon.papers.reproduction._reproduction_page import document_text, main
from isogon.papers.reproduction._results import Reproduction, read_reproduction, scales_in
from isogon.papers.reproduction._runner import reproduce
from isogon.report.exhibit._cells import cell_texts
from isogon.report.exhibit._exhibits import Cell, FigureExhibit, Line, Showing, TableExhibit
from isogon.report.exhibit._figures import line_colours, plotly_panels
from isogon.report.exhibit._files import write_exhibits
from isogon.report.exhibit._page import exhibit_page_text
from isogon.report.exhibit._text import latex_table, latex_text, markdown_table, markdown_text

CHROMIUM = shutil.which("chromium")
HOSTILE = "<img src=x onerror=alert(1)></script>|*a*_b_ `c` $d$ \\input{e} %& # ~^ [x](http://y)\n| z"
ROWS, COLUMNS = ("0.1", "0.2", "0.4"), ("3125", "6250")
TABLE = TableExhibit(
    "Accuracy",
    "lr",
    "N",
    ROWS,
    COLUMNS,
    ours={
        ("0.1", "3125"): Cell(80.125, 0.5, 3, 3),
        ("0.2", "3125"): Cell(81.25, math.nan, 1, 3),
        ("0.4", "3125"): Cell(math.nan, math.nan, 0, 3, failed=1),
        ("0.1", "6250"): Cell(85.0, 0.25, 3, 3),
    },
    printed={("0.1", "3125"): 80.5, ("0.2", "3125"): 81.0, ("0.4", "6250"): 88.0},
    marked=frozenset({("0.2", "3125")}),
)
FIGURE = FigureExhibit(
    "Angle",
    "epoch",
    "angle",
    [Line("good", [0, 1, 2], [1.0, math.nan, 0.25]), Line("theory", [0, 2], [1, 0.5], dashed=True)],
    log_y=True,
)


def showing(*exhibits, text="A text"):
    facts = {"title": text, "claim": text, "sentence": text, "notes": [text], "made": {text: text}}
    return Showing(id="yun/toy", verdict="holds", exhibits=exhibits, numbers={text: 0.5}, **facts)


def hostile():
    ours = {(HOSTILE, HOSTILE): Cell(1.0, 0.1, 1, 2)}
    table = TableExhibit(HOSTILE, HOSTILE, HOSTILE, [HOSTILE], [HOSTILE], ours)
    figure = FigureExhibit(HOSTILE, HOSTILE, HOSTILE, [Line(HOSTILE, [0, 1], [1, 2])])
    return showing(table, figure, text=HOSTILE)


class Page(HTMLParser):
    """Tags with their attributes, and the texts outside of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.within = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.within.append(tag)

    def handle_endtag(self, tag):
        if tag in self.within:
            while self.within.pop() != tag:
                pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self.within):
            self.texts.append(data)


def markdown_cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_a_cell_tells_ours_printed_difference_and_what_was_lost():
    texts = cell_texts(TABLE)
    assert texts["0.1", "3125"].lines == ["80.12 ± 0.50", "printed 80.50 (−0.38)"]
    assert texts["0.2", "3125"].lines == ["81.25", "2 of 3 diverged", "printed 81.00 (+0.25)"]
    assert texts["0.4", "3125"].lines == ["2 of 3 diverged, 1 of 3 failed"]
    assert texts["0.4", "6250"].lines == ["printed 88.00"]
    assert texts["0.2", "6250"].lines == []
    assert {place for place, cell in texts.items() if cell.marked} == TABLE.marked


@pytest.mark.parametrize(("best", "place"), [("highest", ("0.2", "3125")), ("lowest", ("0.1", "3125")), (None, None)])
def test_the_best_of_a_column_is_the_highest_or_the_lowest(best, place):
    table = TableExhibit("T", "r", "c", ROWS, COLUMNS, TABLE.ours, best=best)
    best = [at for at, cell in cell_texts(table).items() if cell.best]
    assert best == ([place] if place else []), "and a single number is not the best of anything"


def test_every_form_has_every_cell_the_best_bold_and_the_marked_told():
    lines = [line for cell in cell_texts(TABLE).values() for line in cell.lines]
    page = Page(exhibit_page_text(showing(TABLE)))
    for line in lines:
        assert line in page.texts
    assert [attributes for tag, attributes in page.tags if tag == "td" and attributes] == [{"class": "marked"}]
    assert exhibit_page_text(showing(TABLE)).count("<b>81.25</b>") == 1

    rows = [markdown_cells(line) for line in markdown_table(TABLE).splitlines()[2:]]
    assert rows[0] == ["lr \\\\ N", "3125", "6250"]
    assert rows[2] == ["0.1", "80.12 ± 0.50<br>printed 80.50 (−0.38)", "85.00 ± 0.25"]
    assert rows[3] == ["0.2", "▸ **81.25**<br>2 of 3 diverged<br>printed 81.00 (+0.25)", ""]

    latex = latex_table(TABLE)
    assert r"80.12 $\pm$ 0.50\\\scriptsize printed 80.50 ($-$0.38)" in latex
    assert latex.count(r"\cellcolor") == 1
    assert r"\cellcolor{yellow!40}\begin{tabular}[t]{@{}r@{}}\textbf{81.25}" in latex


def test_no_text_is_obeyed_by_the_page():
    page, plain = (Page(exhibit_page_text(text)) for text in (hostile(), showing(TABLE, FIGURE)))
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in plain.tags}
    flat = " ".join(" ".join(page.texts).split())
    # Title and heading, claim, sentence, number, the table's five, the note and the fact's two.
    assert flat.count(" ".join(HOSTILE.split())) >= 11


def test_no_text_is_obeyed_by_plotly():
    text = exhibit_page_text(hostile())
    content = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)[1]
    (figure,) = json.loads(content)["figures"].values()
    shown = [figure["data"][0]["name"], figure["layout"]["title"]["text"], figure["layout"]["xaxis"]["title"]["text"]]
    assert not any("<" in text for text in shown)


def test_no_text_is_obeyed_by_markdown():
    table = markdown_table(hostile().tables[0])
    lines = table.splitlines()
    assert [len(markdown_cells(line)) for line in lines[2:]] == [2, 2, 2], "neither bar nor line break adds a cell"
    whole = markdown_text(hostile())
    assert not re.search(r"(?<!\\)[<`$](?!br>)|(?<![\\*])\*[^*]|(?<!\\)\[", re.sub(r"\\\\", "", whole))


def test_no_text_is_obeyed_by_latex():
    latex = latex_text(hostile().tables)
    rest = latex.replace(r"\textbackslash{}input\{e\}", "")
    assert r"\input" not in rest
    assert r"\%\& \#" in latex
    assert r"\textasciitilde{}\textasciicircum{}" in latex
    for line in latex.splitlines()[2:]:
        bare = re.sub(r"\\.", "", line)
        assert "%" not in bare
        assert bare.count("{") == bare.count("}")


def test_the_page_asks_nothing_of_the_network():
    text = exhibit_page_text(showing(TABLE, FIGURE))
    page = Page(text)
    assert not any({"src", "href", "action", "data"} & set(attributes) for _, attributes in page.tags)
    (policy,) = (a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert len(exhibit_page_text(showing(TABLE))) < 20_000, "a page without figures does without Plotly"


def test_lines_have_one_colour_for_a_name_and_gaps_where_there_is_no_number():
    other = FigureExhibit("B", "x", "y", [Line("bad", [1], [2]), Line("good", [0], [1], dashed=True)])
    first, second = plotly_panels([FIGURE, other])
    good, theory = first["data"]
    assert good["y"] == [1.0, None, 0.25]
    assert (good["line"]["dash"], theory["line"]["dash"]) == ("solid", "dash")
    assert second["data"][1]["line"]["color"] == good["line"]["color"]
    assert len(set(line_colours([FIGURE, other]).values())) == 3


def test_panels_that_share_no_name_have_palettes_of_their_own():
    many = FigureExhibit("many", "x", "y", [Line(f"layer {i}", [0, 1], [1, 2]) for i in range(20)])
    two = FigureExhibit("two", "x", "y", [Line("one", [0, 1], [1, 2]), Line("other", [0, 1], [1, 2])])
    link = FigureExhibit("link", "x", "y", [Line("other", [0, 1], [1, 2]), Line("layer 3", [0, 1], [1, 2])])
    apart, alone = line_colours([many, two]), line_colours([two])
    assert {name: apart[name] for name in alone} == alone
    assert len(set(line_colours([many, two, link]).values())) == 22, "a third panel shows lines of both"


def test_axes_are_as_the_panel_says():
    first = plotly_panels([FIGURE])[0]
    assert (first["layout"]["yaxis"]["type"], first["layout"]["xaxis"]["type"]) == ("log", "linear")


def test_dashes_tell_lines_of_theory_apart():
    names = ["measured", "√k", "k", "measured"]
    lines = [Line(name, [0, 1], [1, 2], dashed=place > 0) for place, name in enumerate(names)]
    panels = plotly_panels([FigureExhibit("A", "x", "y", lines), FigureExhibit("B", "x", "y", lines[2:3])])
    assert [trace["line"]["dash"] for trace in panels[0]["data"]] == ["solid", "dash", "dot", "dash"]
    assert panels[1]["data"][0]["line"]["dash"] == "dot", "the same in all panels"


def test_long_lines_are_thinned_and_keep_their_ends():
    (panel,) = plotly_panels([FigureExhibit("A", "x", "y", [Line("long", range(100_001), range(100_001))])])
    x = panel["data"][0]["x"]
    assert len(x) <= 2001
    assert (x[0], x[-1]) == (0, 100_000)


def test_all_forms_are_written_and_a_missing_extra_is_told(tmp_path, monkeypatch):
    messages = []
    empty = FigureExhibit("Nothing yet", "x", "y", [Line("none", [], [])], log_x=True, log_y=True)
    toy = showing(TABLE, *[FIGURE] * 3, empty)
    written = write_exhibits(toy, tmp_path, "yun-toy.tiny", tell=messages.append)
    assert sorted(file.name for file in written) == [f"yun-toy.tiny.{kind}" for kind in ("html", "md", "png", "tex")]
    assert (tmp_path / "yun-toy.tiny.png").read_bytes().startswith(b"\x89PNG")
    assert messages == []
    for name in ("matplotlib.figure", "plotly.offline"):
        monkeypatch.setitem(sys.modules, name, None)
    written = write_exhibits(toy, tmp_path / "poor", "yun-toy.tiny", tell=messages.append)
    assert sorted(file.suffix for file in written) == [".md", ".tex"]
    assert [sentence.split()[0] for sentence in messages] == ["plotly", "matplotlib"]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")
def test_a_browser_draws_the_figures(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(exhibit_page_text(showing(TABLE, FIGURE, FIGURE)), encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.count('class="legendtext"') == 4
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_document_has_a_row_for_every_experiment(toys, tmp_path):
    here = {"engine": "local", "device": "cpu", "progress": False}

    def judge(rows):
        return Judgement("holds", f"{len(rows)} rows.", {"rows": len(rows), "error of one seed": math.nan})

    toys["la/computed"] = replace(toys["la/computed"], judge=judge)
    (reproduction,) = reproduce([toys["la/computed"]], out=tmp_path, **here)
    text = document_text(tmp_path / "results", toys)
    rows = {cells[0]: cells for cells in map(markdown_cells, text.splitlines()) if len(cells) == 8}
    assert rows.keys() >= set(toys)
    assert rows["yun/table"][2] == "not run"
    row = rows["la/computed"]
    assert row[2] == "**holds**: 2 rows."
    assert row[3:5] == ["tiny", "rows 2"]
    assert row[6] == reproduction.made["date"]
    assert row[7] == f"`{command_of('la/computed', reproduction.options, engine='local', device='cpu')}`"
    assert "3 experiments: 1 hold, 2 not run." in text


def test_the_document_shows_the_tables_of_what_was_run(toys, tmp_path):
    made = {"command": "isogon", "date": "2026-01-01", "hardware": ["GPU"], "versions": ["torch 2"], "seeds": [0]}
    made |= {"runs": {"planned": 1, "finished": 1}, "images": 5, "seconds": 1.0, "errors": {}}
    rows = pd.DataFrame({"row": ["0.01"], "status": ["finished"], "accuracy": [0.5]})
    reproduction = Reproduction(toys["yun/table"], Options(), rows, made)
    reproduction.write(tmp_path)
    text = document_text(tmp_path, toys)
    assert markdown_table(reproduction.exhibits[0]) in text
    assert '<a id="yun-table-tiny"></a>' in text
    assert "(#yun-table-tiny)" in text
    assert read_reproduction(tmp_path, toys["yun/table"], "tiny").made == made


def test_the_committed_document_is_what_the_committed_results_say(root):
    assert (root / "docs" / "reproduction.md").read_text(encoding="utf-8") == document_text(COMMITTED)


def test_committed_verdicts_are_those_of_the_committed_rows():
    for identity, experiment in experiments().items():
        for scale in scales_in(COMMITTED, identity):
            reproduction = read_reproduction(COMMITTED, experiment, scale)
            saved = json.loads((COMMITTED / f"{reproduction.stem}.json").read_text(encoding="utf-8"))
            made = json.loads(json.dumps(reproduction.to_dict()))
            numbers, kept_numbers = made.pop("numbers"), saved.pop("numbers")
            assert made == saved, reproduction.stem
            assert numbers.keys() == kept_numbers.keys()
            for name, number in numbers.items():
                # Other machines add in another order. What is not known is None.
                expected = kept_numbers[name]
                assert number == (expected if expected is None else pytest.approx(expected, rel=1e-9)), (
                    reproduction.stem
                )


def test_committed_trainings_are_those_of_the_plan():
    """Else the next run would not know what it adds to, and a folder of finished runs would be trained again."""
    for identity, experiment in experiments().items():
        for scale in scales_in(COMMITTED, identity):
            sources = [
                source for source in read_reproduction(COMMITTED, experiment, scale).sources if source.is_training
            ]
            seeds = 1 + max((source.seed for source in sources), default=0)
            planned = {place_of(one.labels): one.config.name for one in experiment.plan(Options(scale, seeds=seeds))}
            for source in sources:
                assert planned[source.place] == source.key, (
                    f"{source.key} of {identity}: does the key count a new field that has its default?"
                )


def test_the_document_is_refused_in_one_sentence(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    (tmp_path / "yun-fig3.small.json").touch()
    assert main([str(tmp_path), str(tmp_path / "page.md")]) == 2
    usage, refusal = capsys.readouterr().err.splitlines()
    assert usage.startswith("Usage: ")
    assert "yun-fig3.small" in refusal
    assert not (tmp_path / "page.md").exists()
