"""Before any handler: over which connection a request comes, and how often."""

import asyncio
import contextlib
import math
from collections.abc import Iterator

from aiohttp import hdrs, web

from spheroid_jax.transport.http.connections import Connection
from spheroid_jax.transport.http.guests import Guests
from spheroid_jax.transport.http.limits import Limits
from spheroid_jax.transport.http.rates import Rates
from spheroid_jax.transport.http.requests import peer_address
from spheroid_jax.transport.protocol import ProtocolError


class TooOften(ProtocolError):
    """Somebody asks too often; ``headers`` say when to ask again.

    Args:
      seconds: until then.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = max(1, math.ceil(seconds))
        super().__init__(
            f"too many requests at once: ask again in {self.seconds} s",
            status=429,
            code="busy",
        )
        self.headers = {hdrs.RETRY_AFTER: str(self.seconds)}


class Reception:
    """What a server knows of all who ask.

    Attributes:
      guests: its connections.
    """

    def __init__(self, limits: Limits) -> None:
        self.guests = Guests(limits)
        self._hold = limits.hold
        self._asks = Rates(limits.asks)
        self._stranger_asks = Rates(limits.stranger_asks)

    @contextlib.contextmanager
    def visit(self, request: web.Request, name: str | None) -> Iterator[None]:
        """Notes whose a connection is while a request is answered.

        Args:
          request: that came.
          name: whose token it shows; None: nobody's.

        Raises:
          ProtocolError: 429 or 503, there are too many; as ``Guests.begin``.
        """
        connection = request.protocol
        if not isinstance(connection, Connection):
            yield
            return
        try:
            connection.begin(name)
            yield
        finally:
            connection.end()

    async def ask(self, request: web.Request, name: str | None) -> float:
        """Counts a request.

        Who asks too often gets no answer for a moment, so that asking again and again
        is slow; without a token that is the address, with one it is whoever has it.

        Returns:
          Seconds until the next one is welcome, if this one isn't; else 0.
        """
        if name is None:
            seconds = self._stranger_asks.take(peer_address(request))
        else:
            seconds = self._asks.take(name)
        if seconds:
            gone = getattr(request.protocol, "gone", None)
            await asyncio.wait(
                {gone or asyncio.get_running_loop().create_future()}, timeout=self._hold
            )
        return seconds
