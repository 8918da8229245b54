"""Tables of training over a network: settings down, methods across."""

import math

import numpy as np

from spheroid_jax.reports.delays.stats import Paired, change
from spheroid_jax.reports.delays.summary import Cell
from spheroid_jax.reports.delays.tables import cell_text
from spheroid_jax.reports.network.answers import contests, recoveries
from spheroid_jax.reports.network.names import method_label
from spheroid_jax.reports.network.summary import (
    LOCKSTEP,
    Setting,
    Sweep,
    ensemble,
    mean_age,
    mean_of,
)
from spheroid_jax.reports.tables import NOTHING, Table, duration, finite, nats, si

MARK = "="  # of a cell that the method without weights lends
FOOTNOTE = "= as without weights by age: nothing is late, and a weight of age 0 is 1."
_SHORT = {
    "mean_weighted": "mean/age",
    "nesterov": "nest",
    "nesterov_weighted": "nest/age",
}


def loss_table(
    sweep: Sweep, *, narrow: bool = False, of_ensemble: bool = False
) -> Table:
    """Final losses; bold is the lowest of a row.

    Args:
      sweep: the cells.
      narrow: short cells and no bold type, for the screen.
      of_ensemble: CE_ensemble in place of CE_chain.
    """
    rows = []
    for setting in sweep.settings:
        line = {
            method: shown
            for method, cell in sweep.line(setting).items()
            if (shown := ensemble(sweep, cell) if of_ensemble else cell) is not None
        }
        own = [c for m, c in line.items() if not sweep.borrowed(m, setting)]
        lowest = _lowest(own)
        texts = []
        for method in sweep.methods:
            text = cell_text(line.get(method), sweep.chance, narrow=narrow)
            if method in line and sweep.borrowed(method, setting):
                text = MARK if narrow else f"{text} {MARK}"
            elif method in line and nats(line[method].score) == lowest and not narrow:
                text = f"**{text}**"
            texts.append(text)
        rows.append([setting.short if narrow else setting.label, *texts])
    return Table(["network", *_heads(sweep, narrow)], rows, _align(sweep))


def network_table(sweep: Sweep, *, narrow: bool = False) -> Table:
    """What became of the updates, mean over seeds; the same for all methods.

    ``narrow`` leaves out what the screen has no room for.
    """
    header = [
        *("network", "in time", "received", "timely blocks", "mean age"),
        *("s a round", "in all", "busy", "useful", "bytes down", "bytes up"),
    ]
    rows = []
    for setting in sweep.settings:
        cell = _any(sweep, setting)
        seconds = mean_of(cell, "round_seconds")
        whole = seconds * sweep.rounds(setting)
        rows.append(
            [
                setting.short if narrow else setting.label,
                *[_percent(mean_of(cell, k)) for k in _SHARES],
                _number(mean_age(cell)),
                _number(seconds),
                duration(whole) if math.isfinite(whole) else NOTHING,
                *[_percent(mean_of(cell, k)) for k in ("busy", "useful")],
                *[si(mean_of(cell, k), "B") for k in ("bytes_down", "bytes_up")],
            ]
        )
    if narrow:
        kept = [0, 1, 2, 4, 5, 6, 8]
        header, rows = [header[i] for i in kept], [[r[i] for i in kept] for r in rows]
    return Table(header, rows, "l" + "r" * (len(header) - 1))


_SHARES = ("participation", "received", "timely_blocks")


def ages_table(sweep: Sweep) -> Table | None:
    """Ages of what was received, as shares; None where nothing ever was late."""
    counts = {
        s: np.array(_any(sweep, s).row.get("by_age") or [0]) for s in _late(sweep)
    }
    width = max((len(found) for found in counts.values()), default=0)
    if not width:
        return None
    rows = []
    for setting, found in counts.items():
        shares = found / max(found.sum(), 1)
        padded = [*map(_percent, shares.tolist()), *[NOTHING] * (width - len(shares))]
        rows.append([setting.label, *padded])
    header = ["age in rounds", *map(str, range(width))]
    return Table(header, rows, "l" + "r" * width)


