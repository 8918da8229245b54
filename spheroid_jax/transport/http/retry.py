"""Trying again: how often, how long, and what to say when there is no more use."""

import asyncio
import email.utils
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

from spheroid_jax.transport.link import LinkError

Result = TypeVar("Result")
TOO_MANY_REQUESTS = 429
_LONGEST_WAIT = 900.0  # seconds, whatever longer somebody in between may ask for


class Pace(NamedTuple):
    """When to try again. Seconds, but for ``garbled``."""

    patience: float = 900.0  # without any progress, until a call fails
    first_patience: float = 60.0  # the same, before the coordinator was ever met
    first_delay: float = 0.5  # the most that the first pause lasts; then doubled
    # Short, so that a coordinator that is back is noticed soon. Pauses are drawn evenly
    # from nothing to this, so even 64 workers, with a question and a sign of life each,
    # come at some 25 a second to a coordinator that is back, and once each.
    longest_delay: float = 10.0
    garbled: int = 4  # tries that are answered by something that makes no sense


class Tools(NamedTuple):
    """Time and chance; tests have their own."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[float, float], float] = random.uniform


class Again(Exception):
    """A try that failed, where the next one may not.

    Attributes:
      after: seconds to wait at least.
      cure: what a person can do, should it go on.
      garbled: the answer made no sense, which rarely passes by itself.
      code, status: of the error, should this be the last try.
      offset: where an upload has to go on, if that was the trouble.
    """

    def __init__(
        self,
        cause: str,
        *,
        cure: str = "",
        after: float = 0.0,
        garbled: bool = False,
        code: str = "",
        status: int = 0,
        offset: int | None = None,
    ):
        super().__init__(cause)
        self.cure, self.after, self.garbled = cure, after, garbled
        self.code = code or ("garbled" if garbled else "unreachable")
        self.status, self.offset = status, offset


class Tries:
    """The tries of one call: pauses with exponential back-off and full jitter.

    The time limit is for time without progress, so a long transfer over a bad line
    ends well as long as something arrives. Who answers that we ask too often is there,
    and says when to ask again: that never ends the tries.
    """

    def __init__(
        self,
        what: str,
        url: str,
        *,
        patience: float,
        pace: Pace,
        tools: Tools,
        notice: Callable[[str], None],
        most: Callable[[], float] = lambda: math.inf,
        hints: bool = False,
    ) -> None:
        """Begins now.

        Args:
          what: the call, in messages.
          url: of the coordinator.
          patience: seconds without progress until the call fails.
          pace: when to try again.
          tools: clock, sleep and random numbers.
          notice: gets a line before each pause.
          most: seconds that patience is cut to; asked anew after each try.
          hints: say after the first try what a person can do, not only at the end:
            a coordinator that was never met may be one of another address.
        """
        self._what, self._url, self._given, self._most = what, url, patience, most
        self._hints = hints
        self._pace, self._tools, self._notice = pace, tools, notice
        self.progress()

    @property
    def _patience(self) -> float:
        return min(self._given, self._most())

    def progress(self) -> None:
        """Something got through."""
        self._since = self._tools.clock()
        self._failed = self._garbled = 0

    async def run(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Calls ``attempt``, which makes everything anew, until it succeeds."""
        while True:
            try:
                return await attempt()
            except Again as again:
                await self.pause(again)

    async def pause(self, again: Again) -> None:
        """Waits before the next try.

        Raises:
          LinkError: There will be none.
        """
        self._failed += 1
        self._garbled += again.garbled
        is_put_off = again.status == TOO_MANY_REQUESTS
        if is_put_off:
            self._since = self._tools.clock()
        passed = self._tools.clock() - self._since
        if (
            passed >= self._patience and not is_put_off
        ) or self._garbled >= self._pace.garbled:
            times = "1 try" if self._failed == 1 else f"{self._failed} tries"
            cure = again.cure or "is the coordinator running, and at this address?"
            raise LinkError(
                f"{self._url}: {self._what} failed: {again} ({times} in "
                f"{passed:.0f} s); {cure}",
                code=again.code,
                status=again.status,
            ) from None
        # The exponent is bounded, lest a float overflow after days of tries.
        doubled = self._pace.first_delay * 2.0 ** min(self._failed - 1, 60)
        delay = min(again.after, _LONGEST_WAIT) + self._tools.uniform(
            0.0, min(self._pace.longest_delay, doubled)
        )
        if not is_put_off:
            delay = min(delay, self._patience - passed)
        is_told = self._hints and self._failed == 1 and again.cure
        hint = f"; {again.cure}" if is_told else ""
        self._notice(
            f"{self._url}: {self._what} failed: {again}{hint}; "
            f"next try in {delay:.1f} s" + ("" if is_put_off else self._limit())
        )
        await self._tools.sleep(delay)

    def _limit(self) -> str:
        """For how long there are tries; told once."""
        if self._failed > 1 or not math.isfinite(self._patience):
            return ""
        return f"; tries for {self._patience:.0f} s (--patience)"


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that an answer asks to wait; 0 if it doesn't, or not in a known way.

    A point in time is taken against the answer's own, as clocks of hosts differ.
    """
    said = headers.get("Retry-After", "").strip()
    if said.isascii() and said.isdigit():
        return float(said[:9])
    try:
        until = email.utils.parsedate_to_datetime(said)
        now = email.utils.parsedate_to_datetime(headers.get("Date", ""))
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError):
        return 0.0
