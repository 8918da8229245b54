"""The picture of a comparison of encodings: CE against bytes."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from spheroid_jax.reports import plots
from spheroid_jax.reports.encodings.cells import Summary, cells, number, spread
from spheroid_jax.reports.tables import si

_COLORS = {
    "float32": "#000000",
    "bfloat16": "#0072b2",
    "int8": "#009e73",
    "int4": "#d55e00",
}


def plot_encodings(summary: Summary, path: Path) -> None:
    """Writes the picture of :func:`encodings_figure` to ``path``, as PNG."""
    plots.save(encodings_figure(summary), path)


def encodings_figure(summary: Summary) -> Figure:
    """Draws CE at the end against bytes both ways, and its course against those up."""
    figure = Figure(figsize=(10.5, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _ends(left, summary)
    _courses(right, summary)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: si(value, "B")))
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylabel("CE_chain on validation, nats per byte")
        plots.decorate(axes)
    where: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1)}
    left.legend(frameon=False, fontsize=8, ncols=3, **where)
    right.legend(frameon=False, fontsize=9)
    return figure


def _ends(axes: Axes, summary: Summary) -> None:
    """Mean over seeds; bars are sample standard deviations."""
    for cell in cells(summary):
        axes.errorbar(
            [cell.up + cell.down],
            [statistics.fmean(cell.ce)],
            yerr=[spread(cell.ce) or 0.0],
            color=_COLORS[cell.encoding],
            linestyle="none",
            marker="D" if cell.both else "s" if cell.zstd else "o",
            markerfacecolor="none" if cell.zstd else None,
            capsize=3,
            label=cell.name,
        )
    axes.set_xlabel("bytes both ways, of a worker in a round")


def _courses(axes: Axes, summary: Summary) -> None:
    """Means over seeds, compressed."""
    for encoding in summary["config"]["encodings"]:
        courses = [
            run["points"]
            for run in summary["runs"]
            if run["encoding"] == encoding and not run["both_ways"]
        ]
        points = list(zip(*courses, strict=True))[1:]  # before training: no bytes
        axes.plot(
            _means(points, "bytes_zstd"),
            _means(points, "ce_chain"),
            color=_COLORS[encoding],
            marker=".",
            label=f"{encoding} zstd {summary['config']['zstd']}",
        )
    axes.set_xlabel("bytes of all updates so far")


def _means(points: Sequence[Sequence[Mapping[str, Any]]], key: str) -> list[float]:
    return [statistics.fmean(number(p[key]) for p in seeds) for seeds in points]
