"""Pictures of a run and of a sweep, as PNG files.

Drawn on figures of their own, so no global state of pyplot is touched. Colours are
those of Okabe and Ito, which colour-blind readers tell apart; line styles and markers
repeat the distinction for paper.
"""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from spheroid_jax.reports.files import write_atomic
from spheroid_jax.reports.labels import CURVES, METHOD_OF, RESULTS, label
from spheroid_jax.reports.tables import si

_BLACK, _ORANGE, _SKY, _GREEN = "#000000", "#e69f00", "#56b4e9", "#009e73"
_BLUE, _VERMILION, _PURPLE, _GREY = "#0072b2", "#d55e00", "#cc79a7", "#767676"
_STYLES: dict[str, dict[str, Any]] = {
    "end_to_end": {"color": _BLACK, "linestyle": "-", "marker": "s"},
    "block_sized": {"color": _ORANGE, "linestyle": "--", "marker": "D"},
    "ce_chain": {"color": _BLUE, "linestyle": "-", "marker": "o"},
    "ce_ensemble": {"color": _GREEN, "linestyle": "-.", "marker": "^"},
    "ce_first": {"color": _VERMILION, "linestyle": ":", "marker": "v"},
    "ce_mix": {"color": _PURPLE, "linestyle": "--", "marker": "P"},
}
_OTHERS = [  # for results without a style of their own, such as local CE by block
    {"color": color, "linestyle": "-", "marker": marker}
    for marker in ("x", "+", "*")
    for color in (_SKY, _GREY, _PURPLE)
]
_Y_TICKS = (  # the roundest first, since a tick needs room
    *(1, 2, 5, 10, 20, 50, 100, 0.5, 0.2, 0.1),
    *(1.5, 3, 4, 7, 15, 30),
    *(1.2, 1.4, 1.6, 1.8, 2.5, 1.1, 1.3, 1.7, 1.9),
)
_Y_LABELS = 12  # at most about so many on a logarithmic axis
_AXIS = {"round": "rounds", "bytes_seen": "bytes seen in training"}


def plot_curves(
    records: Sequence[Mapping[str, Any]],
    path: Path,
    *,
    levels: Mapping[str, float],
    title: str = "",
) -> None:
    """Writes the picture of :func:`curves_figure` to ``path``, as PNG."""
    save(curves_figure(records, levels=levels, title=title), path)


