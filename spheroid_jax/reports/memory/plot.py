"""The picture of a run of kind ``memory``: GiB and their ratio against the width."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from spheroid_jax.memory import GIB
from spheroid_jax.reports import plots
from spheroid_jax.reports.memory.verdicts import (
    PUBLISHED_WIDTH,
    Row,
    compiled,
    published_row,
    state_ratio,
    step_ratio,
)
from spheroid_jax.reports.published import Published

_LABELS = {"worker": "one worker", "full": "full stack"}
_COLORS = {"worker": "#0072b2", "full": "#000000"}
_TICKS = 8  # at most about so many on the axis of widths
Value = Callable[[Row], float]


def plot_memory(
    summary: Mapping[str, Any], path: Path, numbers: Published | None
) -> None:
    """Writes the picture of :func:`memory_figure` to ``path``, as PNG."""
    plots.save(memory_figure(summary, numbers), path)


def memory_figure(summary: Mapping[str, Any], numbers: Published | None) -> Figure:
    """Draws the state and the compiled step of both, and how many times as large.

    Crosses are the paper's two figures, at the width of its model.
    """
    rows = summary["rows"]
    done = [row for row in rows if compiled(row)]
    figure = Figure(figsize=(10.5, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for who, label in _LABELS.items():
        style: dict[str, Any] = {"color": _COLORS[who], "markersize": 5}
        state = _line(rows, lambda row, who=who: row[who]["adamw_gib"])  # type: ignore[misc]
        step = _line(
            done,
            lambda row, who=who: row[who]["compiled"]["total"] / GIB,  # type: ignore[misc]
        )
        left.plot(*state, label=f"{label}, AdamW state", marker="o", **style)
        left.plot(
            *step, label=f"{label}, compiled step", marker="s", linestyle="--", **style
        )
    left.set_yscale("log")
    left.set_ylabel("GiB")
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _crosses(left, summary, numbers)
    grey: dict[str, Any] = {"color": "#767676", "linewidth": 1.0, "linestyle": ":"}
    blocks = summary["config"]["model"]["blocks"]
    right.plot(*_line(rows, state_ratio), marker="o", color="#009e73", label="state")
    right.plot(
        *_line(done, step_ratio),
        marker="s",
        linestyle="--",
        color="#d55e00",
        label="compiled step",
    )
    right.axhline(blocks, **grey, label=f"B = {blocks}")
    right.set_ylim(0, 1.1 * blocks)
    right.set_ylabel("full stack / one worker")
    for axes in (left, right):
        _widths(axes, [row["width"] for row in rows])
    right.legend(frameon=False, fontsize=9)
    left.legend(frameon=False, fontsize=9)
    return figure


def _line(rows: Sequence[Row], value: Value) -> tuple[list[int], list[float]]:
    return [row["width"] for row in rows], [value(row) for row in rows]


def _crosses(axes: Axes, summary: Mapping[str, Any], numbers: Published | None) -> None:
    if numbers is None or published_row(summary) is None:
        return
    for who, entry in numbers.of("memory").items():
        axes.plot(
            [PUBLISHED_WIDTH],
            [entry.numbers["memory"]],
            linestyle="none",
            marker="x",
            markersize=9,
            color=_COLORS[who],
            label=f"{_LABELS[who]}, published",
        )


def _widths(axes: Axes, widths: Sequence[int]) -> None:
    axes.set_xscale("log")
    shown = widths[:: -(-len(widths) // _TICKS)]
    axes.set_xticks(shown, [str(width) for width in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("width d")
    plots.decorate(axes)
