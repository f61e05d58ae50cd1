"""Curves in TensorBoard: `TensorBoardSink`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from isogon.errors import ArgumentError, MissingExtraError
from isogon.integrations._scalars import scalars_by_step

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardSink:
    """A sink of the Monitor that writes scalars `isogon/<layer>/<quantity>` at the optimizer's step.

    Args:
        writer_or_folder: a `SummaryWriter` that is yours to close (Lightning's is `TensorBoardLogger.experiment`), or a
            folder, for which one is made when the monitor opens and closed with it.
    """

    def __init__(self, writer_or_folder: SummaryWriter | str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError(
                "tensorboard", extra="tensorboard", purpose="to write TensorBoard's event files"
            ) from None
        self._folder: str | None = None
        self._writer: SummaryWriter | None = None
        if isinstance(writer_or_folder, str | os.PathLike):
            self._folder = os.fspath(writer_or_folder)
        elif callable(getattr(writer_or_folder, "add_scalar", None)):
            self._writer = writer_or_folder
        else:
            raise ArgumentError(
                "writer_or_folder", "a SummaryWriter or a folder", writer_or_folder, "give the folder's path"
            )
        self._make_writer = SummaryWriter

    def open(self, run: Mapping[str, Any]) -> None:
        """Start the event file, on the rank that measures alone."""
        if self._folder is not None and self._writer is None:
            self._writer = self._make_writer(self._folder)

    def __call__(self, rows: pd.DataFrame) -> None:
        """Write every finite number of `rows`."""
        self.open({})
        assert self._writer is not None
        for step, numbers in scalars_by_step(rows):
            for name, value in numbers.items():
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file if this sink made it."""
        if self._folder is not None and self._writer is not None:
            self._writer.close()
            self._writer = None
