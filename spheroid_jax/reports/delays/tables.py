"""Tables of a delay experiment: methods down, the swept value across."""

import math
from collections.abc import Sequence
from typing import Any

from spheroid_jax.reports.delays.names import field_label, panel_label, value_label
from spheroid_jax.reports.delays.summary import Cell, Sweep
from spheroid_jax.reports.delays.tuning import best_pairs
from spheroid_jax.reports.tables import NOTHING, Table, duration, nats, signed


def blocks(
    sweep: Sweep, *, plain: bool = False, narrow: bool = False
) -> list[tuple[str, Table]]:
    """A title and a table for each panel; the title is empty without panels.

    Args:
      sweep: the cells.
      plain: whether to leave out the bold type of the lowest in a column.
      narrow: plain as well, and with the short cells of the screen.
    """
    return [
        (_title(sweep, panel), _block(sweep, panel, plain or narrow, narrow))
        for panel in panels(sweep)
    ]


def panels(sweep: Sweep) -> list[Any]:
    """Values of the panels that have a cell."""
    return [
        p
        for p in sweep.panels
        if any(sweep.line(method, p) for method in sweep.methods)
    ]


def spread_table(sweep: Sweep) -> Table:
    """Mean, sample deviation, their sum and the share of diverged runs by cell."""
    named = [field_label(f) for f in (sweep.panel, sweep.x) if f]
    rows = []
    for panel in panels(sweep):
        for x in sweep.xs:
            for method in sweep.methods:
                if (cell := sweep.cell(method, panel, x)) is None:
                    continue
                std = cell.std
                risk = None if std is None else cell.mean + std
                settings = [
                    value_label(value)
                    for field, value in ((sweep.panel, panel), (sweep.x, x))
                    if field
                ]
                share = f"{sum(cell.diverged)} of {len(cell.final)}"
                numbers = [_mean(cell, 3), nats(std), nats(risk), share]
                rows.append([*settings, sweep.label(method), *numbers])
    header = [*named, "method", "mean", "std", "mean + std", "diverged"]
    return Table(header, rows, "l" * (len(named) + 1) + "rrrr")


def tuning_table(sweep: Sweep, panel: Any, *, narrow: bool = False) -> Table:
    """The best learning rate and momentum at each place, beside CGAD and Adam."""
    rows = []
    for x, best in best_pairs(sweep, panel).items():
        rate, momentum = best.pair
        others = [sweep.cell(method, panel, x) for method in ("cgad", "adam")]
        gap = others[0].score - best.cell.score if others[0] else math.nan
        rows.append(
            [
                value_label(x),
                f"{rate:g}",
                f"{momentum:g}",
                _cell(best.cell, sweep.chance, narrow),
                *(_cell(cell, sweep.chance, narrow) for cell in others),
                signed(gap),
            ]
        )
    header = [
        *(field_label(sweep.x) or "run", "best rate", "momentum", "Nesterov"),
        *("CGAD", "Age-blind Adam", "CGAD - Nesterov"),
    ]
    return Table(header, rows, "rrrrrrr")


def facts_table(sweep: Sweep) -> Table:
    """What each method is, and how long its cells took."""
    rows = []
    for method in sweep.methods:
        line = str(sweep.raw.get("recipes", {}).get(method, ""))
        own = [cell.row for key, cell in sweep.cells.items() if key[0] == method]
        seconds = sum(row.get("seconds") or 0.0 for row in own)
        recipe = f"`{line}`" if line else NOTHING
        rows.append([sweep.label(method), method, recipe, duration(seconds)])
    return Table(["method", "key", "recipe", "time"], rows, "lllr")


