"""CSV files of rounds and workers: every fault is one line with file and line."""

import csv
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

Cell = TypeVar("Cell")
Rows = Iterable[tuple[int, list[str]]]


def csv_rows(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and stripped cells of every line that isn't blank.

    Raises:
      OSError: if the file can't be read.
      ValueError: if it is no CSV.
    """
    with Path(path).open(newline="", encoding="utf-8-sig", errors="replace") as lines:
        reader = csv.reader(lines)
        try:
            for cells in reader:
                stripped = [cell.strip() for cell in cells]
                if stripped and (any(stripped) or len(stripped) > 1):
                    yield reader.line_num, stripped
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


def rounds_of_workers(
    path: str | Path, rows: Rows, read: Callable[[str, str], Cell], what: str, one: str
) -> list[list[Cell]]:
    """A row a round, a column a worker.

    Args:
      path: the file, as it is named in complaints.
      rows: of the file; see :func:`csv_rows`.
      read: ``(cell, place)`` to a value.
      what: a name for the values, in the plural.
      one: for one of them.

    Raises:
      ValueError: if there is no row, or rows differ in length; what ``read`` raises.
    """
    table: list[list[Cell]] = []
    for number, cells in rows:
        place = f"{path}, line {number}"
        table.append([read(cell, place) for cell in cells])
        if len(table[-1]) != len(table[0]):
            raise ValueError(
                f"{place}: {len(table[-1])} {what} where the first row has "
                f"{len(table[0])}: give each round {one} for each worker"
            )
    if not table:
        raise ValueError(f"{path}: the trace is empty: give a row of {what} a round")
    return table
