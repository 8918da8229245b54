"""What a stage sends: results and failures to front ends, sweeps to the next stage.

Each goes out in a task of its own, so that a peer which takes nothing holds up only
what is for it.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

import msgspec
import numpy as np

from spheroid_jax.serving.host import sweeps
from spheroid_jax.serving.host.engine import Made
from spheroid_jax.serving.host.forward import Forwarder, NoWay
from spheroid_jax.serving.wire.messages import (
    Arrays,
    Failure,
    FailureKind,
    Message,
    Result,
    StageSeconds,
    Sweep,
)

FRONTEND, STAGE = "frontend", "stage"  # roles of peers
_SAID = 5.0  # seconds between lines about the same trouble


class Peer(Protocol):
    """What is used of a connection that came in."""

    @property
    def id(self) -> bytes:
        """Who it is, 16 bytes."""

    @property
    def role(self) -> str:
        """``frontend`` or ``stage``."""

    async def send(
        self, message: Message, arrays: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Sends a message, or raises ConnectionError."""


class Outbox:
    """Sends for the stage ``at``; ``say`` is for the one who runs it."""

    def __init__(self, at: int, forwarder: Forwarder, say: Callable[[str], None]):
        self._at, self._forwarder, self._say = at, forwarder, say
        self._said: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._frontends: dict[bytes, Peer] = {}

    def __len__(self) -> int:
        """How many messages are on their way out."""
        return len(self._tasks)

    def joined(self, peer: Peer) -> None:
        """A front end has connected; a newer connection takes over from an older."""
        self._frontends[peer.id] = peer

    def left(self, peer: Peer) -> bool:
        """A connection is over; whether it was the one in use of a front end."""
        if self._frontends.get(peer.id) is not peer:
            return False
        del self._frontends[peer.id]
        return True

    def knows(self, frontend: bytes) -> bool:
        """Whether a front end is connected."""
        return frontend in self._frontends

    def fail(self, sweep: Sweep, kind: FailureKind, text: str) -> None:
        """Tells a sweep's front end that it has no result."""
        self._tell(sweep, self.failure(sweep, kind, text), {})

    def failure(self, sweep: Sweep, kind: FailureKind, text: str) -> Failure:
        """The message that says so."""
        line = f"stage {self._at}: {text}"[:500]
        return Failure(sweep.request, sweep.number, sweep.attempt, self._at, kind, line)

    def result(self, sweep: Sweep, made: Made, spent: StageSeconds) -> None:
        """Sends the bytes to the sweep's front end."""
        result = Result(
            sweep.request,
            sweep.number,
            sweep.attempt,
            self._at,
            (*sweep.seconds, spent),
        )
        self._tell(sweep, result, sweeps.result_of(sweep, made))

    def pass_on(
        self, sweep: Sweep, made: Made, spent: StageSeconds, expires: float
    ) -> None:
        """Sends a sweep to the next stage, or its front end word why not."""
        self._start(self._pass_on(sweep, made, spent, expires))

    def trouble(self, line: str) -> None:
        """Says a line, but not the same one again and again."""
        now = time.monotonic()
        if now - self._said.get(line, -_SAID) >= _SAID:
            self._said = {k: t for k, t in self._said.items() if now - t < _SAID}
            self._said[line] = now
            self._say(line)

    async def close(self) -> None:
        """Ends what is still on its way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass_on(
        self, sweep: Sweep, made: Made, spent: StageSeconds, expires: float
    ) -> None:
        left = expires - time.monotonic()
        if left <= 0:
            self.fail(sweep, "late", "its time was over when it was computed")
            return
        address, *route = sweep.route
        onward = msgspec.structs.replace(
            sweep, route=tuple(route), deadline=left, seconds=(*sweep.seconds, spent)
        )
        arrays = sweeps.passed_on(sweep, made)
        try:
            async with asyncio.timeout(left):
                await self._forwarder.send(address, onward, arrays)
        except NoWay as error:
            kind: FailureKind = "refused" if error.kind == "refused" else "peer"
            self.trouble(str(error))
            self.fail(sweep, kind, str(error))
        except TimeoutError:
            self.fail(sweep, "late", f"the next stage, {address}, didn't take it")

    def _tell(self, sweep: Sweep, message: Message, arrays: Arrays) -> None:
        frontend = self._frontends.get(sweep.frontend)
        if frontend is not None:
            self._start(_sent(frontend, message, arrays))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.trouble(f"a message wasn't sent: {type(error).__name__}: {error}")


async def _sent(peer: Peer, message: Message, arrays: Arrays) -> None:
    # Who doesn't take it loses the connection, and hears nothing any more.
    with contextlib.suppress(OSError, TimeoutError):
        await peer.send(message, arrays)
