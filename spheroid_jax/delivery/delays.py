"""Schedules of delays: int32 (rounds, workers), in rounds.

Schedules are made outside the compiled simulation and are an argument of it, so that
another delay, of the same largest one, is another argument and no recompilation. The
unit is one outer update, and delays are whole and non-negative.
"""

from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from spheroid_jax.delivery import checks
from spheroid_jax.delivery.csv_rows import csv_rows, rounds_of_workers


def fixed(rounds: int, workers: int, tau: ArrayLike) -> Array:
    """The same delay ``tau`` for every worker in every round, int32 (rounds, workers).

    Raises:
      ValueError: if ``tau`` isn't one whole number >= 0.
    """
    _check_shape(rounds, workers)
    checks.ages("tau", tau)
    if np.shape(tau) != ():
        raise ValueError(f"tau must be one number, got shape {np.shape(tau)}")
    return jnp.full((rounds, workers), tau, jnp.int32)


def uniform(
    key: Array,
    rounds: int,
    workers: int,
    tau_max: int,
    per: Literal["worker", "round"] = "worker",
) -> Array:
    """Independent delays, uniform on {0, ..., tau_max}, int32 (rounds, workers).

    Args:
      key: of the draws.
      rounds: number of rounds.
      workers: number of workers.
      tau_max: largest delay.
      per: ``worker`` draws for each worker of each round; ``round`` draws once a round,
        the same for all workers.

    Raises:
      ValueError: if ``tau_max`` isn't whole and >= 0, or ``per`` is unknown.
    """
    _check_shape(rounds, workers)
    checks.whole("tau_max", tau_max)
    if per not in ("worker", "round"):
        raise ValueError(f"per must be 'worker' or 'round', got {per!r}")
    drawn = (rounds, workers if per == "worker" else 1)
    delays = jax.random.randint(key, drawn, 0, tau_max + 1, jnp.int32)
    return jnp.broadcast_to(delays, (rounds, workers))


def per_worker(rounds: int, delays: ArrayLike) -> Array:
    """One constant delay for each worker, int32 (rounds, workers).

    Args:
      rounds: number of rounds.
      delays: int (workers,).

    Raises:
      ValueError: if ``delays`` aren't one row of whole numbers >= 0.
    """
    checks.positive("rounds", rounds)
    checks.ages("delays", delays)
    if np.ndim(delays) != 1 or np.size(delays) == 0:
        raise ValueError(
            f"delays must be one for each worker, got shape {np.shape(delays)}"
        )
    row = jnp.asarray(delays, jnp.int32)
    return jnp.broadcast_to(row[None], (rounds, row.shape[0]))


def from_trace(trace: ArrayLike, rounds: int, workers: int) -> Array:
    """Delays that were measured somewhere, int32 (rounds, workers).

    Args:
      trace: int (R,), one delay a round for all workers, or (R, W). Where it is short
        it starts again from its beginning, over rounds and over workers; where it is
        long its end is not used.
      rounds: number of rounds.
      workers: number of workers.

    Raises:
      ValueError: if the trace is empty, has another rank, or isn't whole and >= 0.
    """
    _check_shape(rounds, workers)
    if np.ndim(trace) not in (1, 2) or np.size(trace) == 0:
        raise ValueError(
            "trace must have shape (rounds,) or (rounds, workers) and not be empty, "
            f"got shape {np.shape(trace)}"
        )
    checks.ages("trace", trace)
    table = jnp.asarray(trace, jnp.int32)
    table = table if table.ndim == 2 else table[:, None]
    rows = np.arange(rounds) % table.shape[0]
    columns = np.arange(workers) % table.shape[1]
    return table[rows][:, columns]


def read_trace(path: str | Path) -> np.ndarray:
    """Reads a trace for :func:`from_trace` from a CSV file.

    A row is a round and a column a worker. There is no header; blank lines are skipped.

    Returns:
      int32 (R, W).

    Raises:
      OSError: if the file can't be read.
      ValueError: one line that names the file and the line, if the trace is empty, has
        rows of different lengths, or an entry that isn't a whole number >= 0.
    """
    rows = ((number, cells) for number, cells in csv_rows(path) if any(cells))
    table = rounds_of_workers(path, rows, _delay, "delays", "one delay")
    return np.asarray(table, np.int32)


def ramp(delays: ArrayLike) -> Array:
    """Delays no longer than the run is old: min(delay, round), int32 (rounds, workers).

    In round t no version older than 0 exists, so the age of an update can't exceed t.
    """
    delays = _schedule(delays)
    return jnp.minimum(delays, _round_index(delays))


def started(
    delays: ArrayLike, start: Literal["ramp", "skip"] = "ramp"
) -> tuple[Array, Array]:
    """How a run with delays begins, when workers start from old parameters.

    Args:
      delays: int (rounds, workers).
      start: ``ramp`` works from round 0, on the oldest version there is, with its
        honest age; ``skip`` leaves delays alone and has a worker do nothing in rounds
        before its delay has passed. The ramp acts as a learning-rate warm-up under a
        gated Adam, since its second moment remembers the first, fresh gradients.

    Returns:
      The delays, int32 (rounds, workers), and which workers are active, bool of that
      shape.

    Raises:
      ValueError: if ``start`` is unknown or ``delays`` isn't such a schedule.
    """
    if start not in ("ramp", "skip"):
        raise ValueError(f"start must be 'ramp' or 'skip', got {start!r}")
    delays = _schedule(delays)
    if start == "ramp":
        return ramp(delays), jnp.ones(delays.shape, bool)
    return delays, _round_index(delays) >= delays


def _check_shape(rounds: int, workers: int) -> None:
    checks.positive("rounds", rounds)
    checks.positive("workers", workers)


def _schedule(delays: ArrayLike) -> Array:
    checks.ages("delays", delays)
    if np.ndim(delays) != 2:
        raise ValueError(
            f"delays must have shape (rounds, workers), got {np.shape(delays)}"
        )
    return jnp.asarray(delays, jnp.int32)


def _round_index(delays: Array) -> Array:
    return jnp.arange(delays.shape[0], dtype=jnp.int32)[:, None]


def _delay(cell: str, place: str) -> int:
    try:
        delay = int(cell)
    except ValueError:
        raise ValueError(f"{place}: {cell!r} is not a whole number of rounds") from None
    if not 0 <= delay <= checks.LARGEST:
        raise ValueError(
            f"{place}: a delay must be in [0, {checks.LARGEST}], got {delay}"
        )
    return delay
