"""The page about what was reproduced, made by `python -m isogon.papers.reproduction results docs/reproduction.md`.

One row per experiment, run or not; below, the tables and figures of those that were run.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from isogon.errors import IsogonError
from isogon.files import write_whole
from isogon.papers.reproduction._experiment import Experiment, Verdict
from isogon.papers.reproduction._registry import PAPERS, experiments
from isogon.papers.reproduction._results import Reproduction, provenance_texts, read_reproduction, scales_in
from isogon.report import LEGEND, MARK, Showing, draw_panels, escape_markdown, markdown_table

#: folder of the figures, beside the document
IMAGES = "images"

_INTRODUCTION = """# What was reproduced

Every table and figure of the four papers that can be worked out, with our verdict on its claim: *holds*, *fails*,
*undecided* (the numbers do not tell, for instance because seeds differ by more than the effect) or *not run*. The scale
`paper` is the printed set-up, `small` a shortened one, `tiny` only shows that the machinery works. The command of a row
makes its result again; this page is made from the files in `results` by `python -m isogon.papers.reproduction`, and
tables and figures stand below."""
_COUNTED: Mapping[Verdict, str] = {"holds": "hold", "fails": "fail", "undecided": "undecided", "not run": "not run"}
_HEAD = "| experiment | what | verdict | scale | numbers | hardware | date | command |\n" + "|---" * 8 + "|"


def document_text(results: Path, registry: Mapping[str, Experiment] | None = None) -> str:
    """The whole page for the results in a folder."""
    by_id = experiments() if registry is None else registry
    reproductions = {identity: _read_all(results, experiment) for identity, experiment in by_id.items()}
    every = [reproduction for of_experiment in reproductions.values() for reproduction in of_experiment]
    verdicts = Counter(reproduction.judgement.verdict for reproduction in every)
    verdicts["not run"] += sum(not of_experiment for of_experiment in reproductions.values())
    counts = ", ".join(f"{verdicts[verdict]} {text}" for verdict, text in _COUNTED.items() if verdicts[verdict])
    parts = [_INTRODUCTION, f"{len(by_id)} experiments: {counts}."]
    for paper, name in PAPERS.items():
        of_paper = [experiment for identity, experiment in by_id.items() if identity.startswith(f"{paper}/")]
        if of_paper:
            rows = [row for experiment in of_paper for row in _table_rows(experiment, reproductions[experiment.id])]
            parts.append(f"## {paper}: {name}\n\n" + "\n".join([_HEAD, *rows]))
    parts += [_section(reproduction) for reproduction in every if reproduction.exhibits]
    return "\n\n".join(parts) + "\n"


def write_document(results: Path, target: Path) -> None:
    """Write the page, and the figures of the results beside it."""
    for experiment in experiments().values():
        for reproduction in _read_all(results, experiment):
            showing = reproduction.showing
            if showing.figures:
                (target.parent / IMAGES).mkdir(parents=True, exist_ok=True)
                draw_panels(showing.figures, target.parent / _picture(reproduction), title=showing.title)
    write_whole(target, document_text(results))


def _read_all(results: Path, experiment: Experiment) -> list[Reproduction]:
    return [read_reproduction(results, experiment, scale) for scale in scales_in(results, experiment.id)]


def _table_rows(experiment: Experiment, reproductions: Sequence[Reproduction]) -> list[str]:
    what = escape_markdown(experiment.title)
    if not reproductions:
        reason = "" if experiment.unavailable is None else f": {escape_markdown(experiment.unavailable)}"
        command = f"`isogon reproduce {experiment.id} --scale paper`"
        return [f"| {experiment.id} | {what} | not run{reason} |  |  |  |  | {command} |"]
    return [_table_row(reproduction, what) for reproduction in reproductions]


def _table_row(reproduction: Reproduction, what: str) -> str:
    judgement, made = reproduction.judgement, provenance_texts(reproduction.made)
    finite = {name: value for name, value in judgement.numbers.items() if math.isfinite(value)}
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in finite.items())
    identity = reproduction.experiment.id
    linked = f"[{identity}](#{_anchor(reproduction)})" if reproduction.exhibits else identity
    cells = (
        linked,
        what,
        f"**{judgement.verdict}**: {escape_markdown(judgement.sentence)}",
        reproduction.options.scale,
        escape_markdown(numbers),
        escape_markdown(made["hardware"]),
        made["date"],
        f"`{made['command']}`",
    )
    return f"| {' | '.join(cells)} |"


def _section(reproduction: Reproduction) -> str:
    showing = reproduction.showing
    parts = [
        f'<a id="{_anchor(reproduction)}"></a>',
        f"### {escape_markdown(f'{showing.id} ({reproduction.options.scale})')}",
        f"Claim: {escape_markdown(showing.claim)}",
        f"**{showing.verdict}**: {escape_markdown(showing.sentence)}",
        *(markdown_table(table) for table in showing.tables),
        LEGEND.replace("Marked:", f"Marked {MARK}:") if showing.tables else "",
        f"![{escape_markdown(showing.title)}]({_picture(reproduction)})" if showing.figures else "",
        _facts(showing),
    ]
    return "\n\n".join(part for part in parts if part)


def _facts(showing: Showing) -> str:
    facts = [*showing.notes, *(f"{name}: {value}" for name, value in showing.made.items())]
    return "\n".join(f"- {escape_markdown(fact)}" for fact in facts)


def _anchor(reproduction: Reproduction) -> str:
    return reproduction.stem.replace(".", "-")


def _picture(reproduction: Reproduction) -> str:
    return f"{IMAGES}/{reproduction.stem}.png"


def main(arguments: Sequence[str]) -> int:
    """Write the page; if that fails, print one sentence and return 2."""
    if len(arguments) != 2:
        print("Usage: python -m isogon.papers.reproduction RESULTS FILE.md", file=sys.stderr)
        return 2
    try:
        write_document(Path(arguments[0]), Path(arguments[1]))
    except (IsogonError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0
