"""Networks from CSV files: profiles of workers, and times that were measured."""

import dataclasses
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from spheroid_jax.delivery.clock import Phase
from spheroid_jax.delivery.csv_rows import csv_rows, rounds_of_workers
from spheroid_jax.delivery.profiles import Profile

_FIELDS = tuple(field.name for field in dataclasses.fields(Profile))


def read_profiles(path: str | Path) -> tuple[Profile, ...]:
    """Reads kinds of workers: a header of :class:`Profile`'s fields, a row each.

    Fields may be left out, and cells left empty, for the default; ``inf`` is a number.

    Raises:
      OSError: if the file can't be read.
      ValueError: one line that names the file and the line.
    """
    rows = csv_rows(path)
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
    table = rounds_of_workers(path, csv_rows(path), _seconds, "times", "one")
    return np.asarray(table, np.float32)


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


def _seconds(cell: str, place: str) -> float:
    seconds = _number(cell, place) if cell else math.inf
    if seconds < 0:
        raise ValueError(f"{place}: {seconds} seconds: a time must be >= 0")
    return seconds


def _number(cell: str, place: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise ValueError(f"{place}: {cell!r} is not a number") from None
    if math.isnan(value):
        raise ValueError(f"{place}: {cell!r} is not a number")
    return value
