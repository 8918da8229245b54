"""The picture of a delay experiment: all methods on one plot, a panel beside another.

The axis is the logarithm of the distance from a floor a little under the lowest loss,
so that differences among the good methods show, and it ends a little above chance. What
lies beyond, or has no finite loss, stands at the upper edge with its number.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from spheroid_jax.reports import plots
from spheroid_jax.reports.delays.names import field_label, panel_label, value_label
from spheroid_jax.reports.delays.summary import Cell, Sweep, read
from spheroid_jax.reports.delays.tables import panels
from spheroid_jax.reports.tables import nats

Style = dict[str, Any]

SPREAD = 0.5  # of the way to the next place: how far the methods of a place stand apart
_ROOM = 1.3  # of chance: the highest loss that has a place of its own on the axis
_FLOOR = 0.9  # of the lowest loss: where the logarithm starts
_STEPS = (5.0, 2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02)  # of ticks, the roundest first
_TICKS = 12  # at most about so many
_COLORS = ("#d55e00", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#767676")
_MARKERS, _DASHES = "ovD^PX*<>hpd", ("-", "--", ":", "-.")
_ADAM: Style = {"color": "#000000", "linestyle": "-", "marker": "s"}
_KNOWN = (  # a method keeps its style from one experiment to the next
    *("nesterov", "cgad", "sgd", "adam_decay", "pa_cgad", "delayed_nesterov"),
    *("staleness_nesterov", "cgad_post", "cgad_both", "polynomial_nesterov", "fadas"),
)


def styles(methods: Sequence[str]) -> dict[str, Style]:
    """Colour, line and marker by method: black for Adam, no two methods alike."""
    places = {method: number for number, method in enumerate(_KNOWN)}
    free = itertools.count(len(_KNOWN))
    found = {}
    for method in methods:
        number = places[method] if method in places else next(free)
        found[method] = {
            "color": _COLORS[number % len(_COLORS)],
            "linestyle": _DASHES[number // len(_COLORS) % len(_DASHES)],
            "marker": _MARKERS[number % len(_MARKERS)],
        }
    return found | ({"adam": _ADAM} if "adam" in found else {})


def plot(summary: Mapping[str, Any], path: Path) -> None:
    """Writes the picture of a summary to ``path``, as PNG."""
    sweep = read(summary)
    figure = curves_figure(sweep) if single(sweep) else sweep_figure(sweep)
    plots.save(figure, path)


def single(sweep: Sweep) -> bool:
    """Whether there is but one place, so that curves over rounds say more."""
    return len(sweep.xs) * len(sweep.panels) == 1


def sweep_figure(sweep: Sweep) -> Figure:
    """Final losses against the axis: means, and sample deviations over seeds as bars.

    Places are evenly spaced whatever their values, and the methods of a place stand
    side by side, since equal losses would hide each other.
    """
    places = panels(sweep) or [None]
    cells = list(sweep.cells.values())
    low, top = _limits([(c.mean, c.std or 0.0) for c in cells], sweep.chance)
    figure, all_axes = _figure(len(places))
    for axes, panel in zip(all_axes, places, strict=True):
        _axis(axes, low, top, sweep.chance)
        for method, style, shift in _methods(sweep):
            line = sweep.line(method, panel)
            xs = [number + shift for number, x in enumerate(sweep.xs) if x in line]
            if line:
                name = sweep.label(method)
                _draw(axes, xs, list(line.values()), top, style, name)
        axes.set_xticks(range(len(sweep.xs)), [value_label(x) for x in sweep.xs])
        axes.set_xlim(-0.5, len(sweep.xs) - 0.5)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel(field_label(sweep.x) if sweep.x else "")
        if sweep.panel and panel is not None:
            axes.set_title(panel_label(sweep.panel, panel), fontsize=10, pad=28)
    _finish(figure, all_axes)
    return figure


def curves_figure(sweep: Sweep) -> Figure:
    """Losses over rounds, mean of the seeds with a band of one sample deviation.

    A method without a curve in its row is left out.
    """
    curves = {}
    for method in sweep.methods:
        cell = sweep.cell(method, sweep.panels[0], sweep.xs[0])
        if cell is not None and (curve := cell.row.get("curve")):
            curves[method] = _curve(curve)
    points = [
        (mean, std)
        for _, means, stds in curves.values()
        for mean, std in zip(means, stds, strict=True)
    ]
    low, top = _limits(points, sweep.chance)
    figure, (axes,) = _figure(1)
    _axis(axes, low, top, sweep.chance)
    look = styles(sweep.methods)
    for number, (method, (rounds, means, stds)) in enumerate(curves.items()):
        shown = np.where(np.isfinite(means), np.minimum(means, top), np.nan)
        style: Style = {"linewidth": 1.6, "markersize": 4.5} | look[method]
        every = max(1, len(rounds) // 8)
        marks = (number % every, every)  # staggered: equal curves show all markers
        axes.plot(rounds, shown, label=sweep.label(method), markevery=marks, **style)
        if np.any(stds > 0):
            high = np.minimum(means + stds, top)
            color = look[method]["color"]
            axes.fill_between(rounds, means - stds, high, color=color, alpha=0.12)
    axes.set_xlabel("rounds")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _finish(figure, [axes])
    return figure


def _curve(curve: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rounds, means and sample deviations; a point that lost a seed has no mean."""
    losses = [np.array(point, float, ndmin=1) for point in curve["loss"]]
    means = np.array([point.mean() for point in losses])
    stds = np.array([p.std(ddof=1) if p.size > 1 else 0.0 for p in losses])
    return np.asarray(curve["round"], float), means, stds


