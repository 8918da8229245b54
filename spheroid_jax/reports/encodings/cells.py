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
      both: whether what changed goes down in it, too.
      up: bytes of an update, mean over all updates of all seeds.
      down: bytes to a worker in a round, the same mean; the first parts go whole.
      smaller: how many times smaller than a plain float32 update.
      fewer: how many times fewer bytes both ways than with plain float32.
      ce: CE_chain at the end, by seed.
      ensemble: CE_ensemble at the end, by seed.
      differences: of CE_chain from float32's of the same seed.
    """

    encoding: str
    zstd: int
    both: bool
    up: float
    down: float
    smaller: float
    fewer: float
    ce: list[float]
    ensemble: list[float]
    differences: list[float]

    @property
    def name(self) -> str:
        """For tables."""
        name = f"{self.encoding} zstd {self.zstd}" if self.zstd else self.encoding
        return f"{name} both ways" if self.both else name

    @property
    def difference(self) -> float:
        """Mean over seeds of the difference from float32."""
        return statistics.fmean(self.differences)


def cells(summary: Summary) -> list[Cell]:
    """In the order of the configuration, each without and with zstd; then both ways."""
    config = summary["config"]
    updates = config["train"]["rounds"] * summary["slots"]
    runs: dict[tuple[str, bool], list[Mapping[str, Any]]] = {}
    for run in summary["runs"]:
        key = run["encoding"], run["both_ways"]
        runs.setdefault(key, []).append(run["points"][-1])
    base = runs[REFERENCE, False]
    plain = _mean(base, "bytes") / updates
    whole = plain + _mean(base, "bytes_down") / updates
    found = []
    for (encoding, both), points in runs.items():
        ce = [number(p["ce_chain"]) for p in points]
        pairs = zip(ce, (number(p["ce_chain"]) for p in base), strict=True)
        differences = [one - other for one, other in pairs]
        down = _mean(points, "bytes_down") / updates
        for level, key_ in ((0, "bytes"), (config["zstd"], "bytes_zstd")):
            if both and not level:
                continue  # what goes down is compressed, and so is what goes up
            up = _mean(points, key_) / updates
            found.append(
                Cell(
                    encoding,
                    level,
                    both,
                    up,
                    down,
                    plain / up,
                    whole / (up + down),
                    ce,
                    [number(p["ce_ensemble"]) for p in points],
                    differences,
                )
            )
    return sorted(found, key=lambda cell: cell.both)


def _mean(points: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.fmean(p[key] for p in points)


def seed_spread(found: Sequence[Cell]) -> float | None:
    """Sample standard deviation over seeds of float32's CE; None of one seed."""
    reference = next(cell for cell in found if cell.encoding == REFERENCE)
    return spread(reference.ce)


def spread(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None of one value."""
    if len(values) < 2 or not all(map(finite, values)):
        return None
    return statistics.stdev(values)


def signed(difference: float) -> str:
    """A difference of CE to a tenth of a thousandth, zero without a sign.

    >>> signed(0.00123), signed(-0.5), signed(-0.00001)
    ('+0.0012', '-0.5000', '0.0000')
    """
    text = f"{difference:+.4f}"
    return text[1:] if float(text) == 0 else text


def number(value: float | None) -> float:
    """A number of a summary, where null is what isn't one."""
    return math.nan if value is None else float(value)