def recovery_table(sweep: Sweep, *, narrow: bool = False) -> Table | None:
    """Shares won back by setting and method; None where nothing can be compared."""
    found = {(one.setting, one.method): one for one in recoveries(sweep)}
    rows = [
        [
            setting.short if narrow else setting.label,
            *[
                one.text(narrow=narrow) if one else NOTHING
                for one in (found.get((setting, m)) for m in sweep.methods)
            ],
        ]
        for setting in dict.fromkeys(setting for setting, _ in found)
    ]
    header = ["won back", *_heads(sweep, narrow)]
    return Table(header, rows, _align(sweep)) if rows else None


def recovery_details(sweep: Sweep) -> Table | None:
    """The losses that the shares are made of."""
    rows = [
        [
            one.setting.label,
            method_label(one.method),
            *[nats(cell.score) for cell in (one.drop, one.ours, one.lockstep)],
            *[_change(paired) for paired in (one.lost, one.won)],
            str(one),
            f"{one.seconds:.0f} s",
        ]
        for one in recoveries(sweep)
    ]
    header = [
        *("network", "method", "drop", "policy", "lockstep"),
        *("drop - lockstep", "drop - policy", "won back", "at"),
    ]
    return Table(header, rows, "ll" + "r" * 7) if rows else None


def best_table(sweep: Sweep) -> Table | None:
    """The best method and policy of every network; None without two to compare."""
    rows = []
    for one in contests(sweep):
        if one.second is None or one.margin is None:
            continue
        rows.append(
            [
                one.setting.place,
                _way(one.setting, one.method),
                nats(one.ours.mean),
                _way(*one.second),
                change(one.margin.mean),
                f"{one.noise:.1f}" if finite(one.noise) else NOTHING,
                "yes" if one.clear else "no",
            ]
        )
    header = [
        *("network", "lowest", "loss", "runner-up", "difference"),
        *("in seed noise", "told apart"),
    ]
    return Table(header, rows, "llrlrrl") if rows else None


def _way(setting: Setting, method: str) -> str:
    late = "" if setting.preset == LOCKSTEP else f", {setting.late}"
    return method_label(method) + late


def _change(paired: Paired | None) -> str:
    if paired is None:
        return NOTHING
    error = "" if paired.error is None else f" ± {nats(paired.error)}"
    return f"{change(paired.mean)}{error}"


def facts_table(sweep: Sweep) -> Table:
    """What each method is, and how long its cells took to compute."""
    rows = []
    for method in sweep.methods:
        line = str(sweep.raw.get("recipes", {}).get(method, ""))
        own = [cell.row for key, cell in sweep.cells.items() if key[0] == method]
        seconds = sum(row.get("seconds") or 0.0 for row in own)
        recipe = f"`{line}`" if line else NOTHING
        rows.append([method_label(method), method, recipe, duration(seconds)])
    return Table(["method", "key", "recipe", "time here"], rows, "lllr")


def borrows(sweep: Sweep) -> bool:
    """Whether a table of losses needs the footnote."""
    return any(sweep.borrowed(m, s) for m in sweep.methods for s in sweep.settings)


def _heads(sweep: Sweep, narrow: bool) -> list[str]:
    if narrow:
        return [_SHORT.get(method, method) for method in sweep.methods]
    return [method_label(method) for method in sweep.methods]


def _align(sweep: Sweep) -> str:
    return "l" + "r" * len(sweep.methods)


def _any(sweep: Sweep, setting: Setting) -> Cell:
    """A cell of the setting: what arrives when does not depend on the method."""
    return next(cell for (_, own), cell in sweep.cells.items() if own == setting)


def _late(sweep: Sweep) -> list[Setting]:
    return [setting for setting in sweep.settings if not setting.all_in_time]


def _lowest(cells: list[Cell]) -> str:
    """The lowest mean as the table shows it, so that equal ones share the mark."""
    scores = [cell.score for cell in cells if math.isfinite(cell.score)]
    return nats(min(scores)) if len(cells) > 1 and scores else ""


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %" if finite(value) else NOTHING


def _number(value: float) -> str:
    return f"{value:.2f}" if finite(value) else NOTHING
