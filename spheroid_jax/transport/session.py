"""What a worker's process says to its coordinator, whichever way."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from spheroid_jax.transport.link import Link, LinkError
from spheroid_jax.transport.protocol import (
    VERSION,
    Heartbeat,
    Leave,
    Pulse,
    Register,
    Work,
    WorkRequest,
)

_ASK_SECONDS = 20.0  # a question for work is held open so long
_LEAVE_SECONDS = 15.0  # more than a look at a bucket takes
_REGISTRATIONS = 5  # for one call
_Answer = TypeVar("_Answer")


class Identity(NamedTuple):
    """How this process presents itself."""

    session: str  # 32 hexadecimal digits, drawn anew by every process
    software: str
    device: str


class Session:
    """One process of a worker, as its coordinator knows it."""

    def __init__(self, link: Link, identity: Identity) -> None:
        """Says nothing yet."""
        self._link, self.identity = link, identity

    async def register(self) -> None:
        """Presents this process anew; the coordinator may have been restarted."""
        await self._link.register(Register(VERSION, *self.identity))

    async def known(self, call: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Calls, and registers first where the coordinator doesn't know us any more.

        It may be restarted again in between, so that happens a few times. A process
        that another one took over from never comes back by that.

        Raises:
          LinkError: the call failed for good.
        """
        for _ in range(_REGISTRATIONS):
            try:
                return await call()
            except LinkError as error:
                if error.code != "unknown" or error.status != 409:
                    raise
            await self.register()
        return await call()

    async def ask(self, after: int, stopping: asyncio.Event) -> Work | None:
        """What to do; None if asked to stop meanwhile.

        Args:
          after: newest round that this worker is through with.
          stopping: set when it is to stop.
        """
        request = WorkRequest(self.identity.session, after, _ASK_SECONDS)
        asking = asyncio.create_task(self.known(lambda: self._link.work(request)))
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait([asking, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not stopping.is_set():
            return asking.result()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return None

    async def pulse(self, beat: Heartbeat) -> Pulse:
        """A sign of life, and what the coordinator says to it."""
        return await self.known(lambda: self._link.heartbeat(beat))

    async def leave(self) -> None:
        """Tells that this worker goes, if it can be told soon."""
        with contextlib.suppress(LinkError, TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._link.leave(Leave(self.identity.session))
