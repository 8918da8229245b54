"""Requests of different lengths as the rectangle that a compiled program takes.

Rows and positions are padded to few sizes, so that there are few programs.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from spheroid_jax.serving.rows import Rows


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """What one row of a batch asks for; see :class:`Rows`.

    Attributes:
      slot: of the cache.
      start: place of the first position.
      index: its absolute index.
      known: leading positions whose bytes are decided.
      count: positions.
      bytes: integers, of the first positions: decided ones, and guesses if there are.
      seed: of the request's draws.
      temperature: 0 for the likeliest byte.
      top_k: 0 for no such filter.
      top_p: 1 for no such filter.
    """

    slot: int
    start: int
    index: int
    known: int
    count: int
    bytes: np.ndarray
    seed: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


def bucket(count: int, most: int, base: int = 2) -> int:
    """The least power of ``base`` that is at least ``count``; no more than ``most``.

    Raises:
      ValueError: ``count`` isn't in ``1 .. most``.

    >>> [bucket(count, 24) for count in (1, 3, 8, 17)]
    [1, 4, 8, 24]
    """
    if not 1 <= count <= most:
        raise ValueError(f"count={count} must be 1 to {most}")
    power = 1
    while power < count:
        power *= base
    return min(power, most)


def pack(given: Sequence[Row], rows: int, positions: int) -> Rows:
    """A batch of ``rows`` rows of ``positions`` positions; rows beyond are padding."""
    more = rows - len(given)

    def each(name: str, dtype: Any, rest: Any) -> Any:
        return np.array([getattr(row, name) for row in given] + [rest] * more, dtype)

    text: Any = np.zeros((rows, positions), np.int32)
    for line, row in zip(text, given, strict=False):
        line[: len(row.bytes)] = row.bytes
    return Rows(
        slot=each("slot", np.int32, -1),  # nobody's
        start=each("start", np.int32, 0),
        index=each("index", np.int32, 0),
        known=each("known", np.int32, 1),
        count=each("count", np.int32, 0),
        bytes=text,
        seed=each("seed", np.uint32, 0),
        temperature=each("temperature", np.float32, 1.0),
        top_k=each("top_k", np.int32, 0),
        top_p=each("top_p", np.float32, 1.0),
    )