def _methods(sweep: Sweep) -> list[tuple[str, Style, float]]:
    """Every method with its style and its place beside the others."""
    look, count = styles(sweep.methods), len(sweep.methods)
    step = SPREAD / max(count - 1, 1)
    return [
        (method, look[method], step * (number - (count - 1) / 2))
        for number, method in enumerate(sweep.methods)
    ]


def _draw(
    axes: Axes,
    xs: Sequence[float],
    cells: Sequence[Cell],
    top: float,
    style: Style,
    name: str,
) -> None:
    """A line with bars; what is beyond the axis stands at its edge with a number."""
    ys = [min(cell.score, top) for cell in cells]
    bars = [
        (cell.std or 0.0) if y < top else 0.0 for cell, y in zip(cells, ys, strict=True)
    ]
    look: Style = {"linewidth": 1.5, "markersize": 5.5, "capsize": 2} | style
    error = bars if any(bars) else None
    axes.errorbar(xs, ys, yerr=error, label=name, **look)
    for x, y, cell in zip(xs, ys, cells, strict=True):
        if y == top:
            axes.annotate(
                _loss(cell),
                (x, top),
                xytext=(0, 8),
                textcoords="offset points",
                rotation=90,
                ha="center",
                fontsize=6.5,
                color=style["color"],
                annotation_clip=False,
            )


def _limits(
    points: Sequence[tuple[float, float]], chance: float
) -> tuple[float, float]:
    """Lower and upper end of the axis, from means and deviations."""
    finite = [(m, s) for m, s in points if math.isfinite(m) and m > 0]
    inside = [(m, s if math.isfinite(s) else 0.0) for m, s in finite if m <= chance]
    low = min([m - s if m > s else m for m, s in inside], default=chance / 2)
    return low * 0.98, chance * _ROOM


def _figure(count: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(3.4 + 5.2 * count, 5.2), layout="constrained")
    return figure, list(figure.subplots(1, count, sharey=True, squeeze=False)[0])


def _axis(axes: Axes, low: float, top: float, chance: float) -> None:
    floor = _FLOOR * low

    def forward(y: Any) -> Any:
        return np.log(np.maximum(np.asarray(y, float) - floor, 1e-3 * low))

    def inverse(z: Any) -> Any:
        return np.exp(np.minimum(z, 50.0)) + floor

    axes.set_yscale("function", functions=(forward, inverse))
    apart = float(forward(top) - forward(low)) / _TICKS
    ticks: list[float] = []
    for step in _STEPS:
        for tick in step * np.arange(math.ceil(low / step), top / step):
            if all(abs(forward(tick) - forward(other)) >= apart for other in ticks):
                ticks.append(float(tick))
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(low, 1.05 * top)
    plots.decorate(axes)
    name = f"chance, ln V = {nats(chance)}"
    axes.axhline(chance, color="#767676", linestyle=(0, (1, 1)), label=name, zorder=0)


def _finish(figure: Figure, all_axes: Sequence[Axes]) -> None:
    """The legend: every line once, whichever panel it is in."""
    all_axes[0].set_ylabel("loss on validation, nats per byte")
    entries: dict[str, Any] = {}
    for axes in all_axes:
        handles, labels = axes.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            entries.setdefault(label, handle)
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside right upper",
        frameon=False,
        fontsize=8,
        ncols=1 + len(entries) // 24,
    )


def _loss(cell: Cell) -> str:
    """Three figures, and no power of ten for a loss beyond a thousand."""
    if math.isinf(cell.score):
        return "NaN"
    return f"{cell.mean:.0f}" if cell.mean >= 100 else f"{cell.mean:.3g}"
