"""How often: a token bucket for each of many."""

import time
from collections.abc import Callable
from typing import NamedTuple

_MOST = 4096  # whose buckets are remembered; beyond that the longest unused is full


class Rate(NamedTuple):
    """So many a second, and so many at once after a pause."""

    each_second: float
    burst: int


class Rates:
    """A token bucket for each key, such as a worker or an address.

    Args:
      rate: at which a bucket fills, and how much it holds.
      clock: seconds.
    """

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock
        self._left: dict[str, tuple[float, float]] = {}  # tokens, and as of when

    def take(self, key: str) -> float:
        """Takes a token of ``key``'s.

        Returns:
          Seconds until there is one, if there is none; else 0, and it was taken.
        """
        now, (speed, burst) = self._clock(), self._rate
        tokens, since = self._left.pop(key, (float(burst), now))
        tokens = min(float(burst), tokens + (now - since) * speed)
        wait = max(0.0, (1.0 - tokens) / speed)
        # At the end: the first one is the one that was longest unused.
        self._left[key] = (tokens if wait else tokens - 1.0), now
        if len(self._left) > _MOST:
            del self._left[next(iter(self._left))]
        return wait
