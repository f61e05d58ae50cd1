"""The command line: parse, call one public function, print."""

from __future__ import annotations

import sys
from typing import cast

import typer

from isogon.cli import (
    _check_command,
    _demo_command,
    _recipe_commands,
    _report_command,
    _reproduce_command,
    _search_command,
)
from isogon.errors import IsogonError
from isogon.guard import run_guarded

app = typer.Typer(
    name="isogon",
    help="Train normalised networks by the one number that matters: how fast their weights turn.",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# The order in which `isogon --help` lists them.
for _commands in (
    _recipe_commands,
    _check_command,
    _report_command,
    _search_command,
    _reproduce_command,
    _demo_command,
):
    _commands.add_to(app)

DEBUG = "--debug"
# Typer re-exports only some of the errors of the parser inside it; their common base is two steps up.
_ParserError = cast("type[Exception]", typer.BadParameter.__mro__[2])


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Show the version and stop.", is_eager=True),
    debug: bool = typer.Option(False, DEBUG, help="Show the traceback behind a refusal; allowed anywhere."),
) -> None:
    if version:
        from isogon import __version__

        typer.echo(f"isogon {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; bad input ends with exit code 2 and one sentence, never with a traceback."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    debug = DEBUG in given

    def call() -> int:
        try:
            code = app(args=[argument for argument in given if argument != DEBUG], standalone_mode=False)
        except _ParserError as error:
            raise IsogonError(_parser_sentence(error)) from error
        except typer.Abort:
            raise KeyboardInterrupt from None
        return code if isinstance(code, int) else 0

    sys.exit(run_guarded(call, debug=debug, stopped="Stopped."))


def _parser_sentence(error: BaseException) -> str:
    message = " ".join(getattr(error, "format_message", lambda: str(error))().split()).rstrip(".?")
    context = getattr(error, "ctx", None)
    return f"{message}: see {context.command_path if context is not None else 'isogon'} --help."
