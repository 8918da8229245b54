"""The picture of training over a network.

Of a sweep over regimes: losses against simulated time for one network, and final losses
of all. Of a sweep over deadlines: losses against participation, and the paper's own on
an axis of its own. Of a single run: its curves. Methods have colours, and policies
lines: dotted in lockstep, dashed where late updates are dropped, solid where they are
kept.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from spheroid_jax.reports import plots
from spheroid_jax.reports.delays.summary import Cell
from spheroid_jax.reports.network.names import method_label
from spheroid_jax.reports.network.summary import (
    DEADLINE,
    DROP,
    GATE,
    LOCKSTEP,
    SAME_IN_TIME,
    Setting,
    Sweep,
    mean_of,
    read,
)
from spheroid_jax.reports.published import Entry, load_published

Style = dict[str, Any]
_COLORS = {"mean": "#0072b2", "nesterov": "#d55e00", "adam": "#000000"}
_WEIGHTED = {  # a hue of its own beside that of the method without weights
    "mean_weighted": "#56b4e9",
    "nesterov_weighted": "#e69f00",
    "cgad": "#009e73",
    "cgad_both": "#cc79a7",
}
_MARKERS = {"mean": "o", "nesterov": "v", "adam": "s"}
_WEIGHTED_MARKERS = {"mean": "P", "nesterov": "^", "adam": "D"}
_OTHER = ("#767676", "X")
_FOCUS = ("wan", "mild", "bad_edge")  # whose curves are shown, the first one that ran
_LINES: Mapping[str, Any] = {LOCKSTEP: ":", DROP: "--", GATE: "-", "quorum": "-."}
_TICKS = (*(0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5), *(3.0, 3.5, 4.0, 5.0))
_CHANCE = (0, (1, 1))
_ROOM = 1.06  # of chance: where the axis ends
_LOSS = "cross-entropy on validation, nats per byte"


def plot(summary: Mapping[str, Any], path: Path) -> None:
    """Writes the picture of a summary to ``path``, as PNG."""
    plots.save(figure(summary), path)


def figure(summary: Mapping[str, Any]) -> Figure:
    """Draws the picture that fits the summary."""
    sweep = read(summary)
    if not sweep.x:
        drawn = Figure(figsize=(8.4, 4.8), layout="constrained")
        axes = [drawn.subplots()]
        _curves(axes[0], sweep, list(sweep.settings))
    elif sweep.x == DEADLINE:
        drawn = Figure(figsize=(12.0, 4.8), layout="constrained")
        axes = list(drawn.subplots(1, 2, width_ratios=(3, 1)))
        _participation(axes[0], sweep)
        _paper(axes[1])
    else:
        drawn = Figure(figsize=(14.0, 5.2), layout="constrained")
        axes = list(drawn.subplots(1, 2, sharey=True))
        _curves(axes[0], sweep, _focus(sweep))
        _by_network(axes[1], sweep)
    axes[0].set_ylabel(_LOSS)
    _legend(drawn, sweep)
    return drawn


def caption(sweep: Sweep) -> str:
    """What the picture shows, in a sentence or two."""
    ends = "Bars are one sample standard deviation over seeds."
    bands = "Curves are means over seeds."
    lines = "Dotted is lockstep, dashed is `drop`, solid is `gate`"
    quorum = any(setting.has_quorum for setting in sweep.settings)
    lines += ", dashes and dots close by a quorum." if quorum else "."
    if not sweep.x:
        return f"{bands} {lines}"
    if sweep.x == DEADLINE:
        return (
            "Left: ours; a place is the share in time with `drop` at that deadline, "
            f"and `gate` stands at the place of the same deadline. {ends} Right: the "
            "paper's three points, of another scale and on an axis of their own."
        )
    shown = "; ".join(setting.label for setting in _focus(sweep))
    return f"Left: {shown}. {bands} {lines} Right: final losses. {ends}"


def style(method: str) -> Style:
    """Colour and marker: of one method in all pictures the same."""
    base = SAME_IN_TIME.get(method)
    if base is None:
        return {
            "color": _COLORS.get(method, _OTHER[0]),
            "marker": _MARKERS.get(method, _OTHER[1]),
        }
    return {"color": _WEIGHTED[method], "marker": _WEIGHTED_MARKERS[base]}


def _line(setting: Setting) -> str:
    if setting.preset == LOCKSTEP:
        return _LINES[LOCKSTEP]
    return _LINES["quorum" if setting.has_quorum else setting.late]


def _focus(sweep: Sweep) -> list[Setting]:
    """The settings of one network, and lockstep."""
    presets = [s.preset for s in sweep.settings if s.preset != LOCKSTEP]
    chosen = next((p for p in _FOCUS if p in presets), presets[0] if presets else "")
    return [s for s in sweep.settings if s.preset in (LOCKSTEP, chosen)]


def _curves(axes: Axes, sweep: Sweep, settings: Sequence[Setting]) -> None:
    """Losses against simulated time; what is beyond the axis is cut off."""
    shown: list[float] = []
    for setting in settings:
        for method in sweep.methods:
            cell = sweep.cells.get((method, setting))
            if cell is None or not cell.row.get("time"):
                continue
            times = np.array(cell.row["time"], float).mean(axis=1)
            losses = np.array(cell.row["curve"]["loss"], float).mean(axis=1)
            if not np.isfinite(losses).any():  # some seed has none at any point
                continue
            shown += losses[np.isfinite(losses)].tolist()
            look: Style = {"linewidth": 1.5, "markersize": 4, "markevery": 0.2}
            look |= style(method) | {"linestyle": _line(setting)}
            axes.plot(times, losses, **look)
    axes.set_xlabel("simulated seconds")
    _finish(axes, sweep, shown)


def _by_network(axes: Axes, sweep: Sweep) -> None:
    """Final losses of every setting, methods side by side."""
    step = 0.6 / max(len(sweep.methods) - 1, 1)
    for number, method in enumerate(sweep.methods):
        shift = step * (number - (len(sweep.methods) - 1) / 2)
        places = [
            (place + shift, cell)
            for place, setting in enumerate(sweep.settings)
            if (cell := sweep.cells.get((method, setting))) is not None
        ]
        _dots(axes, sweep, places, method, "none")
    names = [s.short.replace(" ", "\n", 1) for s in sweep.settings]
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_xlim(-0.5, max(len(names), 1) - 0.5)
    axes.xaxis.set_minor_locator(NullLocator())
    _finish(axes, sweep, [c.mean for c in sweep.cells.values()])


def _participation(axes: Axes, sweep: Sweep) -> None:
    """Losses against the share in time of the run with ``drop``."""
    for method in sweep.methods:
        for late in dict.fromkeys(s.late for s in sweep.settings):
            places = sorted(
                (
                    (100 * _share(sweep, setting), cell)
                    for setting in sweep.settings
                    if setting.late == late
                    and (cell := sweep.cells.get((method, setting))) is not None
                ),
                key=lambda item: item[0],
            )
            _dots(axes, sweep, places, method, _LINES[late])
    axes.set_xlabel("updates in time with drop at that deadline, %")
    axes.set_title("this sweep", fontsize=10)
    _finish(axes, sweep, [c.mean for c in sweep.cells.values()])


def _share(sweep: Sweep, setting: Setting) -> float:
    """Participation with ``drop`` of the same network; its own where there is none."""
    dropped = setting.plain(DROP)
    cells = [cell for (_, own), cell in sweep.cells.items() if own == dropped]
    cells = cells or [cell for (_, own), cell in sweep.cells.items() if own == setting]
    return mean_of(cells[0], "participation")


def _paper(axes: Axes) -> None:
    """The paper's points by participation, on an axis of their own."""
    numbers = load_published()
    entries: Mapping[str, Entry] = numbers.of("participation_sweep") if numbers else {}
    points = sorted((100 * float(k), e.numbers["CE"]) for k, e in entries.items())
    if points:
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, color="#cc79a7", marker="*", markersize=10, linestyle="--")
    for x, y in points:
        axes.annotate(f"{y:g}", (x, y), xytext=(5, 5), textcoords="offset points")
    axes.set_xlabel("participation, %")
    axes.set_title("BlockTrain, drop: another scale", fontsize=10)
    axes.margins(x=0.2)
    plots.decorate(axes)


