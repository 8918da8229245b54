"""Slopes and comparisons of a run of kind ``bound``: numbers only, no words.

Runs of one seed share their start, their noise and their ages across methods, so that
methods are compared within a seed.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit

Row = Mapping[str, Any]
Measure = Literal["error", "excess", "bias"]
Line = Mapping[int, Row]

POINTS = 3  # delays that a slope needs at least
FLAT = 0.25  # a slope below it: twice the delay costs less than 19 %


@dataclasses.dataclass(frozen=True)
class Slope:
    """``d log measure / d log tau_max``, by least squares.

    Attributes:
      value: the slope of the mean over seeds; NaN where it can't be had.
      error: its standard error, by the jackknife over seeds; NaN for one seed.
      seeds: how many there are.
      taus: the delays that it was fitted to.
    """

    value: float
    error: float
    seeds: int
    taus: tuple[int, ...]

    @property
    def known(self) -> bool:
        """Whether there is a slope with an error."""
        return math.isfinite(self.value) and math.isfinite(self.error)

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval by Student's t."""
        return self.value - _quantile(self.seeds) * self.error

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval by Student's t."""
        return self.value + _quantile(self.seeds) * self.error


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The geometric mean over seeds of a ratio of errors, and its 95 % interval."""

    value: float
    low: float
    high: float


class Bound:
    """A summary's rows by place.

    Attributes:
      functions, kinds, methods: in their order; kinds are those of ages.
      taus: every tau_max, ascending, with 0.
      alpha: decay per round of age.
    """

    def __init__(self, summary: Mapping[str, Any]) -> None:
        rows: Sequence[Row] = summary["rows"]
        self.alpha = float(summary["alpha"])
        self.functions = _unique(row["function"] for row in rows)
        self.methods = _unique(row["method"] for row in rows)
        self.kinds = [k for k in _unique(r["kind"] for r in rows) if k != "none"]
        self.taus = sorted({int(row["tau_max"]) for row in rows})
        self._rows = rows

    def line(self, function: str, kind: str, method: str) -> Line:
        """Rows of a method by tau_max, the one without delay among them."""
        place = (function, method)
        return {
            row["tau_max"]: row
            for row in sorted(self._rows, key=lambda row: row["tau_max"])
            if (row["function"], row["method"]) == place
            and row["kind"] in (kind, "none")
        }

    def places(self) -> list[tuple[str, str]]:
        """Every function with every kind of ages."""
        return [(f, k) for k in self.kinds for f in self.functions]

    def late(self) -> list[int]:
        """The delays from ``1 / alpha`` on, where the theorem's bound is flat."""
        return [tau for tau in self.taus if tau >= 1.0 / self.alpha]


def lost(row: Row) -> bool:
    """Whether a seed of the cell diverged; such a cell is in no slope."""
    return any(row["diverged"])


def values(row: Row, measure: str) -> np.ndarray:
    """A measure of every seed, (S,); NaN where it isn't finite."""
    given = [math.nan if x is None else x for x in row[measure]]
    return np.asarray(given, float)


def slope(line: Line, measure: Measure, taus: Sequence[int] | None = None) -> Slope:
    """Fits one slope.

    Args:
      line: rows by tau_max.
      measure: ``error``; ``bias``; or ``excess``, the error beyond that without delay,
        fitted where its mean is more than two standard errors above zero.
      taus: delays to fit; by default all. Zero and cells that diverged are left out.
    """
    chosen = [t for t in line if t > 0 and (taus is None or t in taus)]
    chosen = [t for t in chosen if not lost(line[t])]
    table = {t: _measure(line, t, measure) for t in chosen}
    kept = [t for t in chosen if _positive(table[t], measure == "excess")]
    seeds = len(next(iter(table.values()))) if table else 0
    if len(kept) < POINTS:
        return Slope(math.nan, math.nan, seeds, tuple(kept))
    logs = np.log(kept)
    points = np.stack([table[t] for t in kept])  # (T, S)

    def fit(means: np.ndarray) -> float:
        if not np.all(means > 0):
            return math.nan
        return float(np.polyfit(logs, np.log(means), 1)[0])

    return Slope(fit(points.mean(axis=1)), _jackknife(points, fit), seeds, tuple(kept))


def ratio(ours: Row, theirs: Row) -> Ratio | None:
    """Ours over theirs, paired by seed; None with a diverged or a single seed."""
    if lost(ours) or lost(theirs):
        return None
    first, second = values(ours, "error"), values(theirs, "error")
    if len(first) < 2 or not np.all((first > 0) & (second > 0)):
        return None
    logs = np.log(first / second)
    half = _quantile(len(logs)) * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    mean = float(logs.mean())
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _measure(line: Line, tau: int, measure: Measure) -> np.ndarray:
    if measure != "excess":
        return values(line[tau], measure)
    if 0 not in line or lost(line[0]):
        return np.full(len(line[tau]["error"]), math.nan)
    return values(line[tau], "error") - values(line[0], "error")


def _positive(found: np.ndarray, clearly: bool) -> bool:
    if not np.all(np.isfinite(found)):
        return False
    count = len(found)
    error = float(np.std(found, ddof=1)) / math.sqrt(count) if count > 1 else 0.0
    return float(found.mean()) > (2.0 * error if clearly else 0.0)


def _jackknife(points: np.ndarray, fit: Callable[[np.ndarray], float]) -> float:
    """Standard error of ``fit`` of the mean over seeds, the last axis."""
    count = points.shape[1]
    if count < 2:
        return math.nan
    rest = (points.sum(axis=1, keepdims=True) - points) / (count - 1)
    fits = np.array([fit(rest[:, seed]) for seed in range(count)])
    return float(np.sqrt((count - 1) * np.mean(np.square(fits - fits.mean()))))


def _quantile(seeds: int) -> float:
    return float(stdtrit(seeds - 1, 0.975)) if seeds > 1 else math.inf


def _unique(names: Any) -> list[str]:
    return list(dict.fromkeys(names))
