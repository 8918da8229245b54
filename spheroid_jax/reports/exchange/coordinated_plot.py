"""The picture of a coordinator's run: CE over rounds, time and bytes, and who came."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from spheroid_jax.reports import plots, sections
from spheroid_jax.reports.exchange import facts
from spheroid_jax.reports.labels import label
from spheroid_jax.reports.tables import finite, si

CAPTION = "CE against rounds, time and bytes moved, and the share of updates that came"
_CE = {"ce_chain": "#0072b2", "ce_ensemble": "#009e73"}
_CAME = {"in time": "#0072b2", "late": "#e69f00"}
_BARS = 100  # at most; with more rounds a bar is of several
_UNITS = ((7200.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))


def plot_coordinated(
    summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]], path: Path
) -> None:
    """Writes the picture of :func:`coordinated_figure` to ``path``, as PNG."""
    plots.save(coordinated_figure(summary, records), path)


def coordinated_figure(
    summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
) -> Figure:
    """Draws CE on validation three times, and participation.

    Args:
      summary: its ``ce`` has points with ``round``, ``seconds`` and ``bytes``.
      records: a record a round.
    """
    figure = Figure(figsize=(10.5, 7.6), layout="constrained")
    (rounds, seconds), (moved, came) = figure.subplots(2, 2)
    points, levels = summary["ce"], _levels(summary)
    unit, name = _unit(points)
    _losses(rounds, points, "round", levels)
    _losses(seconds, points, "seconds", levels, unit)
    _losses(moved, points, "bytes", levels)
    for axes in (seconds, moved):
        axes.sharey(rounds)
    rounds.set_xlabel("rounds")
    rounds.xaxis.set_major_locator(MaxNLocator(integer=True))
    if points:
        rounds.legend(frameon=False, fontsize=9)
    seconds.set_xlabel(f"{name} that the coordinator was up")
    moved.set_xlabel("bytes moved, both ways")
    moved.xaxis.set_major_formatter(FuncFormatter(lambda value, _: si(value, "B")))
    _participation(came, records)
    done, of = summary["rounds_done"], summary["rounds"]
    state = "" if summary["state"] == "finished" else f", unfinished: {done} of {of}"
    title = f"{sections.run_name(summary)}{state}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def _levels(summary: Mapping[str, Any]) -> dict[str, float]:
    corpus = summary["corpus"] or {"entropies": []}
    levels = {"uniform guess, ln 256": math.log(256)}
    for order, entropy in list(enumerate(corpus["entropies"]))[1:2]:
        levels[f"order-{order} entropy"] = entropy
    return levels


def _losses(
    axes: Axes,
    points: Sequence[Mapping[str, Any]],
    x: str,
    levels: Mapping[str, float],
    unit: float = 1.0,
) -> None:
    for ce, color in _CE.items():
        found = [p for p in points if finite(p.get(ce))]
        axes.plot(
            [p[x] / unit for p in found],
            [p[ce] for p in found],
            color=color,
            marker="." if len(found) <= 60 else "",
            label=label(ce),
        )
    for name, value in levels.items():
        axes.axhline(value, color="#999999", linestyle=":", linewidth=1.0, zorder=0)
        plots.name_level(axes, name, value, "#999999")
    axes.set_ylabel("CE on validation, nats per byte")
    plots.decorate(axes)


def _unit(points: Sequence[Mapping[str, Any]]) -> tuple[float, str]:
    longest = max((p["seconds"] for p in points), default=0.0)
    return next((unit, name) for least, unit, name in _UNITS if longest >= least)


def _participation(axes: Axes, records: Sequence[Mapping[str, Any]]) -> None:
    bars = list(_bars(records))
    bottom = np.zeros(len(bars))
    for number, (name, color) in enumerate(_CAME.items()):
        heights = np.array([shares[number] for _, _, shares in bars])
        axes.bar(
            [middle for middle, _, _ in bars],
            heights,
            width=[width for _, width, _ in bars],
            bottom=bottom,
            color=color,
            label=name,
        )
        bottom = bottom + heights
    axes.axhline(1.0, color="#999999", linestyle=":", linewidth=1.0)
    axes.set_ylim(0.0, max(1.05, 1.05 * float(np.max(bottom, initial=0.0))))
    axes.set_xlabel("rounds")
    axes.set_ylabel("updates, share of the slots")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if bars:
        axes.legend(
            frameon=False, fontsize=9, ncols=2, loc="lower right", bbox_to_anchor=(1, 1)
        )
    plots.decorate(axes)


def _bars(
    records: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[float, float, tuple[float, float]]]:
    """Middle and width in rounds, and the shares in time and late."""
    for rows in facts.chunks(records, _BARS):
        first, last = rows[0]["round"], rows[-1]["round"]
        expected = max(1, sum(r["expected"] for r in rows))
        timely = sum(r["timely"] for r in rows)
        late = sum(r["heard"] for r in rows) - timely
        shares = timely / expected, late / expected
        yield (first + last) / 2, last - first + 0.9, shares
