"""The demo's findings as sentences, each from the numbers of the runs alone."""

from __future__ import annotations

import pandas as pd

from isogon.demo._plan import APART
from isogon.demo._results import best_factor, means_of, seed_spread, with_factor
from isogon.nets import Conversion
from isogon.symmetry import ScaleMap


def check_sentence(checked: ScaleMap) -> str:
    """The verdict on the network as it was, with the first place that breaks invariance."""
    why = f", since {checked.breaks[0].reason}" if checked.breaks else ""
    return (
        f"A small network, three convolutions with batch norm and a classifier, is {checked.verdict}: scaling all its "
        f"weights changes its output{why}. (Degree 2: it grows by c² when the weights grow by c.)"
    )


def conversion_sentence(conversion: Conversion) -> str:
    return (
        f"isogon.convert made a copy that is {conversion.scale_map.verdict}, in which only the direction of the "
        f"weights matters, by {len(conversion.changes)} changes."
    )


def angles_sentence(rows: pd.DataFrame, factor: float) -> str:
    """How far runs of one tuning factor agree in their angle, and where the neighbours are."""
    equal = with_factor(rows, factor).angle
    low, high = equal.min(), equal.max()
    below, above = (with_factor(rows, factor * times).angle.mean() for times in (1 / APART, APART))
    alike = "equal F, similar angle" if below < low and high < above else "here the angles do not separate the factors"
    return (
        f"{len(equal)} runs with F = {factor:.4g} but other N, B, lr, wd or momentum turned by {low:.1f}° to "
        f"{high:.1f}° per epoch; with F/{APART:g} it was {below:.1f}°, with {APART:g}F {above:.1f}°: {alike}."
    )


def law_sentence(rows: pd.DataFrame, factor: float) -> str:
    """How the measured angle compares with the law for gradient noise alone."""
    equal = with_factor(rows, factor)
    share = (equal.angle / equal.predicted).mean()
    return (
        f"Theory for weights that gradient noise alone moves predicts {equal.predicted.min():.0f}° to "
        f"{equal.predicted.max():.0f}° for these runs; measured is {share:.2f} of that on average, since the loss "
        "holds the weights back. To transfer a recipe the angles need to be equal, whatever their value."
    )


def search_sentence(search: pd.DataFrame, factor: float) -> str:
    """Which factor the search found, by how much, and whether that means anything."""
    means = means_of(search)["mean"]
    edge = " (at the grid's edge: a real search extends it)" if factor in (means.index[0], means.index[-1]) else ""
    other, lead, than = _lead(search, factor)
    return (
        f"{len(search)} short runs on {_count(search)} images found F = {factor:.4g} best{edge}: {means[factor]:.1f} % "
        f"of the test images right, ahead of F = {other:.4g} by {lead:.1f} points, {than}."
    )


def transfer_sentence(full: pd.DataFrame, factor: float) -> str:
    """Whether the transferred factor was the best on the full set, and whether the difference means anything."""
    means = means_of(full)["mean"]
    other, lead, than = _lead(full, factor)
    start = f"Carried to all {_count(full)} images, it gave {means[factor]:.1f} %"
    if lead >= 0:
        return f"{start}, the best of {len(means)} there too, ahead of F = {other:.4g} by {lead:.1f} points, {than}."
    clear = -lead > seed_spread(full)
    verdict = f"the rule missed by a factor of {max(other / factor, factor / other):.3g}" if clear else "undecided"
    return f"{start}; F = {other:.4g} was ahead by {-lead:.1f} points, {than}: {verdict}."


def _lead(rows: pd.DataFrame, factor: float) -> tuple[float, float, str]:
    """The best of the other factors, the points by which `factor` is ahead of it, and how that compares with seeds."""
    means, spread = means_of(rows)["mean"], seed_spread(rows)
    other = best_factor(rows[rows.factor != factor])
    lead = float(means[factor] - means[other])
    return (
        other,
        lead,
        f"{'more' if abs(lead) > spread else 'no more'} than the {spread:.1f} by which seeds alone differ",
    )


def best_angles_sentence(search: pd.DataFrame, full: pd.DataFrame) -> str:
    """The angles of the best runs of either set."""
    first, second = (with_factor(rows, best_factor(rows)).angle.mean() for rows in (search, full))
    few, many = _count(search), _count(full)
    return f"The best runs turned by {first:.1f}° per epoch on {few} images and by {second:.1f}° on {many}."


def spread_sentence(search: pd.DataFrame, full: pd.DataFrame) -> str:
    return (
        f"Runs that differ in the seed alone differ by up to {seed_spread(search):.1f} points on {_count(search)} "
        f"images, {seed_spread(full):.1f} on {_count(full)}."
    )


def cost_sentence(searched: int, on_full: int) -> str:
    return (
        f"The search saw {searched:,} images; the same grid on the full set would have seen {on_full:,}, "
        f"{on_full / searched:.1f} times as many."
    )


def accuracy_lines(search: pd.DataFrame, full: pd.DataFrame) -> list[str]:
    """Mean test accuracies by tuning factor, one line per set."""
    both = pd.DataFrame({_count(rows): means_of(rows)["mean"] for rows in (search, full)})
    lines = ["tuning factor F ".ljust(24) + "".join(f"{factor:>9.4g}" for factor in both.index)]
    for count, means in both.items():
        cells = "".join(f"{'–' if pd.isna(mean) else f'{mean:.1f} %':>9}" for mean in means)
        lines.append(f"right on {count} images".ljust(24) + cells)
    return lines


def _count(rows: pd.DataFrame) -> str:
    return f"{rows.samples.iloc[0]:,}"
