"""From accepted updates on disk to one pseudo-gradient a block.

Files are read chunk by chunk, one block's at a time, so memory does not grow with the
number of updates.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from spheroid_jax.transport.updates import (
    UpdateError,
    UpdateReader,
    Weighted,
    aggregate,
    screen,
)


class Arrival(NamedTuple):
    """An accepted update on disk, ``age`` rounds old when it is applied.

    ``worker`` sent it; those of one worker count as one where updates are voted on.
    """

    path: Path
    block: int
    age: int
    worker: str = ""


class Rules(NamedTuple):
    """How updates of a block's replicas become one pseudo-gradient.

    Attributes:
      weigh: ages (float32) to weights; None for one.
      rule: ``mean``, ``trimmed_mean`` or ``median``.
      trim: share left out at each end; ``trimmed_mean`` only.
    """

    weigh: Callable[[Array], Array] | None = None
    rule: str = "mean"
    trim: float = 0.2


class Gathered(NamedTuple):
    """What arrived for a block.

    Attributes:
      block: which.
      age: mean of the updates that are in it, rounds; NaN where there is none.
      gradient: float32 by leaf, in the shapes of a worker's part; None: no update of
        the block is whole.
      damaged: what is wrong with updates that are left out, a line each.
    """

    block: int
    age: float
    gradient: dict[str, np.ndarray] | None
    damaged: list[str]


class Gatherer:
    """Brings together what arrived, by the rules of a run."""

    def __init__(self, rules: Rules, expected: Mapping[str, tuple[int, ...]]) -> None:
        """``expected`` is {name: shape} of the leaves of an update."""
        self._rules, self._expected = rules, expected
        self._weigh = None if rules.weigh is None else jax.jit(rules.weigh)
        self._weights: dict[int, float] = {}  # by age

    def compile(self) -> None:
        """Compiles what weighs, so that the first round doesn't wait for it."""
        self._weight(0)

    def blocks(self, arrivals: Sequence[Arrival]) -> Iterator[Gathered]:
        """Yields what came for each block that something came for, in their order.

        There is memory for one pseudo-gradient: the next one is written over it.
        """
        gradient = {n: np.empty(s, np.float32) for n, s in self._expected.items()}
        ordered = sorted(arrivals, key=lambda a: a.block)  # stable: order of slots
        for block, group in itertools.groupby(ordered, key=lambda a: a.block):
            yield self._sound(block, list(group), gradient)

    def _sound(
        self, block: int, arrivals: list[Arrival], gradient: dict[str, np.ndarray]
    ) -> Gathered:
        """A block's pseudo-gradient, of those updates that the disk still has whole.

        Parameters are donated to the step, so nothing may go wrong once it began.
        """
        try:
            self._aggregate(arrivals, gradient)
            return Gathered(block, _mean_age(arrivals), gradient, [])
        except UpdateError:
            wrong = {a: why for a in arrivals if (why := self._damage(a))}
            rest = [a for a in arrivals if a not in wrong]
            lines = [
                f"{a.path.name} was accepted, and is left out as the disk has damaged "
                f"it: {why}"
                for a, why in wrong.items()
            ]
            if not rest:
                return Gathered(block, math.nan, None, lines)
            self._aggregate(rest, gradient)
            return Gathered(block, _mean_age(rest), gradient, lines)

    def _damage(self, arrival: Arrival) -> str:
        try:
            with UpdateReader(arrival.path) as reader:
                return screen(reader, self._expected, None).why
        except UpdateError as error:
            return str(error)

    def _aggregate(
        self, arrivals: Sequence[Arrival], whole: dict[str, np.ndarray]
    ) -> None:
        """Writes over all numbers of a pseudo-gradient."""
        with contextlib.ExitStack() as stack:
            weighted = [
                Weighted(
                    stack.enter_context(UpdateReader(a.path)),
                    self._weight(a.age),
                    a.worker,
                )
                for a in arrivals
            ]
            for name, start, piece in aggregate(
                weighted, self._rules.rule, trim=self._rules.trim
            ):
                whole[name].reshape(-1)[start : start + piece.size] = piece

    def _weight(self, age: int) -> float:
        if self._weigh is None:
            return 1.0
        if age not in self._weights:
            # Many updates are of an age, and JAX takes its time.
            self._weights[age] = float(self._weigh(np.float32(age)))
        return self._weights[age]


def _mean_age(arrivals: Sequence[Arrival]) -> float:
    return float(np.mean([a.age for a in arrivals], dtype=np.float32))
