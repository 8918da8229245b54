"""A run in several encodings as cells: what each costs, and what it loses."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spheroid_jax.reports.tables import finite

Summary = Mapping[str, Any]
REFERENCE = "float32"


class Cell(NamedTuple):
    """An encoding with or without compression.

    Attributes:
      encoding: its name.
      zstd: the level of compression; 0 for none.
      update_bytes: of an update, mean over all updates of all seeds.
      smaller: how many times smaller than a plain float32 update.
      ce: CE_chain at the end, by seed.
      ensemble: CE_ensemble at the end, by seed.
      differences: of CE_chain from float32's of the same seed.
    """

    encoding: str
    zstd: int
    update_bytes: float
    smaller: float
    ce: list[float]
    ensemble: list[float]
    differences: list[float]

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.encoding} zstd {self.zstd}" if self.zstd else self.encoding

    @property
    def difference(self) -> float:
        """Mean over seeds of the difference from float32."""
        return statistics.fmean(self.differences)


def cells(summary: Summary) -> list[Cell]:
    """In the order of the configuration, each without and with zstd."""
    config = summary["config"]
    updates = config["train"]["rounds"] * summary["slots"]
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for run in summary["runs"]:
        runs.setdefault(run["encoding"], []).append(run["points"][-1])
    plain = statistics.fmean(p["bytes"] for p in runs[REFERENCE]) / updates
    base = [number(p["ce_chain"]) for p in runs[REFERENCE]]
    found = []
    for encoding in config["encodings"]:
        points = runs[encoding]
        ce = [number(p["ce_chain"]) for p in points]
        for level, key in ((0, "bytes"), (config["zstd"], "bytes_zstd")):
            size = statistics.fmean(p[key] for p in points) / updates
            found.append(
                Cell(
                    encoding,
                    level,
                    size,
                    plain / size,
                    ce,
                    [number(p["ce_ensemble"]) for p in points],
                    [one - other for one, other in zip(ce, base, strict=True)],
                )
            )
    return found


def seed_spread(found: Sequence[Cell]) -> float | None:
    """Sample standard deviation over seeds of float32's CE; None of one seed."""
    reference = next(cell for cell in found if cell.encoding == REFERENCE)
    return spread(reference.ce)


def spread(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None of one value."""
    if len(values) < 2 or not all(map(finite, values)):
        return None
    return statistics.stdev(values)


def number(value: float | None) -> float:
    """A number of a summary, where null is what isn't one."""
    return math.nan if value is None else float(value)