def curves_figure(
    records: Sequence[Mapping[str, Any]], *, levels: Mapping[str, float], title: str
) -> Figure:
    """Draws cross-entropy on validation against rounds and against bytes seen.

    Args:
      records: as :func:`spheroid_jax.reports.log.read_metrics` returns them.
      levels: horizontal lines by name, in nats per byte.
      title: a line above the picture.
    """
    curves = {
        result: points
        for result in RESULTS
        if result in CURVES and (points := _curve(records, result))
    }
    figure = Figure(figsize=(10.5, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, x in ((left, "round"), (right, "bytes_seen")):
        for result, points in curves.items():
            xs, ys = [p[x] for p in points], [p["ce"] for p in points]
            name = f"{label(result)}  {ys[-1]:.3f}"
            axes.plot(xs, ys, label=name, **_line_style(result, len(xs)))
        axes.set_xlabel(_AXIS[x])
        decorate(axes)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.xaxis.set_major_formatter(FuncFormatter(lambda value, _: si(value)))
    left.set_ylabel("cross-entropy on validation, nats per byte")
    _draw_levels((left, right), levels)
    values = [point["ce"] for points in curves.values() for point in points]
    _logarithmic(left, [*values, *levels.values()])
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    if curves:
        legend(figure, left, "at the last point of the curve")
    return figure


def plot_sweep(
    rows: Sequence[Mapping[str, Any]],
    path: Path,
    *,
    x: str,
    series: Sequence[str],
    x_label: str,
    log_x: bool = False,
) -> None:
    """Writes the picture of :func:`sweep_figure` to ``path``, as PNG."""
    save(sweep_figure(rows, x=x, series=series, x_label=x_label, log_x=log_x), path)


def sweep_figure(
    rows: Sequence[Mapping[str, Any]],
    *,
    x: str,
    series: Sequence[str],
    x_label: str,
    log_x: bool,
) -> Figure:
    """Draws results of a sweep's cells against the setting that was swept.

    Args:
      rows: cells of the sweep, with ``settings`` and ``results``.
      x: the setting; values that aren't numbers stand side by side in given order.
      series: keys of ``results``; a cell without one leaves a gap, and a result that
        is a list (one number a block) becomes several lines.
      x_label: what to call the axis.
      log_x: whether the axis is logarithmic.
    """
    values = [row["settings"].get(x, "as configured") for row in rows]
    numeric = all(type(value) in (int, float) for value in values)
    if numeric:
        rows = sorted(rows, key=lambda row: row["settings"][x])
        positions = [row["settings"][x] for row in rows]
    else:
        positions = list(range(len(rows)))
    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    axes = figure.subplots()
    lines = _sweep_lines(rows, series)
    for number, (result, name, ys) in enumerate(lines):
        style, xs = _sweep_style(result, number), positions
        if not numeric:  # nothing lies between two names, and equal values must show
            style["linestyle"] = "none"
            xs = [place + 0.06 * (number - (len(lines) - 1) / 2) for place in xs]
        axes.plot(xs, ys, label=name, **style)
    if numeric:
        axes.set_xscale("log" if log_x else "linear")
        axes.set_xticks(positions, [f"{value:g}" for value in positions])
    else:
        axes.set_xticks(positions, [_text(value) for value in values])
        axes.set_xlim(-0.5, len(rows) - 0.5)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(x_label)
    axes.set_ylabel("cross-entropy on validation, nats per byte")
    decorate(axes)
    if lines:
        legend(figure, axes, None)
    return figure


def _curve(records: Sequence[Mapping[str, Any]], result: str) -> list[dict[str, float]]:
    """Points of one curve: round, bytes_seen, ce; those without a number left out."""
    metric = CURVES[result]
    return [
        {"round": r["round"], "bytes_seen": r["bytes_seen"], "ce": r[metric]}
        for r in records
        if r["method"] == METHOD_OF[result]
        and r.get(metric) is not None
        and r.get("bytes_seen") is not None
    ]


def _sweep_lines(
    rows: Sequence[Mapping[str, Any]], series: Sequence[str]
) -> list[tuple[str, str, list[float]]]:
    """Returns (result, name, a value for each row) of every line with a number."""
    lines = []
    for result in series:
        found = [row["results"].get(result) for row in rows]
        blocks = max((len(v) for v in found if isinstance(v, list)), default=0)
        if blocks:
            per_block = [v if isinstance(v, list) else [] for v in found]
            lines += [
                (
                    result,
                    f"{label(result)}, block {b}",
                    [_number(v[b]) if b < len(v) else math.nan for v in per_block],
                )
                for b in range(blocks)
            ]
        else:
            lines.append((result, label(result), [_number(value) for value in found]))
    return [line for line in lines if not all(map(math.isnan, line[2]))]


def _line_style(result: str, points: int) -> dict[str, Any]:
    """Style of a curve; about ten of its points get a marker."""
    style = {"linewidth": 1.8, "markersize": 5, "markevery": max(1, points // 10)}
    return style | _STYLES[result]


def _sweep_style(result: str, number: int) -> dict[str, Any]:
    other = _OTHERS[number % len(_OTHERS)]
    return {"linewidth": 1.8, "markersize": 7} | _STYLES.get(result, other)


def _draw_levels(both: Sequence[Axes], levels: Mapping[str, float]) -> None:
    for axes in both:
        for value in levels.values():
            axes.axhline(value, color=_GREY, linestyle=":", linewidth=1.0, zorder=0)
    for name, value in levels.items():
        name_level(both[-1], f"{name}  {value:.3f}", value, _GREY)


def name_level(axes: Axes, name: str, value: float, color: str) -> None:
    """Writes a name above a level, at the right end of ``axes``."""
    axes.annotate(
        name,
        (1.0, value),
        xycoords=("axes fraction", "data"),
        xytext=(-3, 2),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color=color,
    )


def _logarithmic(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis with plain numbers: late differences are small ones."""
    positive = [value for value in values if value > 0]
    if not positive:
        return
    low, high = min(positive) / 1.06, max(positive) * 1.06
    apart = math.log(high / low) / _Y_LABELS
    ticks: list[float] = []
    for tick in _Y_TICKS:
        if all(abs(math.log(tick / other)) >= apart for other in ticks):
            ticks.append(tick)
    axes.set_yscale("log")
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(low, high)


def decorate(axes: Axes) -> None:
    """A light grid behind the lines, and no frame above and right of them."""
    axes.grid(True, color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend(figure: Figure, axes: Axes, title: str | None) -> None:
    """Names what ``axes`` shows, beside the picture."""
    handles, names = axes.get_legend_handles_labels()
    frame = {"frameon": False, "fontsize": 9}
    figure.legend(handles, names, title=title, loc="outside right upper", **frame)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG, whole or not at all."""
    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    write_atomic(path, buffer.getvalue())
