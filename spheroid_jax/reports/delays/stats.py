"""Differences paired by seed, and how sure they are.

Runs of one seed share their data and their start, so that a difference within a seed
is freer of noise than a difference of means.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from scipy.special import fdtri, stdtrit

from spheroid_jax.reports.delays.summary import Cell
from spheroid_jax.reports.sections import LEVEL
from spheroid_jax.reports.tables import nats, signed

MARGIN = 0.05  # nats per byte; two losses this close are called the same in practice
Outcome = Literal["lower", "higher", "level", "none", "suggestive", "one seed"]
Answer = Literal["yes", "no", "unsure"]


@dataclasses.dataclass(frozen=True)
class Paired:
    """Mean over seeds of a difference in nats per byte.

    Attributes:
      mean: the mean.
      error: its standard error; None for one seed.
      seeds: how many seeds both sides have a finite loss for.
    """

    mean: float
    error: float | None
    seeds: int

    @property
    def bound(self) -> float:
        """Half of the 95 % interval by Student's t; infinite for one seed."""
        if self.error is None:
            return math.inf
        return float(stdtrit(self.seeds - 1, 0.975)) * self.error

    @property
    def outcome(self) -> Outcome:
        """What the difference is.

        ``level``: below what a table shows. ``none``: less than two standard errors.
        ``suggestive``: more than that, yet inside the 95 % interval, which is wide
        for few seeds. ``lower`` and ``higher``: outside of it.
        """
        if self.error is None:
            return "one seed"
        if abs(self.mean) < LEVEL and self.bound < LEVEL:
            return "level"
        if abs(self.mean) < 2 * self.error:
            return "none"
        if abs(self.mean) <= self.bound:
            return "suggestive"
        return "lower" if self.mean < 0 else "higher"

    @property
    def better(self) -> Answer:
        """Whether the first side is lower.

        ``no`` takes one that is higher or level, or no difference and an interval
        that leaves no room for a gain of ``MARGIN``.
        """
        if self.outcome == "lower" and self.mean <= -LEVEL:
            return "yes"
        small = self.outcome == "none" and self.mean - self.bound >= -MARGIN
        return "no" if small or self.outcome in ("higher", "level") else "unsure"

    @property
    def same(self) -> Answer:
        """Whether the sides differ by less than ``MARGIN``, the interval included."""
        if abs(self.mean) + self.bound <= MARGIN:
            return "yes"
        return "no" if abs(self.mean) > max(MARGIN, self.bound) else "unsure"

    def __str__(self) -> str:
        """Such as ``-0.003 +- 0.002 (no difference)``."""
        if self.error is None:
            return f"{change(self.mean)} (one seed can't tell)"
        said = {
            "level": "level",
            "none": "no difference: less than two standard errors",
            "suggestive": "more than two standard errors, yet inside the 95 % interval",
            "lower": "lower",
            "higher": "higher",
        }[self.outcome]
        spread = f"standard error {nats(self.error)}, {self.seeds} seeds"
        return f"{change(self.mean)} ({spread}: {said})"


def paired(ours: Sequence[Cell], theirs: Sequence[Cell]) -> Paired | None:
    """Ours minus theirs, the mean over the cells of each seed first.

    Args:
      ours: cells of one side.
      theirs: cells of the other, in the same order.

    Returns:
      The difference over the seeds that are finite in all cells; None without any.
    """
    both = list(zip(ours, theirs, strict=True))
    seeds = min((len(cell.final) for pair in both for cell in pair), default=0)
    found = [
        float(np.mean([a.final[s] - b.final[s] for a, b in both])) for s in range(seeds)
    ]
    found = [value for value in found if math.isfinite(value)]
    if not found:
        return None
    error = np.std(found, ddof=1) / math.sqrt(len(found)) if len(found) > 1 else None
    return Paired(
        float(np.mean(found)), None if error is None else float(error), len(found)
    )


def differences(
    ours: Mapping[Any, Cell], theirs: Mapping[Any, Cell]
) -> dict[Any, Paired]:
    """Ours minus theirs by place, where both have a cell and a seed in common."""
    pairs = {x: paired([ours[x]], [theirs[x]]) for x in ours if x in theirs}
    return {x: found for x, found in pairs.items() if found is not None}


def answer(ours: Sequence[Cell], theirs: Sequence[Cell]) -> Answer:
    """Whether ours are lower, with runs that ended without a loss counted as such.

    A side that lost no seed beats one that lost all in some cell. Where only some
    seeds are lost, those that are left are no fair sample: ``unsure``.
    """
    gone = [any(not cell.finite for cell in side) for side in (ours, theirs)]
    lost = [sum(cell.lost for cell in side) for side in (ours, theirs)]
    if gone[0] and not lost[1]:
        return "no"
    if gone[1] and not lost[0]:
        return "yes"
    found = paired(ours, theirs)
    return "unsure" if found is None or any(lost) else found.better


def change(value: float) -> str:
    """A difference with its sign; one that rounds to nothing is no negative zero.

    >>> change(-0.0001), change(0.25)
    ('+0.000', '+0.250')
    """
    return signed(round(value, 3) + 0.0)


def spread_factor(first: int, second: int) -> float:
    """By how much a ratio of two sample standard deviations may be off, at 95 %.

    Args:
      first: seeds of the numerator.
      second: seeds of the denominator.

    Returns:
      Square root of the one-sided 95 % quantile of F; infinite below two seeds.
    """
    if min(first, second) < 2:
        return math.inf
    return math.sqrt(float(fdtri(first - 1, second - 1, 0.95)))
