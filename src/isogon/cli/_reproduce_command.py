"""`isogon reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isogon.cli._options import check_engine
from isogon.cli._printing import print_json
from isogon.errors import ArgumentError, IsogonError, check_choice

if TYPE_CHECKING:
    from isogon.papers import Options, Reproduction


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("reproduce")(reproduce)


def reproduce(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Experiments, like yun/table1; see --list.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All experiments.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Show all experiments, their claims and costs.")] = False,
    scale: Annotated[
        str, typer.Option(help="tiny (seconds on a CPU), small (an hour or less on a GPU) or paper (as printed).")
    ] = "tiny",
    panels: Annotated[str | None, typer.Option(metavar="A,B", help="Only these panels.")] = None,
    columns: Annotated[str | None, typer.Option(metavar="C,D", help="Only these columns.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs with so many seeds; else the scale's own.")] = None,
    first_seed: Annotated[
        int, typer.Option(min=0, help="The first of these seeds: 2 adds seeds 2, 3, … to results that have 0 and 1.")
    ] = 0,
    engine: Annotated[
        str | None, typer.Option(help="local, lanes or ray; lanes on a GPU and local on a CPU unless given.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cuda, cuda:1 or cpu; a GPU where there is one.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of runs, results and exhibits.")] = Path(
        "reproduction"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Show a table or figure of the papers, ours beside the printed numbers, and a verdict on its claim.

    Runs are shared between experiments and kept in a folder. After a stop the same command resumes there. Data
    sets are looked for in the folder that the variable ISOGON_DATA names.

    Example, which takes seconds:

    [bold]isogon reproduce yun/table1 --scale tiny --panels b --out yun[/bold]
    """
    if sum((bool(ids), every, listed)) != 1:
        raise IsogonError("isogon reproduce needs one of experiments, --all and --list: see isogon reproduce --help.")
    if first_seed and seeds is None:
        raise IsogonError("--first-seed needs --seeds, the number of seeds: for example --seeds 2 --first-seed 2.")
    if listed:
        _list(as_json)
        return
    from isogon.papers import SCALES, Options

    options = Options(
        scale=check_choice("--scale", scale, SCALES),  # type: ignore[arg-type]
        panels=_names("--panels", panels),
        columns=_names("--columns", columns),
        seeds=seeds,
        first_seed=first_seed,
    )
    settings = {"engine": check_engine(engine), "device": _device(device), "workers": workers}
    _run(None if every else ids, options, out, settings, as_json)


def _run(ids: Sequence[str] | None, options: Options, out: Path, settings: dict[str, Any], as_json: bool) -> None:
    from isogon.cli._reproduce_printing import show_reproductions
    from isogon.lab import naming_a_full_disk
    from isogon.papers import EXHIBITS, experiments, reproduce

    try:
        with naming_a_full_disk(out):
            reproductions = reproduce(
                list(experiments()) if ids is None else ids,
                options,
                out=out,
                **settings,
                tell=lambda sentence: typer.echo(f"Left out: {sentence}", err=True),
            )
    except KeyboardInterrupt:
        typer.echo("Stopped; no finished run is lost, and the same command resumes.", err=True)
        raise typer.Exit(130) from None
    if as_json:
        print_json([reproduction.to_dict() for reproduction in reproductions])
    else:
        show_reproductions(reproductions)
        typer.echo(f"Pages, tables and figures: {out / EXHIBITS}")
    if any(reproduction.made["errors"] for reproduction in reproductions):
        typer.echo(_failures(reproductions), err=True)
        raise typer.Exit(1)


def _failures(reproductions: Sequence[Reproduction]) -> str:
    errors = {name: error for reproduction in reproductions for name, error in reproduction.made["errors"].items()}
    name, error = next(iter(errors.items()))
    return f"{len(errors)} runs failed, {name} with {error}; the same command tries them again."


def _list(as_json: bool) -> None:
    from isogon.cli._reproduce_printing import show_list
    from isogon.papers import listing

    if as_json:
        print_json(listing())
    else:
        show_list(listing())


def _names(option: str, given: str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    if not names:
        raise ArgumentError(option, "names with commas between them", given, "leave it out for all")
    return names


def _device(name: str | None) -> str | None:
    if name is None:
        return None
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise ArgumentError("--device", "a device of PyTorch", name, "write cpu or cuda") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ArgumentError("--device", f"one of this machine's {torch.cuda.device_count()} GPUs", name, "write cpu")
    return name
