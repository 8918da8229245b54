"""The summary of a delay experiment, read into cells that can be compared.

A summary is the JSON-able mapping that a sweep writes: ``x`` and ``panel`` are dotted
fields of the config (``panel``, or both, may be empty), ``methods`` the order of the
columns, ``recipes`` the line of each method, and ``rows`` the finished cells, each with
``method``, ``settings``, ``final`` (a loss per seed in nats per byte, null where it
isn't finite), ``diverged`` (per seed) and, if there are any, ``curve``, ``applied``,
``mean_age`` and ``seconds``.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spheroid_jax.reports.delays import names

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Cell:
    """One method at one setting, all seeds.

    Attributes:
      final: loss per seed, nats per byte; NaN where it isn't finite.
      diverged: per seed, whether it isn't finite or above chance.
      row: the row of the summary that it was made from.
    """

    final: tuple[float, ...]
    diverged: tuple[bool, ...]
    row: Row

    @property
    def finite(self) -> list[float]:
        """Losses of the seeds that have one."""
        return [loss for loss in self.final if math.isfinite(loss)]

    @property
    def lost(self) -> int:
        """How many seeds have no finite loss."""
        return len(self.final) - len(self.finite)

    @property
    def mean(self) -> float:
        """Mean over the seeds with a finite loss; NaN if there are none."""
        return float(np.mean(self.finite)) if self.finite else math.nan

    @property
    def std(self) -> float | None:
        """Sample standard deviation (ddof = 1) over them; None for fewer than two."""
        return float(np.std(self.finite, ddof=1)) if len(self.finite) > 1 else None

    @property
    def score(self) -> float:
        """What cells are ranked by: the mean, infinite if any seed has no loss."""
        return self.mean if self.finite and not self.lost else math.inf

    @property
    def failed(self) -> bool:
        """Whether every seed diverged."""
        return bool(self.diverged) and all(self.diverged)

    @property
    def learned(self) -> bool:
        """Whether no seed diverged."""
        return bool(self.diverged) and not any(self.diverged)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Cells by method, panel and place on the axis.

    Attributes:
      raw: the summary.
      x: the field on the axis; where the summary has none, ``delay.tau`` if all rows
        set it, else empty.
      panel: the field of the panels; likewise ``delay.kind``.
      xs: values on the axis; ``(None,)`` without a field.
      panels: values of the panels; ``(None,)`` without a field.
      methods: those with a cell, in the order of the summary.
      cells: by ``(method, panel, x)``; a row that doesn't set one of the fields
        holds for all its values and stands under None.
    """

    raw: Mapping[str, Any]
    x: str
    panel: str
    xs: tuple[Any, ...]
    panels: tuple[Any, ...]
    methods: tuple[str, ...]
    cells: Mapping[tuple[str, Any, Any], Cell]

    @property
    def chance(self) -> float:
        """Loss of a uniform guess, ln V."""
        return float(self.raw["chance"])

    @property
    def seeds(self) -> int:
        """The most seeds that a cell has."""
        return max((len(cell.final) for cell in self.cells.values()), default=0)

    def cell(self, method: str, panel: Any, x: Any) -> Cell | None:
        """The cell, or None if it isn't there."""
        for key in ((panel, x), (panel, None), (None, x), (None, None)):
            if (found := self.cells.get((method, *key))) is not None:
                return found
        return None

    def line(self, method: str, panel: Any) -> dict[Any, Cell]:
        """Cells of a method in a panel, by place on the axis; missing ones left out."""
        found = {x: self.cell(method, panel, x) for x in self.xs}
        return {x: cell for x, cell in found.items() if cell is not None}

    def recipe(self, method: str) -> dict[str, str]:
        """Fields of a method's recipe; its optimizer is under ``name``.

        A method called "nesterov 0.7/0.9" needs no recipe.
        """
        words = str(self.raw.get("recipes", {}).get(method, "")).split()
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        if words and "=" not in words[0]:
            fields["name"] = words[0]
        if pair := re.fullmatch(r"nesterov ([^/\s]+)/([^/\s]+)", method):
            named = ("nesterov", *pair.groups())
            fields = dict(zip(_NESTEROV, named, strict=True)) | fields
        return fields

    def label(self, method: str) -> str:
        """The name of a method for readers."""
        return names.method_label(method, self.recipe(method))

    def rate_and_momentum(self, method: str) -> tuple[float, float] | None:
        """Of a method that is Nesterov's rule (plain SGD has no momentum); or None."""
        recipe = self.recipe(method)
        if recipe.get("name") == "sgd":
            recipe = {"momentum": "0", **recipe}
        elif recipe.get("name") != "nesterov":
            return None
        try:
            return float(recipe["learning_rate"]), float(recipe["momentum"])
        except (KeyError, ValueError):
            return None

    @property
    def published_nesterov(self) -> str | None:
        """The method with DiLoCo's published recipe, 0.7 / 0.9, if it is there."""
        for method in self.methods:
            if self.rate_and_momentum(method) == (0.7, 0.9):
                return method
        known = "nesterov" in self.methods and not self.recipe("nesterov")
        return "nesterov" if known else None


_NESTEROV = ("name", "learning_rate", "momentum")


def read(summary: Mapping[str, Any]) -> Sweep:
    """Reads a summary; the same one gives equal cells before and after JSON."""
    rows, chance = summary.get("rows", []), float(summary["chance"])
    x = summary.get("x", "") or _common(rows, "delay.tau")
    panel = summary.get("panel", "") or _common(rows, "delay.kind")
    cells = {
        (row["method"], _setting(row, panel), _setting(row, x)): _cell(row, chance)
        for row in rows
        if row.get("final")
    }
    found = {method for method, _, _ in cells}
    known = [method for method in summary.get("methods", []) if method in found]
    others = dict.fromkeys(method for method, _, _ in cells)
    return Sweep(
        raw=summary,
        x=x,
        panel=panel,
        xs=_values([place for _, _, place in cells]),
        panels=_values([place for _, place, _ in cells]),
        methods=tuple(dict.fromkeys([*known, *others])),
        cells=cells,
    )


def _cell(row: Row, chance: float) -> Cell:
    final = tuple(_number(value) for value in row.get("final", []))
    above = [not math.isfinite(loss) or loss > chance for loss in final]
    given = row.get("diverged") or above
    return Cell(final, tuple(map(bool, given)), row)


def _common(rows: Sequence[Row], field: str) -> str:
    """The field, if all rows set it: a single run has no axis, but it has a delay."""
    return field if rows and all(_setting(r, field) is not None for r in rows) else ""


def _number(value: float | None) -> float:
    """Null and what isn't finite become NaN."""
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else math.nan


def _setting(row: Row, field: str) -> Any:
    value = row.get("settings", {}).get(field) if field else None
    return tuple(value) if isinstance(value, list) else value


def _values(found: Sequence[Any]) -> tuple[Any, ...]:
    """Distinct values: numbers in ascending order, others as they came."""
    values = list(dict.fromkeys(value for value in found if value is not None))
    if all(type(value) in (int, float) for value in values):
        values = sorted(values)
    return tuple(values) or (None,)
