"""Sweeps that are on their way, and who waits for them."""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from spheroid_jax.serving.wire.messages import Arrays, Failure, Result

log = logging.getLogger(__name__)


class Key(NamedTuple):
    """Which trip: a retry has another attempt, so an old result isn't taken for new."""

    request: bytes
    number: int
    attempt: int


class TripFailed(Exception):
    """A sweep didn't come back; its text is for clients, and names no address.

    Attributes:
      why: as of ``metrics.RETRIES``: a failure's kind; ``gone`` (a stage's connection
        was lost), ``silent`` (a stage is suspected to hang), ``late``.
      address: of the stage to do without, where one is known.
    """

    def __init__(self, why: str, text: str, address: str | None = None):
        super().__init__(text)
        self.why, self.address = why, address


class Returned(NamedTuple):
    """A result, and its arrays."""

    result: Result
    arrays: Arrays


class _Trip(NamedTuple):
    route: tuple[str, ...]  # addresses
    answer: asyncio.Future[Returned]


class _Left(NamedTuple):
    timer: asyncio.TimerHandle
    then: Callable[[], None]


class Trips:
    """The trips of a front end."""

    def __init__(self) -> None:
        self._open: dict[Key, _Trip] = {}
        self._left: dict[Key, _Left] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def abandoned(self) -> int:
        """Trips whose end nobody waits for."""
        return len(self._left)

    def begin(self, key: Key, route: tuple[str, ...]) -> asyncio.Future[Returned]:
        """A sweep is about to be sent; the future is its result, or TripFailed."""
        future = asyncio.get_running_loop().create_future()
        self._open[key] = _Trip(route, future)
        return future

    def end(self, key: Key) -> None:
        """Nobody waits any more."""
        trip = self._open.pop(key, None)
        if trip is not None:
            trip.answer.cancel()

    def abandon(self, key: Key, seconds: float, then: Callable[[], None]) -> None:
        """Nobody waits any more; calls ``then`` once the sweep has ended for sure.

        A sweep that is on its way when its text is given up may take a slot at a stage
        after that stage was told that the text is over.

        Args:
          key: of a trip.
          seconds: after which it has ended in any case: its deadline.
          then: tells the stages once more.
        """
        self.end(key)
        timer = asyncio.get_running_loop().call_later(seconds, self._over, key)
        self._left[key] = _Left(timer, then)

    def returned(self, result: Result, arrays: Arrays) -> None:
        """A result came; one that nobody waits for is dropped."""
        key = Key(result.request, result.number, result.attempt)
        self._over(key)
        self._finish(key, Returned(result, arrays))

    def failed(self, failure: Failure, address: str) -> None:
        """A stage, at ``address``, gave a sweep up."""
        key = Key(failure.request, failure.number, failure.attempt)
        self._over(key)
        trip = self._open.get(key)
        if trip is None:
            return
        culprit, text = self._understand(failure, address, trip.route)
        log.info("stage %d (%s): %s", failure.at, address, failure.text or failure.kind)
        self._finish(key, TripFailed(failure.kind, text, culprit))

    def _understand(
        self, failure: Failure, address: str, route: tuple[str, ...]
    ) -> tuple[str | None, str]:
        """Who is to be done without, and what to tell: that names no address."""
        text = failure.text.removeprefix(f"stage {failure.at}: ") or failure.kind
        culprit: str | None = address
        if failure.kind == "peer" and address in route[:-1]:
            following = route[route.index(address) + 1]
            if following in failure.text:  # else it goes away itself
                culprit, text = following, "it doesn't reach the next one"
        if failure.kind in ("lost", "refused"):
            culprit = None  # another try may do there
        for one in route:
            text = text.replace(one, "(address)")
        return culprit, f"block {failure.at}: {text}"

    def lost(self, address: str, why: str, text: str) -> None:
        """A stage is gone: no trip through it comes back, which ``text`` explains."""
        for key, trip in list(self._open.items()):
            if address in trip.route:
                self._finish(key, TripFailed(why, text, address))

    def through(self, address: str) -> bool:
        """Whether a trip goes through that stage."""
        return any(address in trip.route for trip in self._open.values())

    def _finish(self, key: Key, outcome: Returned | TripFailed) -> None:
        trip = self._open.pop(key, None)
        if trip is None or trip.answer.done():
            return
        if isinstance(outcome, TripFailed):
            trip.answer.set_exception(outcome)
        else:
            trip.answer.set_result(outcome)

    def close(self) -> None:
        """Forgets all of them."""
        for key in list(self._open):
            self.end(key)
        for key in list(self._left):
            self._left.pop(key).timer.cancel()

    def _over(self, key: Key) -> None:
        left = self._left.pop(key, None)
        if left is not None:
            left.timer.cancel()
            left.then()
