"""The picture of a run of kind ``bound``: error and bias against tau_max, log-log."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from spheroid_jax.reports import plots
from spheroid_jax.reports.bound.fits import Bound, Line, lost, values
from spheroid_jax.reports.bound.names import method_label

_STYLES: Mapping[str, Mapping[str, Any]] = {
    "sgd": {"color": "#e69f00", "linestyle": "--", "marker": "D"},
    "heavy_ball": {"color": "#cc79a7", "linestyle": "-.", "marker": "v"},
    "nesterov": {"color": "#d55e00", "linestyle": "-", "marker": "o"},
    "adam": {"color": "#000000", "linestyle": "-", "marker": "s"},
    "adam_decay": {"color": "#009e73", "linestyle": ":", "marker": "^"},
    "cgad": {"color": "#0072b2", "linestyle": "--", "marker": "P"},
}
_ZERO = 0.5  # where no delay stands on the logarithmic axis
_NAMES = {
    "error": "late mean squared gradient",
    "bias": "squared bias, weighted by sigma",
}


def plot_bound(summary: Mapping[str, Any], path: Path) -> None:
    """Writes the picture of :func:`bound_figure` to ``path``, as PNG."""
    plots.save(bound_figure(summary), path)


def bound_figure(summary: Mapping[str, Any]) -> Figure:
    """Draws all methods, a column a function, a row a measure and kind of ages.

    Lines are means over seeds and bars their standard errors. A cell that diverged is
    a cross near the upper edge. A grey line of slope two and one at ``1 / alpha`` guide
    the eye.
    """
    bound = Bound(summary)
    rows = [(measure, kind) for measure in _NAMES for kind in bound.kinds]
    columns = len(bound.functions)
    figure = Figure(
        figsize=(3.6 * columns + 1.8, 2.9 * len(rows)), layout="constrained"
    )
    grid = figure.subplots(len(rows), columns, squeeze=False, sharex=True)
    for (measure, kind), line_of_axes in zip(rows, grid, strict=True):
        for axes, function in zip(line_of_axes, bound.functions, strict=True):
            _panel(axes, bound, function, kind, measure)
            axes.set_title(f"{function}, {kind} ages", fontsize=10)
        line_of_axes[0].set_ylabel(_NAMES[measure], fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("tau_max")
    plots.legend(figure, grid[0, 0], None)
    return figure


def _panel(axes: Axes, bound: Bound, function: str, kind: str, measure: str) -> None:
    lines = {m: bound.line(function, kind, m) for m in bound.methods}
    axes.set_xscale("log")
    axes.set_yscale("log")
    for number, (method, line) in enumerate(lines.items()):
        style = {"linewidth": 1.4, "markersize": 4.5} | dict(_STYLES.get(method, {}))
        shown = [t for t in line if not lost(line[t]) and (t or measure == "error")]
        found = [values(line[t], measure) for t in shown]
        means = np.array([v.mean() for v in found])
        bars = [v.std(ddof=1) / np.sqrt(len(v)) if len(v) > 1 else 0.0 for v in found]
        name = method_label(method)
        xs = [t or _ZERO for t in shown]
        axes.errorbar(xs, means, yerr=bars, label=name, capsize=2, **style)
        gone = [t for t in line if lost(line[t])]
        place = axes.get_xaxis_transform()
        axes.plot(
            [t or _ZERO for t in gone],
            [0.98 - 0.04 * number] * len(gone),  # none hides another
            transform=place,
            linestyle="none",
            marker="x",
            color=style.get("color"),
        )
    _guides(axes, bound, lines, measure)
    ticks = [t or _ZERO for t in bound.taus]
    axes.set_xticks(ticks, [str(t) for t in bound.taus])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="y", which="minor", labelsize=7)
    plots.decorate(axes)


def _guides(axes: Axes, bound: Bound, lines: Mapping[str, Line], measure: str) -> None:
    """Slope two from the lowest first point, and where the bound's maximum is."""
    grey: dict[str, Any] = {"color": "#999999", "linewidth": 1.0, "zorder": 0}
    axes.axvline(1.0 / bound.alpha, linestyle=":", label="tau_max = 1 / alpha", **grey)
    taus = [t for t in bound.taus if t]
    first = [
        float(values(line[taus[0]], measure).mean())
        for line in lines.values()
        if taus and taus[0] in line and not lost(line[taus[0]])
    ]
    if not first or len(taus) < 2:
        return
    limits = axes.get_ylim()
    xs = np.array(taus, float)
    ys = max(first) * np.square(xs / xs[0])
    axes.plot(xs, ys, linestyle="-", label="proportional to tau_max^2", **grey)
    axes.set_ylim(limits)
