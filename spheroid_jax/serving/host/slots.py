"""Whose keys and values a stage keeps: one slot of its cache for each request.

A request is known by its front end and its own id, so that no front end can reach
into another's. Times are given by the caller, seconds of a clock that only grows.
"""

import dataclasses
from collections.abc import Collection, Hashable
from typing import NamedTuple

from spheroid_jax.serving.wire.messages import Sweep

_ENDED = 4096  # requests whose end is remembered


class RequestKey(NamedTuple):
    """Which request: ``frontend`` and ``request`` are 16 bytes each."""

    frontend: bytes
    request: bytes


@dataclasses.dataclass(eq=False)
class Held:
    """What a slot holds.

    Attributes:
      key: whose it is.
      slot: row of the cache.
      used: when it was last asked for.
      newest: the highest attempt that was asked for.
      attempt: of the last sweep that was computed; -1 before the first.
      number: of that sweep, in its attempt.
      origin: absolute index of the byte at place 0.
      places: the cache holds places ``0 .. places - 1``.
    """

    key: RequestKey
    slot: int
    used: float
    newest: int = -1
    attempt: int = -1
    number: int = -1
    origin: int = 0
    places: int = 0

    def take(self, sweep: Sweep) -> str:
        """Notes a sweep that is about to be computed on what the slot holds.

        A sweep comes once, after those before it, and begins no later than where the
        cache ends; what it computes again is as it was. The bytes behind its last
        position don't count any more.

        Returns:
          Why it can't be computed; empty if it can.
        """
        refusal = self._refusal(sweep)
        if not refusal:
            self.attempt, self.number = sweep.attempt, sweep.number
            self.origin = sweep.index - sweep.start
            self.places = sweep.start + sweep.count
        return refusal

    def _refusal(self, sweep: Sweep) -> str:
        number, start = sweep.number, sweep.start
        if (sweep.attempt, number) <= (self.attempt, self.number):
            return (
                f"sweep {number} of attempt {sweep.attempt} came after sweep "
                f"{self.number} of attempt {self.attempt}: send each once, in order"
            )
        if sweep.fresh:
            if start:
                return f"a fresh sweep starts at place 0, not at {start}"
            return ""
        if sweep.attempt == self.attempt and number > self.number + 1:
            return (
                f"sweep {number} came and sweep {self.number + 1} didn't: send each "
                "to this stage, in order"
            )
        if start > self.places:
            return (
                f"the sweep starts at place {start} and the cache ends at "
                f"{self.places}: there is a hole; begin anew"
            )
        if sweep.index - start != self.origin:
            return (
                f"place {start} is byte {self.origin + start} here, not "
                f"{sweep.index}: begin anew"
            )
        return ""


class Slots:
    """The table of requests; at most ``count`` of them."""

    def __init__(self, count: int) -> None:
        self.count = count
        # Last freed first used: its pages are warm.
        self._free = list(range(count - 1, -1, -1))
        self._held: dict[RequestKey, Held] = {}
        self._ended: dict[RequestKey, int] = {}  # oldest first

    @property
    def free(self) -> int:
        """How many there are to be had."""
        return len(self._free)

    def find(self, key: RequestKey) -> Held | None:
        """The slot of a request, if it has one."""
        return self._held.get(key)

    def open(self, key: RequestKey, now: float) -> Held | None:
        """A slot for a new request; None if all are taken."""
        if not self._free:
            return None
        held = Held(key, self._free.pop(), now)
        self._held[key] = held
        return held

    def close(self, key: RequestKey) -> bool:
        """Frees a request's slot; whether it had one."""
        held = self._held.pop(key, None)
        if held is None:
            return False
        self._free.append(held.slot)
        return True

    def end(self, key: RequestKey, attempt: int) -> None:
        """Notes that a request is over, up to an attempt.

        Its last sweep may still be on its way from the stage before, and must not
        take a slot that nobody would free.
        """
        attempt = max(attempt, self._ended.pop(key, -1))
        self._ended[key] = attempt
        if len(self._ended) > _ENDED:
            del self._ended[next(iter(self._ended))]

    def ended(self, key: RequestKey, attempt: int) -> bool:
        """Whether a request was over, not long ago, with this attempt or a later."""
        return self._ended.get(key, -1) >= attempt

    def of_frontend(self, frontend: bytes) -> list[Held]:
        """What is held for a front end."""
        return [held for held in self._held.values() if held.key.frontend == frontend]

    def idle(self, since: float, besides: Collection[Hashable]) -> list[Held]:
        """What wasn't asked for after ``since``; of requests ``besides`` nothing."""
        return [
            held
            for held in self._held.values()
            if held.used <= since and held.key not in besides
        ]

    def clear(self) -> int:
        """Frees all; returns how many requests lost theirs."""
        keys = list(self._held)
        for key in keys:
            self.close(key)
        return len(keys)
