"""Progress for people: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from isogon.lab.config import Config


def made_bar(console: Console) -> Progress:
    """A bar with a count, the time gone and the time left, and words about the last thing done."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[words]}"),
        console=console,
    )


@contextmanager
def bar_of_epochs(config: Config, done: int, *, shown: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function to call after each epoch; it moves a bar on a terminal and does nothing elsewhere."""
    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda row: None
        return
    with made_bar(console) as bars:
        task = bars.add_task(config.name, total=config.epochs, completed=done, words="")

        def advance(row: Mapping[str, Any]) -> None:
            bars.update(task, advance=1, words=in_words(row))

        yield advance


def in_words(row: Mapping[str, Any]) -> str:
    """A row of the table of epochs in short.

    >>> in_words({"train_loss": 0.51, "test_accuracy": 0.8123})
    'loss 0.510, test 81.2 %'
    """
    return f"loss {row['train_loss']:.3f}, test {100 * row['test_accuracy']:.1f} %"


@contextmanager
def bar_of_runs(waiting: Sequence[Config], *, done: int, shown: bool) -> Iterator[Callable[[str, Config, Any], None]]:
    """A function to call with the news of `workers.work_through`; a bar on a terminal, a line an ended run elsewhere.

    `done` runs of an earlier call are counted too. The bar counts epochs, since runs differ in length.
    """
    console = Console(stderr=True)
    if not shown or not waiting:
        yield lambda kind, config, content: None
        return
    epochs = dict.fromkeys(waiting, 0)
    last: dict[Config, str] = {}
    ended: set[Config] = set()

    def in_lines(kind: str, config: Config, content: Any) -> None:
        if kind == "epoch":
            epochs[config], last[config] = content["epoch"] + 1, in_words(content)
            return
        ended.add(config)
        words = last.get(config, content) if content == "finished" else _last_line(content)
        count = f"{done + len(ended)} of {done + len(waiting)} runs"
        console.print(f"{count}, {config.name}: {words}", highlight=False, soft_wrap=True, markup=False)

    if not console.is_terminal:
        yield in_lines
        return
    with made_bar(console) as bars:
        task = bars.add_task("epochs", total=sum(config.epochs for config in waiting), words="")

        def in_bar(kind: str, config: Config, content: Any) -> None:
            in_lines(kind, config, content)
            # A run that ended early, diverged or failed, has no epochs left to wait for.
            passed = sum(one.epochs if one in ended else count for one, count in epochs.items())
            words = f"{config.name}: {in_words(content)}" if kind == "epoch" else ""
            bars.update(task, completed=passed, words=words)

        yield in_bar


def _last_line(text: str) -> str:
    """A status as it is; of an error's trace what it says."""
    return text.strip().splitlines()[-1]
