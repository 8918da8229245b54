"""Connections to the stages after this one: kept, and opened when they are needed."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import numpy as np

from spheroid_jax.serving.wire.messages import Message

_MOST = 64  # addresses that are remembered


class Link(Protocol):
    """What is used of a connection."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the peer says of itself."""

    @property
    def closed(self) -> bool:
        """Whether it is over."""

    async def send(
        self, message: Message, arrays: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Sends a message, or raises ConnectionError."""

    async def close(self) -> None:
        """Ends it."""


Dial = Callable[[str], Awaitable[Link]]


class NoWay(Exception):
    """The next stage doesn't get the sweep; one line that names it.

    Attributes:
      kind: of the failure that the front end is told: ``peer`` or ``refused``.
    """

    def __init__(self, text: str, kind: str = "peer"):
        super().__init__(text)
        self.kind = kind


@dataclasses.dataclass(eq=False)
class _Way:
    """An address, and the connection there."""

    dialling: asyncio.Task[Link] | None = None
    failed: float = -1e9
    why: NoWay | None = None
    used: float = 0.0

    @property
    def link(self) -> Link | None:
        task = self.dialling
        if task is None or not task.done() or task.cancelled() or task.exception():
            return None
        return task.result()


class Forwarder:
    """A pool of connections to next stages.

    One that hangs holds up what is sent to it, and nothing else.

    Args:
      dial: opens a connection to an address, and proves who is there; an OSError or
        a ValueError says why it can't.
      wanted: facts that the next stage has to have.
      connect: seconds for a connection.
      backoff: seconds for which an address that couldn't be reached isn't dialled.
      allow: whether an address may be dialled at all.
    """

    def __init__(
        self,
        dial: Dial,
        wanted: Mapping[str, Any],
        *,
        connect: float,
        backoff: float,
        allow: Callable[[str], bool] = lambda address: True,
    ):
        self._dial, self._allow = dial, allow
        self._wanted = dict(wanted)
        self._connect, self._backoff = connect, backoff
        self._ways: dict[str, _Way] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def send(
        self, address: str, message: Message, arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Sends a message to the stage at an address.

        Raises:
          NoWay: it can't be reached, or isn't the one that comes next.
        """
        if not self._allow(address):
            raise NoWay(
                f"the next stage, {address}, isn't among the --peers of this one: add "
                "it there, as the front end's --stages names it",
                kind="refused",
            )
        try:
            await self._send(address, message, arrays)
        except ValueError as error:
            raise NoWay(str(error), kind="refused") from error

    async def _send(
        self, address: str, message: Message, arrays: Mapping[str, np.ndarray]
    ) -> None:
        way = self._way(address)
        kept = way.link is not None and not way.link.closed
        # With a kept one, the next stage may have been restarted since it was used.
        for last in (False, True) if kept else (True,):
            link = await self._linked(address, way)
            try:
                await link.send(message, arrays)
                return
            except (OSError, TimeoutError) as error:
                if last:
                    raise NoWay(_unreachable(address, error)) from error

    async def close(self) -> None:
        """Ends all connections."""
        ways, self._ways = list(self._ways.values()), {}
        for way in ways:
            self._drop(way)
        if self._closing:
            await asyncio.wait(self._closing, timeout=1.0)

    def _way(self, address: str) -> _Way:
        way = self._ways.get(address)
        if way is None:
            way = self._ways[address] = _Way()
        way.used = time.monotonic()
        while len(self._ways) > _MOST:
            oldest = min(self._ways, key=lambda a: self._ways[a].used)
            self._drop(self._ways.pop(oldest))
        return way

    def _drop(self, way: _Way) -> None:
        if way.link is not None:
            task = asyncio.create_task(_closed(way.link))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        elif way.dialling is not None:
            way.dialling.cancel()

    async def _linked(self, address: str, way: _Way) -> Link:
        link = way.link
        if link is not None and not link.closed:
            return link
        if way.why is not None and time.monotonic() - way.failed < self._backoff:
            raise NoWay(str(way.why), way.why.kind)
        if way.dialling is None or way.dialling.done():
            way.dialling = asyncio.create_task(self._open(address))
            way.dialling.add_done_callback(_seen)
        try:
            # Others may wait for the same connection.
            return await asyncio.shield(way.dialling)
        except NoWay as error:
            way.failed, way.why = time.monotonic(), error
            raise

    async def _open(self, address: str) -> Link:
        try:
            async with asyncio.timeout(self._connect):
                link = await self._dial(address)
        except (OSError, TimeoutError, ValueError) as error:
            raise NoWay(_unreachable(address, error)) from error
        for name, wanted in self._wanted.items():
            found = link.facts.get(name)
            if found != wanted:
                await _closed(link)
                raise NoWay(
                    f"the next stage, {address}, has {name} {found}, not {wanted}: "
                    "start all stages from one checkpoint, and name them in order",
                    kind="refused",
                )
        return link


async def _closed(link: Link) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        await link.close()


def _seen(task: asyncio.Task[Link]) -> None:
    """Whoever waited may be gone: an error is no news then."""
    if not task.cancelled():
        task.exception()


def _unreachable(address: str, error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, TimeoutError) and not text:
        text = "no answer in time"
    return (
        f"the next stage, {address}, can't be reached: "
        f"{text[:300] or type(error).__name__}"
    )
