"""`isogon check`: which weights of a model are scale-invariant."""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isogon import named
from isogon.cli._printing import print_json
from isogon.errors import ArgumentError, IsogonError, check_whole, first_line

if TYPE_CHECKING:
    import torch

    from isogon.symmetry import ScaleMap, Symmetries

#: exit codes by verdict
CODES = {"invariant": 0, "not invariant": 1, "unknown": 2}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("check")(check)


def check(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY",
            help="The function or class that makes the model, as mine.py:Net or package.module:Net.",
        ),
    ],
    shapes: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="SHAPE", help="Shape of an input, such as 2,3,32,32; once per input."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An argument of the factory; repeats.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Type of the inputs: float32, float64, bfloat16, int64 (token ids 0 and 1), …")
    ] = "float32",
    evaluate: Annotated[
        bool, typer.Option("--eval", help="Judge the model in eval mode; else in training mode.")
    ] = False,
    verify: Annotated[bool, typer.Option(help="Measure every answer numerically as well.")] = True,
    explain: Annotated[
        list[str] | None,
        typer.Option(metavar="PARAMETER", help="Explain why this parameter is or is not invariant; repeats."),
    ] = None,
    groups: Annotated[
        bool,
        typer.Option(
            "--symmetries", help="Ask instead for every set of weights that can be scaled against each other."
        ),
    ] = False,
    largest_eps: Annotated[
        float, typer.Option(metavar="NUMBER", help="Constants up to this count as 0 before a root or a division.")
    ] = 1e-3,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Ask which weights of a model are scale-invariant, and why not.

    Modules are looked for in the current folder too. Exit code 0: invariant when all trainable parameters are scaled
    together; 1: not; 2: unknown. With --symmetries: 0; 2 where measuring contradicts the answer.

    Examples:

    [bold]isogon check isogon.nets:resnet18 --input 2,3,32,32 --set scale_invariant=affine[/bold]

    [bold]isogon check models.py:gpt --input 2,64 --dtype int64 --symmetries[/bold]
    """
    from isogon.symmetry import check as check_model
    from isogon.symmetry import symmetries

    if not shapes:
        raise IsogonError("--input must be given: add the shape of what the model takes, such as --input 2,3,32,32.")
    inputs = [_input(shape, dtype) for shape in shapes]
    module = _model(model, dict(_setting(item) for item in settings or []))
    module.train(not evaluate)
    if groups:
        answer = symmetries(module, *inputs, verify=verify, largest_eps=largest_eps)
        if as_json:
            print_json({**answer.to_dict(), **_explained(answer, explain)})
        else:
            typer.echo("\n".join(answer.explain(name) for name in explain) if explain else str(answer))
        raise typer.Exit(0 if answer.holds else 2)
    scale_map = check_model(module, *inputs, verify=verify, largest_eps=largest_eps)
    if as_json:
        print_json({**scale_map.to_dict(), **_explained(scale_map, explain)})
    elif explain:
        for name in explain:
            typer.echo(scale_map.explain(name))
    else:
        typer.echo(str(scale_map))
    # A contradiction between rules and measurement is a bug of ours: no answer then.
    raise typer.Exit(2 if scale_map.disagreements else CODES[scale_map.verdict])


def _explained(answer: ScaleMap | Symmetries, names: list[str] | None) -> dict[str, dict[str, str]]:
    """What `--explain` asks for, as an entry of the JSON; none where nothing was asked."""
    return {"explained": {name: answer.explain(name) for name in names}} if names else {}


def _input(shape: str, dtype: str) -> torch.Tensor:
    import torch

    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise ArgumentError("--dtype", "a type that torch knows", dtype, "for example float32 or int64")
    try:
        sizes = [int(part) for part in shape.split(",")]
    except ValueError:
        raise ArgumentError("--input", "whole numbers with commas", shape, "for example 2,3,32,32") from None
    total = 1
    for size in sizes:
        check_whole("--input", size, high=10**9, cure="every size counts something")
        total *= size
    check_whole("--input elements", total, high=10**9, cure="a small example is enough")
    generator = torch.Generator().manual_seed(0)
    if kind.is_floating_point or kind.is_complex:
        return torch.randn(sizes, generator=generator).to(kind)
    return torch.randint(0, 2, sizes, generator=generator).to(kind)


def _model(path: str, arguments: dict[str, Any]) -> torch.nn.Module:
    import torch

    factory = named.find("model", path, kind="factory")
    if isinstance(factory, torch.nn.Module):
        if arguments:
            raise ArgumentError(
                "--set", "left out for a ready-made module", sorted(arguments), "name a factory instead"
            )
        return factory
    try:
        model = factory(**arguments)
    except Exception as error:
        takes = _signature(factory)
        raise IsogonError(
            f"{path} cannot be called ({type(error).__name__}: {first_line(error)}): it takes {takes}."
        ) from None
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(
            "model", "a factory of a torch.nn.Module", type(model).__name__, f"look at what {path} returns"
        )
    return model


def _setting(item: str) -> tuple[str, Any]:
    name, separator, text = item.partition("=")
    if not separator or not name.isidentifier():
        raise ArgumentError("--set", "name=value", item, "for example --set scale_invariant=affine")
    try:
        return name, ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return name, text


def _signature(factory: Any) -> str:
    try:
        return str(inspect.signature(factory))
    except (TypeError, ValueError):
        return "unknown arguments"
