"""The numbers that the papers print, from the data files beside this module."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import pandas as pd


@cache
def _read_csv(name: str) -> pd.DataFrame:
    with (files("isogon.papers") / "printed" / f"{name}.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file)


def yun_table(number: int) -> pd.DataFrame:
    """Every cell of Yun's table: panel, N, B, η, λ and the accuracy in percent, NaN where the cell is blank.

    >>> cells = yun_table(1)
    >>> len(cells), float(cells["accuracy"].max())
    (105, 95.26)
    """
    return _rows_of_table("yun_tables", number)


def yun_headline(number: int) -> pd.DataFrame:
    """For each column of Yun's table the rank of the tuning-factor cell, the points by which the best cell beats it,
    and the best cell's tuning factor over the stated one.

    >>> (yun_headline(1)["rank"] <= 2).all()
    np.True_
    """
    return _rows_of_table("yun_headline", number)


def other_table(paper: str, number: int) -> pd.DataFrame:
    """The table of `lla`, `la` or `smd`: row, column, value (text) and, of LLA's schedules, the rates that follow.

    >>> list(other_table("smd", 1)["value"])
    ['76.25', '76.27']
    """
    rows = _rows_of_table("other_tables", number)
    return rows[rows["paper"] == paper].drop(columns="paper").reset_index(drop=True)


def _rows_of_table(name: str, number: int) -> pd.DataFrame:
    rows = _read_csv(name)
    return rows[rows["table"] == number].drop(columns="table").reset_index(drop=True)