def ages_table(sweep: Sweep) -> Table | None:
    """Mean age of what was applied and how many updates were; None if not recorded."""
    rows = []
    for panel in panels(sweep):
        for x in sweep.xs:
            cells = [
                cell.row
                for method in sweep.methods
                if (cell := sweep.cell(method, panel, x)) is not None
            ]
            ages = [row["mean_age"] for row in cells if row.get("mean_age") is not None]
            counts = [float(n) for row in cells for n in _many(row.get("applied"))]
            if ages or counts:
                place = _title(sweep, panel) or NOTHING
                at = value_label(x) if sweep.x else NOTHING
                rows.append([place, at, _range(ages, ".2f"), _range(counts, "g")])
    header = ["panel", field_label(sweep.x) or "x", "mean age", "updates applied"]
    return Table(header, rows, "lrrr") if rows else None


def cell_text(cell: Cell | None, chance: float, *, narrow: bool) -> str:
    """A cell such as ``2.013 ± 0.011``.

    A mean above chance and seeds without a finite loss are marked in words; the narrow
    form has ``!`` for the first and ``NaN 1/3`` for the second.
    """
    return _cell(cell, chance, narrow)


def _cell(cell: Cell | None, chance: float, narrow: bool) -> str:
    if cell is None:
        return NOTHING
    seeds = len(cell.final)
    if not cell.finite:
        return "NaN"
    if cell.lost and narrow:
        return f"NaN {cell.lost}/{seeds}"
    between, digits = ("±", 2) if narrow else (" ± ", 3)
    text = _mean(cell, digits)
    if cell.std is not None:
        std = f"{cell.std:.{len(text.partition('.')[2])}f}"  # as fine as the mean
        text += between + (std.removeprefix("0") or std if narrow else std)
    above = sum(cell.diverged) - cell.lost
    marks = [f"{cell.lost} of {seeds} NaN"] if cell.lost else []
    if cell.mean > chance:
        marks.append("> chance")
    elif above > 0:
        marks.append(f"{above} of {seeds} > chance")
    if narrow:
        return text + "!" * bool(marks)
    return f"{text} ({', '.join(marks)})" if marks else text


def _block(sweep: Sweep, panel: Any, plain: bool, narrow: bool) -> Table:
    lines = {m: line for m in sweep.methods if (line := sweep.line(m, panel))}
    best = {
        x: _lowest([line[x] for line in lines.values() if x in line]) for x in sweep.xs
    }
    rows = []
    for method, line in lines.items():
        cells = []
        for x in sweep.xs:
            text = _cell(line.get(x), sweep.chance, narrow)
            bold = x in line and nats(line[x].score) == best[x] and not plain
            cells.append(f"**{text}**" if bold else text)
        rows.append([method if narrow else sweep.label(method), *cells])
    if sweep.x:
        name = field_label(sweep.x)
        header = [f"{name} ="] + [value_label(x) for x in sweep.xs]
    else:
        header = ["method", "loss"]
    return Table(header, rows, "l" + "r" * len(sweep.xs))


def _lowest(cells: Sequence[Cell]) -> str:
    """The lowest mean as the table shows it, so that equal ones share the mark."""
    scores = [cell.score for cell in cells if math.isfinite(cell.score)]
    return nats(min(scores)) if len(cells) > 1 and scores else ""


def _title(sweep: Sweep, panel: Any) -> str:
    return panel_label(sweep.panel, panel) if sweep.panel and panel is not None else ""


def _mean(cell: Cell, digits: int) -> str:
    return _number(cell.mean, digits) if cell.finite else "NaN"


def _number(value: float, digits: int) -> str:
    """Plain digits where they fit a column, else three significant ones."""
    if abs(value) >= 100:
        return f"{value:.3g}" if abs(value) >= 1e5 else f"{value:.0f}"
    return f"{value:.{digits if abs(value) < 10 else 1}f}"


def _many(value: Any) -> list[Any]:
    if value is None:
        return []
    found = list(value) if isinstance(value, Sequence) else [value]
    return [item for item in found if item is not None]


def _range(values: Sequence[float], digits: str) -> str:
    if not values:
        return NOTHING
    low, high = (f"{value:{digits}}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
