"""One stage as the front end sees it: its connection, kept up, and how it does."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from spheroid_jax.serving.frontend.model import Part, part_of
from spheroid_jax.serving.frontend.said import is_rejection, told, why
from spheroid_jax.serving.frontend.settings import Settings
from spheroid_jax.serving.wire.connection import Connection, Handler
from spheroid_jax.serving.wire.limits import WireError
from spheroid_jax.serving.wire.messages import (
    Arrays,
    Failure,
    Message,
    Ping,
    Pong,
    Result,
)

log = logging.getLogger(__name__)
State = Literal["connecting", "up", "suspected", "draining", "down", "refused"]

# Connects to an address, and has the handler told what comes from there.
Dial = Callable[[str, Handler], Awaitable[Connection]]


class Owner(Protocol):
    """Who wants to hear of a stage."""

    def changed(self, link: "StageLink", why: str) -> None:
        """Its state is another."""

    def heard(self, link: "StageLink", message: Result | Failure, a: Arrays) -> None:
        """A sweep came to its end."""


class StageLink:
    """Keeps a connection to a stage, and asks how it does.

    Attributes:
      address: of the stage.
      place: of the address on the command line, from 0.
      part: what it holds; None before it was ever reached.
      state: ``up`` is the only one in which it is used.
      why: the state is what it is, in words; they may name addresses.
      told: the same for clients: no addresses.
      pong: the newest.
      texts: those of this front end that use it now.
      rejected: it doesn't know our token, as it said last.
    """

    def __init__(
        self, address: str, place: int, dial: Dial, settings: Settings, owner: Owner
    ) -> None:
        self.address, self.place = address, place
        self.part: Part | None = None
        self.state: State = "connecting"
        self.why = self.told = "it wasn't reached yet"
        self.pong = Pong(0)
        self.texts = 0
        self.rejected = False
        self._dial, self._settings, self._owner = dial, settings, owner
        self._wire: Connection | None = None
        self._heard = 0.0
        self._received = 0
        self._pings = 0
        self._sending: set[asyncio.Task[None]] = set()

    @property
    def load(self) -> float:
        """Share of its slots that are taken, by us or as it said last."""
        slots = self.part.slots if self.part else 1
        said = self.pong.slots - self.pong.slots_free
        return max(self.texts, said) / slots

    @property
    def connected(self) -> bool:
        """Whether its answers can reach us, however it does."""
        return self._wire is not None and not self._wire.closed

    async def send(self, message: Message, arrays: Arrays | None = None) -> None:
        """Sends a message.

        Raises:
          WireError: it can't be reached.
        """
        if self._wire is None:
            raise WireError(f"{self.address} isn't connected: {self.why}", "closed")
        await self._wire.send(message, arrays)

    def post(self, message: Message) -> None:
        """Sends a message some time soon; nobody hears if it can't be sent."""

        async def send() -> None:
            with contextlib.suppress(WireError):
                await self.send(message)

        if self._wire is not None:
            task = asyncio.get_running_loop().create_task(send())
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def run(self) -> None:
        """Connects, again and again, until it is cancelled."""
        least, most = self._settings.backoff
        pause = least
        try:
            while True:
                began = asyncio.get_running_loop().time()
                await self._once()
                if asyncio.get_running_loop().time() - began > most:
                    pause = least
                # Spread, or all front ends would come back at the same moment.
                await asyncio.sleep(self._spread(pause))
                pause = min(2 * pause, most)
        finally:
            for task in list(self._sending):
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)

    def _spread(self, pause: float) -> float:
        # Whoever asks again and again with a wrong token fills its stage's log.
        if self.rejected:
            pause = max(pause, self._settings.rejected)
        return pause * random.uniform(0.5, 1.0)

    async def _once(self) -> None:
        """A connection, from its beginning to its end."""
        try:
            wire = await self._dial(self.address, self._take)
        except (WireError, ValueError) as error:
            self._fail(error)
            return
        self.rejected = False
        try:
            try:
                self.part = part_of(wire.facts)
            except ValueError as error:
                self._become("refused", str(error))
                return
            self._wire = wire
            self._heard, self._received = asyncio.get_running_loop().time(), 0
            self.pong = Pong(0, slots=self.part.slots, slots_free=self.part.slots)
            self._become("up", "connected")
            await self._watch(wire)
        finally:
            self._wire = None
            await wire.close("this front end ends, or takes you for dead")

    async def _watch(self, wire: Connection) -> None:
        """Pings until the connection ends, or the stage was silent for too long."""
        ended = asyncio.ensure_future(wire.wait_closed())
        settings, time = self._settings, asyncio.get_running_loop().time
        try:
            while True:
                before = time()
                self._pings += 1
                try:
                    await wire.send(Ping(self._pings))
                except WireError as error:
                    self._fail(error)
                    return
                await asyncio.wait([ended], timeout=settings.ping)
                if ended.done():
                    self._fail(ended.result())
                    return
                if time() - before > 2 * settings.ping + 0.5:
                    continue  # it was us who had no time
                if wire.received_bytes != self._received:
                    self._heard, self._received = time(), wire.received_bytes
                silent = time() - self._heard
                if silent > settings.pong + settings.patience:
                    self._become("down", f"silent for {silent:.1f} s")
                    return
                if silent > settings.pong:
                    self._become("suspected", f"silent for {silent:.1f} s")
        finally:
            ended.cancel()

    async def _take(self, wire: Connection, message: Message, arrays: Arrays) -> None:
        if isinstance(message, Pong):
            self.pong = message
            self._judge(message)
        elif isinstance(message, (Result, Failure)):
            self._owner.heard(self, message, arrays)

    def _judge(self, pong: Pong) -> None:
        """Whether the stage is to be used, after what it says."""
        if self.state not in ("up", "suspected", "draining"):
            return
        if pong.draining:
            self._become("draining", "it is about to end")
        elif pong.oldest > self._settings.oldest:
            self._become("suspected", f"computes on a sweep for {pong.oldest:.1f} s")
        else:
            self._become("up", "answers")

    def _fail(self, error: Exception) -> None:
        """There is no connection, or none any more."""
        self.rejected = is_rejection(error)
        state: State = "refused" if self.rejected else "down"
        self._become(state, why(error, self.address), told(error))

    def _become(self, state: State, reason: str, public: str | None = None) -> None:
        changed = state != self.state
        self.state, self.why, self.told = state, reason, public or reason
        if changed:
            log.info("stage %s: %s (%s)", self.address, state, reason)
            self._owner.changed(self, reason)
