"""The best learning rate and momentum of Nesterov's rule at each delay."""

import dataclasses
import math
from typing import Any

from spheroid_jax.reports.delays.summary import Cell, Sweep


@dataclasses.dataclass(frozen=True)
class Best:
    """The lowest cell of a grid of Nesterov variants.

    Attributes:
      method: its key.
      pair: learning rate and momentum.
      cell: its losses.
      rival: the lowest cell of the other kind: with momentum if this one has none,
        and without if it has; None if the grid has no finite one.
    """

    method: str
    pair: tuple[float, float]
    cell: Cell
    rival: Cell | None


def is_tuning(sweep: Sweep) -> bool:
    """Whether the experiment is about a grid of Nesterov's settings."""
    return sweep.raw.get("name") == "tuned_nesterov"


def best_pairs(sweep: Sweep, panel: Any) -> dict[Any, Best]:
    """The best of the grid by place on the axis.

    Places where no variant has a finite loss in all seeds are left out, and all of
    them if there are fewer than two variants: one point is no grid.
    """
    pairs = {m: p for m in sweep.methods if (p := sweep.rate_and_momentum(m))}
    if len(pairs) < 2:
        return {}
    found = {}
    for x in sweep.xs:
        cells = {
            method: cell
            for method in pairs
            if (cell := sweep.cell(method, panel, x)) and math.isfinite(cell.score)
        }
        if cells:
            best = min(cells, key=lambda method: cells[method].score)
            moves = pairs[best][1] > 0
            rivals = [c for m, c in cells.items() if (pairs[m][1] > 0) != moves]
            rival = min(rivals, key=lambda cell: cell.score, default=None)
            found[x] = Best(best, pairs[best], cells[best], rival)
    return found


def ends_of_grid(sweep: Sweep) -> dict[str, tuple[float, float]]:
    """Lowest and highest learning rate and momentum of the grid."""
    pairs = [p for m in sweep.methods if (p := sweep.rate_and_momentum(m))]
    rates, momenta = zip(*pairs, strict=True) if pairs else ((0.0,), (0.0,))
    return {
        "learning rate": (min(rates), max(rates)),
        "momentum": (min(momenta), max(momenta)),
    }
