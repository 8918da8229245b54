"""The summary of training over a virtual network, read into cells to be compared.

Beside what :mod:`spheroid_jax.reports.delays.summary` tells, its rows hold what became
of the network: ``participation``, ``received``, ``timely_blocks``, ``round_seconds``,
``busy``, ``useful``, ``bytes_down`` and ``bytes_up`` by seed, ``by_age`` (counts), and
``time``, the simulated seconds of every seed at the points of the curve.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spheroid_jax.reports.delays.names import value_label
from spheroid_jax.reports.delays.summary import Cell

PRESET, LATE, ROUNDS = "network.preset", "network.late", "train.rounds"
QUORUM, GRACE, DEADLINE = "network.quorum", "network.grace", "network.deadline"
LOCKSTEP, DROP, GATE = "lockstep", "drop", "gate"
# Where nothing is late a weight by age is 1, and the method on the right is the same.
SAME_IN_TIME = {
    "mean_weighted": "mean",
    "nesterov_weighted": "nesterov",
    "cgad": "adam",
    "cgad_both": "adam",
}
_POLICY = (QUORUM, GRACE, ROUNDS)  # a policy's cells may run more rounds, as short ones


class Setting(NamedTuple):
    """What is common to the cells of all methods.

    Attributes:
      preset: kinds of workers.
      late: ``drop`` or ``gate``.
      more: further fields that its cell sets, with their values.
    """

    preset: str
    late: str
    more: tuple[tuple[str, Any], ...] = ()

    def field(self, name: str) -> Any:
        """Value of one of ``more``; None if it isn't set."""
        return dict(self.more).get(name)

    @property
    def all_in_time(self) -> bool:
        """Whether no update is ever applied late."""
        return self.late == DROP or self.preset == LOCKSTEP

    @property
    def has_quorum(self) -> bool:
        """Whether its rounds close by a quorum."""
        return bool(self.field(QUORUM))

    def plain(self, late: str) -> "Setting":
        """The same network under the fixed deadline and with ``late``."""
        rest = tuple((f, v) for f, v in self.more if f not in _POLICY)
        return Setting(self.preset, late, rest)

    @property
    def place(self) -> str:
        """The network in words, without what becomes of late updates.

        >>> Setting("wan", "gate", (("network.deadline", 1.5),)).place
        'wan, deadline 1.5 s'
        """
        if self.preset == LOCKSTEP:
            return self.preset
        return ", ".join([self.preset, *filter(None, map(_words, self.more))])

    @property
    def label(self) -> str:
        """The whole in words; of lockstep, where nothing is late, the preset."""
        if self.preset == LOCKSTEP and self.late == DROP:
            return self.preset
        return ", ".join(
            [self.preset, self.late, *filter(None, map(_words, self.more))]
        )

    @property
    def short(self) -> str:
        """The same for the screen.

        >>> Setting("wan", "gate", (("network.quorum", 3),)).short
        'wan gate q3'
        """
        if self.preset == LOCKSTEP and self.late == DROP:
            return self.preset
        deadline, quorum = self.field(DEADLINE), self.field(QUORUM)
        parts = [self.preset, self.late]
        parts += [f"{deadline:g}s"] if deadline else []
        parts += [f"q{quorum}"] if quorum else []
        return " ".join(parts)


