"""What a sweep over a network is asked: how much of what is lost comes back."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from spheroid_jax.reports.delays.stats import MARGIN, Paired
from spheroid_jax.reports.delays.stats import paired as paired_cells
from spheroid_jax.reports.delays.summary import Cell
from spheroid_jax.reports.network.summary import (
    DROP,
    GATE,
    LOCKSTEP,
    SAME_IN_TIME,
    Setting,
    Sweep,
    at_times,
    common_end,
)
from spheroid_jax.reports.sections import LEVEL


@dataclasses.dataclass(frozen=True)
class Recovery:
    """The loss of dropping late updates, and what a policy wins back of it.

    All at one simulated time a seed, the earlier end of the two runs; lockstep at its
    own end, after as many rounds as with ``drop``.

    Attributes:
      setting: the policy's.
      method: its outer optimizer; dropped and in lockstep without weights by age.
      drop: losses with ``drop`` then.
      ours: losses with the policy then.
      lockstep: final losses.
      seconds: mean over seeds of that time.
    """

    setting: Setting
    method: str
    drop: Cell
    ours: Cell
    lockstep: Cell
    seconds: float

    @property
    def lost(self) -> Paired | None:
        """Drop minus lockstep; None without a seed that is finite in both."""
        return paired_cells([self.drop], [self.lockstep])

    @property
    def won(self) -> Paired | None:
        """Drop minus the policy."""
        return paired_cells([self.drop], [self.ours])

    @property
    def shares(self) -> list[float]:
        """By seed, (drop - policy) / (drop - lockstep); seeds without one left out."""
        every = zip(self.drop.final, self.ours.final, self.lockstep.final, strict=False)
        found = [(d - g) / (d - lo) if d > lo else math.nan for d, g, lo in every]
        return [share for share in found if math.isfinite(share)]

    @property
    def nothing_lost(self) -> bool:
        """Whether dropping costs nothing that the seeds could tell from noise.

        One seed has no noise to compare with: there ``MARGIN`` decides.
        """
        lost = self.lost
        if lost is None:
            return False
        if lost.error is None:
            return lost.mean < MARGIN
        negligible = lost.mean < LEVEL or lost.outcome in ("level", "none")
        return negligible or any(
            d <= lo
            for d, lo in zip(self.drop.final, self.lockstep.final, strict=False)
            if math.isfinite(d) and math.isfinite(lo)
        )

    @property
    def share(self) -> float:
        """Mean of ``shares``; NaN where nothing was lost or a seed has no loss."""
        if self.nothing_lost or self.ours.lost or not self.shares:
            return math.nan
        return float(np.mean(self.shares))

    def __str__(self) -> str:
        """Such as ``63 % (58 to 70)``: the mean and the range over seeds."""
        if self.ours.lost:
            return f"NaN in {self.ours.lost} of {len(self.ours.final)}"
        if self.nothing_lost:
            return "nothing lost"
        if not math.isfinite(self.share):
            return "-"
        low, high = (f"{100 * v:.0f}" for v in (min(self.shares), max(self.shares)))
        spread = f" ({low} to {high})" if len(self.shares) > 1 else ""
        return f"{100 * self.share:.0f} %{spread}"


@dataclasses.dataclass(frozen=True)
class Duel:
    """Two ways at the same simulated time.

    Attributes:
      setting: of the first way.
      method: of the first way.
      difference: first minus second; None without a seed finite in both.
      ours: losses of the first.
      theirs: losses of the second.
    """

    setting: Setting
    method: str
    difference: Paired | None
    ours: Cell
    theirs: Cell

    @property
    def outcome(self) -> str:
        """``better``, ``worse``, ``same``, ``unsure``, or ``unknown`` for one seed."""
        if self.ours.lost or self.theirs.lost:
            more = self.ours.lost - self.theirs.lost
            return "worse" if more > 0 else "better" if more < 0 else "unsure"
        if self.difference is None:
            return "unsure"
        names = {"lower": "better", "higher": "worse", "level": "same", "none": "same"}
        return names.get(
            self.difference.outcome,
            "unknown" if self.difference.error is None else "unsure",
        )


def recoveries(sweep: Sweep) -> list[Recovery]:
    """Every policy but plain ``drop``, against ``drop`` under the fixed deadline."""
    found = [
        one
        for setting in sweep.settings
        for method in sweep.methods
        if (one := recovery(sweep, setting, method)) is not None
    ]
    return found


def recovery(sweep: Sweep, setting: Setting, method: str) -> Recovery | None:
    """What a policy wins back for a method; None where a cell is missing."""
    dropped = setting.plain(DROP)
    if setting == dropped or setting.preset == LOCKSTEP:
        return None
    reference = sweep.lockstep(dropped)
    if reference is None:
        return None
    ours = sweep.cells.get((method, setting))
    drop, best = sweep.cell(method, dropped), sweep.cell(method, reference)
    # A sweep may run the weighted method with "gate" alone: its base is the same.
    base = SAME_IN_TIME.get(method, method)
    drop = drop or sweep.cells.get((base, dropped))
    best = best or sweep.cells.get((base, reference))
    if ours is None or drop is None or best is None or not _timed(ours, drop):
        return None
    seconds = common_end([ours, drop])
    return Recovery(
        setting,
        method,
        at_times(sweep, drop, seconds),
        at_times(sweep, ours, seconds),
        best,
        float(np.mean(seconds)),
    )


def weights_help(sweep: Sweep) -> list[Duel]:
    """Weighed by age against age-blind, wherever updates are late."""
    return _duels(
        sweep,
        lambda setting, method: (
            (SAME_IN_TIME[method], setting)
            if method in SAME_IN_TIME and not setting.all_in_time
            else None
        ),
    )


def quorum_helps(sweep: Sweep) -> list[Duel]:
    """A quorum against the fixed deadline, late updates treated alike."""
    return _duels(
        sweep,
        lambda setting, method: (
            (method, setting.plain(setting.late)) if setting.has_quorum else None
        ),
    )


def gate_helps(sweep: Sweep) -> list[Duel]:
    """Late updates kept against dropped, under the fixed deadline."""
    return _duels(
        sweep,
        lambda setting, method: (
            (method, setting.plain(DROP))
            if setting.late == GATE and not setting.has_quorum
            else None
        ),
    )


Rival = Callable[[Setting, str], tuple[str, Setting] | None]


def _duels(sweep: Sweep, rival: Rival) -> list[Duel]:
    found = []
    for setting in sweep.settings:
        for method in sweep.methods:
            against = rival(setting, method)
            ours = sweep.cells.get((method, setting))
            if against is None or ours is None or against == (method, setting):
                continue
            theirs = sweep.cell(*against)
            theirs = theirs or sweep.cells.get(
                (SAME_IN_TIME.get(method, method), against[1])
            )
            if theirs is not None and _timed(ours, theirs):
                found.append(duel(sweep, setting, method, ours, theirs))
    return found


def duel(sweep: Sweep, setting: Setting, method: str, ours: Cell, theirs: Cell) -> Duel:
    """Two cells at the earlier end of both."""
    seconds = common_end([ours, theirs])
    a, b = (at_times(sweep, cell, seconds) for cell in (ours, theirs))
    return Duel(setting, method, paired_cells([a], [b]), a, b)


def ranking(cells: Sequence[tuple[str, Cell]]) -> list[tuple[str, Cell]]:
    """Names and cells from the lowest loss on; those with a lost seed at the end."""
    return sorted(cells, key=lambda item: item[1].score)


def _timed(*cells: Cell) -> bool:
    return all(cell.row.get("time") and cell.row.get("curve") for cell in cells)
