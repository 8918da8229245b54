"""The picture of a run of kind ``fleet``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from spheroid_jax.reports import plots
from spheroid_jax.reports.fleet.verdicts import LABELS, shares

Summary = Mapping[str, Any]

_COLORS = {"drop": "#000000", "gate": "#0072b2", "quorum": "#d55e00"}
_WIDTH = 0.8  # of the bars of a block or an age, together


def plot_fleet(summary: Summary, path: Path) -> None:
    """Writes the picture of :func:`fleet_figure` to ``path``, as PNG."""
    plots.save(fleet_figure(summary), path)


def fleet_figure(summary: Summary) -> Figure:
    """Draws participation by block, ages, and timely rounds against replicas."""
    figure = Figure(figsize=(13.0, 4.2), layout="constrained")
    blocks, ages, timely = figure.subplots(1, 3)
    rows = summary["rows"]
    for number, row in enumerate(rows):
        place = (number, len(rows))
        counts = row["per_block"]
        _bars(blocks, row, shares(counts["accepted"], counts["begun"]), place)
        total = max(1, sum(row["ages"]))
        _bars(ages, row, [count / total for count in row["ages"]], place)
        _curve(timely, row)
    blocks.set_ylim(0, 1)
    blocks.set_xlabel("block")
    blocks.set_ylabel("updates accepted, of those begun")
    if any(row["accepted"] for row in rows):
        ages.set_yscale("log")
    ages.set_xlabel("age, rounds")
    ages.set_ylabel("of the updates accepted")
    _shares_of_groups(timely, summary["config"]["fleet"])
    for axes in (blocks, ages, timely):
        plots.decorate(axes)
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda share, _: f"{100 * share:g} %")
        )
    for axes in (blocks, ages):
        axes.xaxis.set_major_locator(MaxNLocator(9, integer=True))
    timely.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def _bars(
    axes: Axes, row: Mapping[str, Any], heights: list[float], place: tuple[int, int]
) -> None:
    number, of = place
    width = _WIDTH / of
    at = np.arange(len(heights)) + (number - (of - 1) / 2) * width
    axes.bar(at, heights, width, color=_COLORS[row["policy"]])


def _curve(axes: Axes, row: Mapping[str, Any]) -> None:
    label, color = LABELS[row["policy"]], _COLORS[row["policy"]]
    for name, style, end in (("timely", "-", ""), ("timely_fresh", ":", ", on time")):
        share = row[name]["share"]
        if end and share == row["timely"]["share"]:
            continue
        sizes = range(1, len(share) + 1)
        axes.plot(sizes, share, linestyle=style, color=color, label=f"{label}{end}")


def _shares_of_groups(axes: Axes, settings: Mapping[str, Any]) -> None:
    axes.axhline(settings["timely"], color="#767676", linewidth=1.0, linestyle="--")
    largest = settings["largest_group"]
    axes.set_xscale("log")
    ticks = [2**n for n in range(largest.bit_length()) if 2**n <= largest]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("replicas K of a block")
    axes.set_ylabel(f"rounds with at least {settings['needed']} accepted")
