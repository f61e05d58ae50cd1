"""`isogon search`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isogon.cli._options import check_engine
from isogon.cli._printing import print_json
from isogon.errors import ArgumentError, IsogonError, MissingExtraError

if TYPE_CHECKING:
    from isogon.search import Outcome

PAGE = "report.html"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("search")(search)


def search(
    study: Annotated[
        Path | None, typer.Argument(metavar="STUDY.toml", help="The study file; --init makes one.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the study (default: STUDY-search in this folder).")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="local (one training in a process), lanes (several) or ray (on a Ray cluster); else the study's."
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes; else the study's.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget all trials in the folder and start again.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Try failed trials again.")] = False,
    init: Annotated[bool, typer.Option("--init", help="Print a study file to start from.")] = False,
    status: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Show how far the study in this folder is, also while it runs.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Find the weight decay or learning rate of a long run on a fraction of its data.

    The trials are kept, with a page about them, in a folder. After a stop the same command resumes there.

    Example, which takes a few minutes on two cores:

    [bold]isogon search --init > study.toml && isogon search study.toml[/bold]
    """
    if sum((study is not None, init, status is not None)) != 1:
        raise IsogonError("isogon search needs one of a study file, --init and --status: see isogon search --help.")
    if init:
        from isogon.search import study_template

        typer.echo(study_template(), nl=False)
    elif status is not None:
        _show_status(status, as_json)
    elif study is not None:
        settings = {"engine": check_engine(engine), "workers": workers, "fresh": fresh, "retry": retry}
        _run(study, out or Path(f"{study.stem}-search"), settings, as_json)


def _run(file: Path, out: Path, settings: dict[str, Any], as_json: bool) -> None:
    from isogon.cli._search_printing import show_outcome
    from isogon.lab import naming_a_full_disk
    from isogon.search import Study, run

    study = Study.read(file)
    if out.exists() and not out.is_dir():
        raise ArgumentError("--out", "a folder", str(out), "name another")
    try:
        outcome = run(
            study,
            out,
            **settings,
            # With --json there is nothing else on stdout.
            tell=lambda sentence: typer.echo(sentence, err=as_json),
        )
    except KeyboardInterrupt:
        typer.echo("Stopped; no finished trial is lost, and the same command resumes.", err=True)
        raise typer.Exit(130) from None
    with naming_a_full_disk(out):
        page = _page(outcome, out, file)
    failed = outcome.lost["failed"]
    hint = f"{failed} failed: the same command with --retry tries them again." if failed else None
    if as_json:
        if hint:
            typer.echo(hint, err=True)
        recipe, path = outcome.recipe.to_dict(), None if page is None else str(page)
        print_json({**outcome.to_dict(), "recipe": recipe, "folder": str(out), "page": path})
        return
    show_outcome(outcome, out)
    if hint:
        typer.echo(hint)
    if page is not None:
        typer.echo(str(page))


def _page(outcome: Outcome, out: Path, file: Path) -> Path | None:
    """The page, or a sentence about what it needs: the answer is there without it."""
    from isogon.report import write_search_page

    try:
        return write_search_page(outcome, out, out / PAGE, study_file=file.read_text(encoding="utf-8"))
    except MissingExtraError as error:
        typer.echo(f"No page: {error}", err=True)
        return None


def _show_status(folder: Path, as_json: bool) -> None:
    from isogon.cli._search_printing import show_progress
    from isogon.search import Progress

    progress = Progress.read(folder)
    if as_json:
        print_json(progress.to_dict())
    else:
        show_progress(progress)
