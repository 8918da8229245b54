"""What a sweep over a network is asked: how much of what is lost comes back."""

import dataclasses
import math
from collections.abc import Callable

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
from spheroid_jax.reports.tables import NOTHING


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

        One seed has no noise to compare with: there ``MARGIN`` decides, as it does
        where the difference is suggestive only.
        """
        lost = self.lost
        if lost is None:
            return False
        least = MARGIN if lost.outcome in ("one seed", "suggestive") else LEVEL
        unclear = lost.mean < least or lost.outcome in ("level", "none")
        pairs = zip(self.drop.final, self.lockstep.final, strict=False)
        return unclear or any(d <= low for d, low in pairs)  # never so for NaN

    @property
    def share(self) -> float:
        """Mean of ``shares``; NaN where nothing was lost or a seed has no loss."""
        if self.nothing_lost or self.ours.lost or not self.shares:
            return math.nan
        return float(np.mean(self.shares))

    def __str__(self) -> str:
        """Such as ``63 % (58 to 70)``: mean and range over seeds."""
        return self.text()

    def text(self, *, narrow: bool = False) -> str:
        """The share in words; ``?`` where what was lost is suggestive only."""
        seeds = len(self.ours.final)
        if self.ours.lost:
            return f"NaN {self.ours.lost}/{seeds}"
        if self.nothing_lost:
            return "none lost" if narrow else "nothing lost"
        if not math.isfinite(self.share):
            return NOTHING
        doubt = "?" * (self.lost is not None and self.lost.outcome == "suggestive")
        text = f"{100 * self.share:.0f} %{doubt}"
        if narrow or seeds < 2:
            return text
        low, high = (f"{100 * v:.0f}" for v in (min(self.shares), max(self.shares)))
        some = f", {len(self.shares)} of {seeds} seeds"
        return f"{text} ({low} to {high}{some * (len(self.shares) < seeds)})"


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
    return [
        one
        for setting in sweep.settings
        for method in sweep.methods
        if (one := recovery(sweep, setting, method)) is not None
    ]


def recovery(sweep: Sweep, setting: Setting, method: str) -> Recovery | None:
    """What a policy wins back for a method; None where a cell is missing."""
    dropped = setting.plain(DROP)
    if setting == dropped or setting.preset == LOCKSTEP:
        return None
    if (reference := sweep.lockstep(dropped)) is None:
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


@dataclasses.dataclass(frozen=True)
class Contest:
    """The best of a network, late updates dropped or kept, under the fixed deadline.

    Attributes:
      setting: of the best.
      method: the best.
      ours: its losses at the earliest end of all.
      second: setting and method of the runner-up; None without one.
      margin: best minus runner-up; None without one.
    """

    setting: Setting
    method: str
    ours: Cell
    second: tuple[Setting, str] | None
    margin: Paired | None

    @property
    def clear(self) -> bool:
        """Whether the best is lower than the runner-up beyond the noise."""
        return self.margin is not None and self.margin.outcome == "lower"

    @property
    def noise(self) -> float:
        """The margin in sample deviations of the paired difference; NaN if unknown."""
        if self.margin is None or not self.margin.error:
            return math.nan
        deviation = self.margin.error * math.sqrt(self.margin.seeds)
        return abs(self.margin.mean) / deviation


def contests(sweep: Sweep) -> list[Contest]:
    """The best of every network, in the order of the summary."""
    places = dict.fromkeys(s.place for s in sweep.settings if not s.has_quorum)
    found = [_contest(sweep, place) for place in places]
    return [one for one in found if one is not None]


def _contest(sweep: Sweep, place: str) -> Contest | None:
    cells = [
        (setting, method, cell)
        for (method, setting), cell in sweep.cells.items()
        if setting.place == place and not setting.has_quorum and _timed(cell)
    ]
    if not cells:
        return None
    then = common_end([cell for *_, cell in cells])
    scored = [(s, m, at_times(sweep, cell, then)) for s, m, cell in cells]
    ranks = sorted(scored, key=lambda one: one[2].score)
    setting, method, ours = ranks[0]
    if not math.isfinite(ours.score):
        return None
    if len(ranks) < 2:
        return Contest(setting, method, ours, None, None)
    second = ranks[1]
    margin = paired_cells([ours], [second[2]])
    return Contest(setting, method, ours, (second[0], second[1]), margin)


def _timed(*cells: Cell) -> bool:
    return all(cell.row.get("time") and cell.row.get("curve") for cell in cells)