def _dots(
    axes: Axes,
    sweep: Sweep,
    places: Sequence[tuple[float, Cell]],
    method: str,
    line: str,
) -> None:
    """Means with bars; what is beyond the axis stands at its edge with a number."""
    if not places:
        return
    top = _ROOM * sweep.chance
    xs = [x for x, _ in places]
    ys = [min(cell.score, top) for _, cell in places]
    bars = [
        (cell.std or 0.0) if y < top else 0.0
        for (_, cell), y in zip(places, ys, strict=True)
    ]
    look: Style = {"linewidth": 1.4, "markersize": 6, "capsize": 2, "linestyle": line}
    axes.errorbar(
        xs,
        ys,
        yerr=bars if any(bars) else None,
        **(look | style(method)),
    )
    for x, y, (_, cell) in zip(xs, ys, places, strict=True):
        if y == top:
            text = "NaN" if math.isinf(cell.score) else f"{cell.mean:.3g}"
            axes.annotate(
                text, (x, top), ha="center", va="bottom", rotation=90, fontsize=7
            )


def _finish(axes: Axes, sweep: Sweep, values: Sequence[float]) -> None:
    """A logarithmic axis of losses, and chance as a line."""
    below = [v for v in values if math.isfinite(v) and 0 < v < sweep.chance]
    low = 0.97 * min(below, default=0.5 * sweep.chance)
    top = 1.02 * _ROOM * sweep.chance
    ticks = [tick for tick in _TICKS if low <= tick <= top]
    axes.set_yscale("log")
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(low, top)
    axes.axhline(sweep.chance, color=_OTHER[0], linestyle=_CHANCE, zorder=0)
    plots.decorate(axes)


def _legend(drawn: Figure, sweep: Sweep) -> None:
    """Methods by marker, then policies by line, then chance."""
    kinds = {LOCKSTEP if s.preset == LOCKSTEP else s.late for s in sweep.settings}
    kinds |= {"quorum" for s in sweep.settings if s.has_quorum}
    if sweep.x == DEADLINE:
        kinds.discard(LOCKSTEP)  # it has a place there, and no line of its own
    look: Style = {"color": _OTHER[0], "marker": "none"}
    handles = [
        *(
            Line2D([], [], linestyle="none", label=method_label(m), **style(m))
            for m in sweep.methods
        ),
        *(
            Line2D([], [], linestyle=line, label=name, **look)
            for name, line in _LINES.items()
            if name in kinds
        ),
        Line2D([], [], linestyle=_CHANCE, label="chance", **look),
    ]
    drawn.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=8)
