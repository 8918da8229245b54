"""Networks from CSV files: profiles of workers, and times that were measured."""

import csv
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from spheroid_jax.delivery.clock import Phase
from spheroid_jax.delivery.profiles import Profile

_FIELDS = tuple(field.name for field in dataclasses.fields(Profile))


def read_profiles(path: str | Path) -> tuple[Profile, ...]:
    """Reads kinds of workers: a header of :class:`Profile`'s fields, a row each.

    Fields may be left out, and cells left empty, for the default; ``inf`` is a number.

    Raises:
      OSError: if the file can't be read.
      ValueError: one line that names the file and the line.
    """
    rows = _rows(path)
    number, header = next(rows, (0, []))
    if not header:
        raise ValueError(f"{path}: the file is empty: give a header and rows")
    for name in header:
        if name not in _FIELDS:
            raise ValueError(
                f"{path}, line {number}: no field {name!r}: use {', '.join(_FIELDS)}"
            )
        if header.count(name) > 1:
            raise ValueError(
                f"{path}, line {number}: field {name!r} twice: leave one out"
            )
    profiles = []
    for number, cells in rows:
        if len(cells) != len(header):
            raise ValueError(
                f"{path}, line {number}: {len(cells)} cells where the header has "
                f"{len(header)}"
            )
        values = {
            name: _number(cell, f"{path}, line {number}")
            for name, cell in zip(header, cells, strict=True)
            if cell
        }
        try:
            profiles.append(Profile(**values))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if not profiles:
        raise ValueError(f"{path}: there is no worker: give a row for each kind")
    return tuple(profiles)


def read_phases(path: str | Path) -> np.ndarray:
    """Reads measured times: a row a round, a column a worker, no header.

    A cell is the seconds from the opening of a round to the arrival of the update that
    the worker began in it; empty or ``inf`` if it never arrived.

    Returns:
      float32 (R, W), inf where nothing arrived.

    Raises:
      OSError: if the file can't be read.
      ValueError: one line that names the file and the line.
    """
    rows: list[list[float]] = []
    for number, cells in _rows(path):
        place = f"{path}, line {number}"
        seconds = [_number(cell, place) if cell else math.inf for cell in cells]
        if min(seconds) < 0:
            raise ValueError(f"{place}: {min(seconds)} seconds: a time must be >= 0")
        rows.append(seconds)
        if len(seconds) != len(rows[0]):
            raise ValueError(
                f"{place}: {len(seconds)} times where the first row has "
                f"{len(rows[0])}: give each round one for each worker"
            )
    if not rows:
        raise ValueError(f"{path}: the trace is empty: give a row of times a round")
    return np.asarray(rows, np.float32)


def phases(times: np.ndarray, rounds: int, blocks: int, replicas: int) -> Phase:
    """Measured times for a run: worker (b, k) takes column ``k B + b``.

    A short trace starts again from its beginning, over rounds and over workers; the end
    of a long one is not used.

    Args:
      times: float (R', W), inf where nothing arrived.
      rounds: R.
      blocks: B.
      replicas: K.

    Returns:
      Leaves (R, B, K).
    """
    if times.ndim != 2 or not times.size:
        raise ValueError(f"times must have shape (rounds, workers), got {times.shape}")
    column = np.arange(replicas)[None] * blocks + np.arange(blocks)[:, None]
    row = np.arange(rounds) % times.shape[0]
    seconds = times[row][:, column % times.shape[1]]
    lost = np.isinf(seconds)
    return Phase(jnp.asarray(seconds, jnp.float32), jnp.asarray(lost))


def _rows(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every line that isn't blank."""
    with Path(path).open(newline="", encoding="utf-8-sig", errors="replace") as lines:
        reader = csv.reader(lines)
        try:
            for cells in reader:
                stripped = [cell.strip() for cell in cells]
                if stripped and (any(stripped) or len(stripped) > 1):
                    yield reader.line_num, stripped
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


def _number(cell: str, place: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise ValueError(f"{place}: {cell!r} is not a number") from None
    if math.isnan(value):
        raise ValueError(f"{place}: {cell!r} is not a number")
    return value