def _words(item: tuple[str, Any]) -> str:
    field, value = item
    if field in (QUORUM, GRACE) and not value:
        return ""
    if field == DEADLINE and not value:
        return "no deadline"
    text = f"{field.rsplit('.', 1)[-1]} {value_label(value)}"
    return text + " s" * (field in (GRACE, DEADLINE))


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Cells by method and setting.

    Attributes:
      raw: the summary.
      x: the field on the axis; empty for a single run.
      methods: those with a cell, in the order of the summary.
      settings: in the order of the summary.
      cells: what was run.
    """

    raw: Mapping[str, Any]
    x: str
    methods: tuple[str, ...]
    settings: tuple[Setting, ...]
    cells: Mapping[tuple[str, Setting], Cell]

    @property
    def chance(self) -> float:
        """Loss of a uniform guess, ln V."""
        return float(self.raw["chance"])

    @property
    def seeds(self) -> int:
        """The most seeds that a cell has."""
        return max((len(cell.final) for cell in self.cells.values()), default=0)

    @property
    def last(self) -> int:
        """Points at the end of a curve whose mean is the final loss."""
        evaluation = self.raw.get("config", {}).get("eval", {})
        return max(1, int(evaluation.get("last", 1)))

    def borrowed(self, method: str, setting: Setting) -> bool:
        """Whether its cell is that of the method without weights."""
        return (
            (method, setting) not in self.cells
            and setting.all_in_time
            and (SAME_IN_TIME.get(method, ""), setting) in self.cells
        )

    def cell(self, method: str, setting: Setting) -> Cell | None:
        """What the method did there; where nothing is late, without its weights."""
        if self.borrowed(method, setting):
            method = SAME_IN_TIME[method]
        return self.cells.get((method, setting))

    def line(self, setting: Setting) -> dict[str, Cell]:
        """Cells of a setting by method, borrowed ones included."""
        found = {m: self.cell(m, setting) for m in self.methods}
        return {m: cell for m, cell in found.items() if cell is not None}

    def rounds(self, setting: Setting) -> int:
        """Outer rounds of its cells."""
        own = setting.field(ROUNDS)
        return int(own if own is not None else self.raw.get("rounds", 0))

    def lockstep(self, setting: Setting) -> Setting | None:
        """The lockstep with as many rounds as the setting; None if there is none."""
        for other in self.settings:
            same = self.rounds(other) == self.rounds(setting)
            if other.preset == LOCKSTEP and same:
                return other
        return None


def read(summary: Mapping[str, Any]) -> Sweep:
    """Reads a summary; the same one gives equal cells before and after JSON."""
    chance, network = float(summary["chance"]), _configured(summary)
    cells = {
        (row["method"], _setting(row, network)): _cell(row, chance)
        for row in summary.get("rows", [])
        if row.get("final")
    }
    ran = {method for method, _ in cells}
    known = [method for method in summary.get("methods", []) if method in ran]
    return Sweep(
        raw=summary,
        x=str(summary.get("x", "")),
        methods=tuple(dict.fromkeys([*known, *(method for method, _ in cells)])),
        settings=tuple(dict.fromkeys(setting for _, setting in cells)),
        cells=cells,
    )


def at_times(sweep: Sweep, cell: Cell, seconds: Sequence[float]) -> Cell:
    """A cell as it was at a simulated time, by seed.

    Its losses are means of the last ``eval.last`` points of the curve up to then, as
    final ones are, and lie on straight lines between points.

    Args:
      sweep: where it is from.
      cell: must hold ``curve`` and ``time``.
      seconds: the time, by seed; NaN before the first point and after the last.
    """
    losses = np.array(cell.row["curve"]["loss"], float)  # (points, S); None is NaN
    times = np.array(cell.row["time"], float)
    smooth = np.array(
        [losses[max(0, i + 1 - sweep.last) : i + 1].mean(0) for i in range(len(losses))]
    )
    values = tuple(
        float(np.interp(t, times[:, s], smooth[:, s], left=np.nan, right=np.nan))
        for s, t in enumerate(seconds)
    )
    above = tuple(not math.isfinite(v) or v > sweep.chance for v in values)
    return Cell(values, above, cell.row)


def ends(cell: Cell) -> tuple[float, ...]:
    """Simulated seconds of the last point of the curve, by seed."""
    return tuple(float(t) for t in cell.row["time"][-1])


def common_end(cells: Sequence[Cell]) -> tuple[float, ...]:
    """The earliest end of several cells, by seed."""
    return tuple(map(min, zip(*map(ends, cells), strict=True)))


def ensemble(sweep: Sweep, cell: Cell) -> Cell | None:
    """The cell's CE_ensemble in place of its CE_chain; None if not recorded."""
    points = cell.row.get("curve", {}).get("ensemble")
    if not points:
        return None
    values = tuple(
        v if math.isfinite(v) else math.nan
        for v in np.array(points[-sweep.last :], float).mean(axis=0).tolist()
    )
    above = tuple(not math.isfinite(v) or v > sweep.chance for v in values)
    return Cell(values, above, cell.row)


def mean_of(cell: Cell, key: str) -> float:
    """Mean over seeds of what the network did; NaN if not recorded."""
    values = [v for v in cell.row.get(key) or [] if v is not None]
    return float(np.mean(values)) if values else math.nan


def mean_age(cell: Cell) -> float:
    """Mean age in rounds of the updates received; NaN if there were none."""
    counts = np.array(cell.row.get("by_age") or [0], float)
    total = counts.sum()
    return float(counts @ np.arange(len(counts)) / total) if total else math.nan


def _cell(row: Mapping[str, Any], chance: float) -> Cell:
    final = tuple(_number(value) for value in row["final"])
    above = tuple(not math.isfinite(loss) or loss > chance for loss in final)
    return Cell(final, tuple(map(bool, row.get("diverged") or above)), row)


def _number(value: float | None) -> float:
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else math.nan


def _configured(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = summary.get("config", {}).get("network", {})
    return found


def _setting(row: Mapping[str, Any], network: Mapping[str, Any]) -> Setting:
    settings = dict(row.get("settings", {}))
    preset = settings.pop(PRESET, network.get("preset", "as configured"))
    late = settings.pop(LATE, network.get("late", DROP))
    if file := network.get("trace") or network.get("profiles"):
        preset = Path(file).stem  # it takes the preset's place
    return Setting(str(preset), str(late), tuple(settings.items()))
