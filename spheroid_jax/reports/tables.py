"""Tables for Markdown and for the screen, and how numbers look in them."""

import dataclasses
import math
from collections.abc import Sequence
from typing import TypeGuard

NOTHING = "-"  # no value; plain ASCII, since a screen may know nothing else
_SUFFIXES = ("", "k", "M", "G", "T", "P", "E")


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells that are text already.

    Attributes:
      header: names of the columns.
      rows: cells, as many in each row as in the header.
      align: one letter a column, ``l`` (left) or ``r`` (right).
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    align: str

    def __post_init__(self) -> None:
        """Raises ValueError unless rows and ``align`` fit the header."""
        if set(self.align) - set("lr"):
            raise ValueError(f"align takes the letters l and r, not {self.align!r}")
        for row in (self.align, *self.rows):
            if len(row) != len(self.header):
                raise ValueError(f"{len(self.header)} columns, but {row!r}")

    def markdown(self) -> str:
        """The table in Markdown, its source aligned as well."""
        cells = [
            [cell.replace("|", "\\|").replace("\n", " ") for cell in row]
            for row in (self.header, *self.rows)
        ]
        widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
        rule = [
            "-" * (width - 1) + ":" if side == "r" else "-" * width
            for width, side in zip(widths, self.align, strict=True)
        ]
        lines = [self._line(row, widths, " | ") for row in cells]
        lines.insert(1, " | ".join(rule))
        return "".join(f"| {line} |\n" for line in lines)

    def text(self) -> str:
        """The table for the screen: aligned columns and a rule under the header."""
        cells = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [self._line(row, widths, "  ").rstrip() for row in cells]
        lines.insert(1, "-" * max(map(len, lines)))
        return "".join(f"{line}\n" for line in lines)

    def _line(self, row: Sequence[str], widths: Sequence[int], between: str) -> str:
        return between.join(
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, self.align, strict=True)
        )


def finite(value: float | None) -> TypeGuard[float]:
    """Whether there is a number to show."""
    return value is not None and math.isfinite(value)


def nats(value: float | None) -> str:
    """A cross-entropy in nats, to a thousandth: evaluation is no finer than that.

    >>> nats(1.50314), nats(None), nats(1234567.0)
    ('1.503', '-', '1.23e+06')
    """
    if not finite(value):
        return NOTHING
    return f"{value:.3f}" if abs(value) < 1e5 else f"{value:.3g}"


def signed(value: float | None) -> str:
    """A difference in nats, with its sign.

    >>> signed(0.0123), signed(-0.5)
    ('+0.012', '-0.500')
    """
    text = nats(value)
    return text if text == NOTHING or text.startswith("-") else f"+{text}"


def si(value: float | None, unit: str = "") -> str:
    """A count in three digits with a decimal suffix.

    >>> si(3_154_000), si(82), si(999_999), si(2.1e15, "FLOP"), si(0.2e6, "B/s")
    ('3.15M', '82', '1M', '2.1 PFLOP', '200 kB/s')
    """
    if not finite(value):
        return NOTHING
    number, power = float(f"{value:.3g}"), 0
    while abs(number) >= 1000 and power < len(_SUFFIXES) - 1:
        number, power = float(f"{number / 1000:.3g}"), power + 1
    space = " " if unit else ""
    return f"{number:g}{space}{_SUFFIXES[power]}{unit}"


def gib(value: float | None) -> str:
    """A size in GiB, three significant digits, never as a power of ten.

    >>> gib(0.19812), gib(0.00012345), gib(100.54), gib(0.0)
    ('0.198', '0.000123', '101', '0')
    """
    if not finite(value):
        return NOTHING
    if value == 0:
        return "0"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def duration(seconds: float) -> str:
    """A time in the two units that matter.

    >>> duration(7.4), duration(80), duration(3725), duration(200_000)
    ('7s', '1m20s', '1h02m', '2d07h')
    """
    whole = max(0, round(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days}d{hours % 24:02d}h"
    if hours:
        return f"{hours}h{minutes % 60:02d}m"
    return f"{minutes}m{whole % 60:02d}s" if minutes else f"{whole}s"
