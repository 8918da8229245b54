"""The picture of a run between processes: its losses, and where its time went."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from spheroid_jax.reports import plots
from spheroid_jax.reports.exchange import facts
from spheroid_jax.reports.labels import label

_CE = {"ce_chain": "#0072b2", "ce_ensemble": "#009e73"}
_PHASES = {
    "train": ("computes", "#0072b2"),
    "fetch": ("fetches", "#56b4e9"),
    "send": ("sends", "#e69f00"),
}
_REST = ("waits, and closing", "#d9d9d9")


def plot_exchange(summary: Mapping[str, Any], path: Path) -> None:
    """Writes the picture of :func:`exchange_figure` to ``path``, as PNG."""
    plots.save(exchange_figure(summary), path)


def exchange_figure(summary: Mapping[str, Any]) -> Figure:
    """Draws CE against rounds, the simulator's as circles, and each worker's time."""
    figure = Figure(figsize=(10.5, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _losses(left, summary)
    _times(right, summary)
    return figure


def _losses(axes: Axes, summary: Mapping[str, Any]) -> None:
    for ce, color in _CE.items():
        xs, ys = _points(summary["ce"], ce)
        axes.plot(xs, ys, color=color, marker=".", label=label(ce))
        xs, ys = _points(summary["lockstep"]["ce"], ce)
        axes.plot(
            xs,
            ys,
            linestyle="none",
            marker="o",
            markersize=8,
            markerfacecolor="none",
            color=color,
            label=f"{label(ce)}, lockstep simulator",
        )
    axes.set_xlabel("rounds")
    axes.set_ylabel("cross-entropy on validation, nats per byte")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=9)
    plots.decorate(axes)


def _points(points: Any, ce: str) -> tuple[list[float], list[float]]:
    found = [p for p in points if p.get(ce) is not None]
    return [p["round"] for p in found], [p[ce] for p in found]


def _times(axes: Axes, summary: Mapping[str, Any]) -> None:
    members = sorted(summary["members"].items(), reverse=True)
    names = [name for name, _ in members]
    whole = facts.phases(summary).rounds
    left = [0.0] * len(names)
    for phase, (text, color) in _PHASES.items():
        widths = [member["phases"][phase] for _, member in members]
        axes.barh(names, widths, left=left, color=color, label=text)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    rest = [max(0.0, whole - used) for used in left]
    axes.barh(names, rest, left=left, color=_REST[1], label=_REST[0])
    axes.set_xlabel("seconds of all rounds")
    axes.legend(
        frameon=False, fontsize=9, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1)
    )
    plots.decorate(axes)
