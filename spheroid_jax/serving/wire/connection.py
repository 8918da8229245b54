"""A connection to a peer that has proven who it is: messages in and out."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import numpy as np

from spheroid_jax.serving.wire import handshake
from spheroid_jax.serving.wire.codec import pack, unpack
from spheroid_jax.serving.wire.frames import HEAD_BYTES, FrameError
from spheroid_jax.serving.wire.handshake import Peer
from spheroid_jax.serving.wire.limits import Limits, WireError
from spheroid_jax.serving.wire.messages import (
    Arrays,
    Challenge,
    Fact,
    Goodbye,
    Hello,
    Message,
    Proof,
    Welcome,
)
from spheroid_jax.serving.wire.stream import Stream

log = logging.getLogger(__name__)

# Is awaited for every message, in order; while it runs the connection isn't read.
Handler = Callable[["Connection", Message, Arrays], Awaitable[None]]
Watcher = Callable[["Connection"], None]


class Connection:
    """A connection to a peer that has proven who it is.

    Attributes:
      peer: who that is.
      error: why it is over, once it is.
    """

    def __init__(self, stream: Stream, peer: Peer, limits: Limits):
        self.peer = peer
        self.error: WireError | None = None
        self._stream, self._limits = stream, limits
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Connection({self.peer.role} {self.peer.where})"

    @property
    def id(self) -> bytes:
        """The peer's, 16 bytes."""
        return self.peer.id

    @property
    def role(self) -> str:
        """The peer's."""
        return self.peer.role

    @property
    def facts(self) -> Mapping[str, Fact]:
        """What the peer says of itself."""
        return self.peer.facts

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.error is not None or self._stream.over

    @property
    def received_bytes(self) -> int:
        """So far; one that doesn't grow is a peer that says nothing."""
        return self._stream.received

    @property
    def sent_bytes(self) -> int:
        """So far."""
        return self._stream.sent

    async def send(
        self, message: Message, arrays: Mapping[str, np.ndarray] | None = None
    ) -> None:
        """Sends a message; waits while too much waits to be sent already.

        Messages of several callers go in the order of their calls. Arrays must stay as
        they are: large ones aren't copied.

        Raises:
          WireError: the connection is over.
          ValueError: an array is of a type that isn't sent, or all are too large.
        """
        pieces = pack(message, arrays)
        sizes, header = self._limits.sizes, len(pieces[0]) - HEAD_BYTES
        payload = sum(map(len, pieces[1:]))
        if header > sizes.header or payload > sizes.payload:
            raise ValueError(
                f"a message of {header} bytes with arrays of {payload}: at most "
                f"{sizes.header} and {sizes.payload} are sent"
            )
        await self._stream.send(pieces)

    async def close(self, text: str = "it is done here") -> None:
        """Sends what waits and a last word, and closes; within ``close_seconds``.

        A handler that still runs then is cancelled after as long again.
        """
        error = WireError(f"the connection to {self.peer.where} is closed", "closed")
        self._stream.end(error, pack(Goodbye("closed", text[:500])))
        await asyncio.shield(self._stream.ended)
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait([self._task], timeout=self._limits.close_seconds)
            self._task.cancel()  # if it hasn't ended
            await asyncio.wait([self._task])

    def cut(self, error: WireError) -> None:
        """Closes for this reason, which the peer is told; doesn't wait."""
        self._stream.end(error, pack(Goodbye(error.code, str(error)[:500])))

    async def wait_closed(self) -> WireError:
        """Why it ended, once the connection is gone and its handler has ended."""
        await asyncio.shield(self._stream.ended)
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait([self._task])
        gone = WireError(f"{self.peer.where} closed the connection", "closed")
        return self.error or self._stream.error or gone

    def start(self, handler: Handler, closed: Watcher | None) -> None:
        """Begins to read. Called once, by :func:`dial` and :func:`listen`."""
        self._task = asyncio.create_task(self._run(handler, closed))

    async def _run(self, handler: Handler, closed: Watcher | None) -> None:
        try:
            self.error = await self._read(handler)
        except asyncio.CancelledError:
            gone = WireError(f"{self.peer.where}: cancelled", "closed")
            self.error = self._stream.error or gone
            self._stream.cut()
            raise
        except Exception:
            log.exception("a message of %s couldn't be handled", self.peer.where)
            broken = WireError(f"{self.peer.where}: internal error", "internal")
            self.error = handshake.failed(self._stream, broken)
        finally:
            assert self.error is not None
            quiet = self.error.code == "closed"
            log.log(logging.DEBUG if quiet else logging.WARNING, "%s", self.error)
            if closed is not None:
                closed(self)

    async def _read(self, handler: Handler) -> WireError:
        stream = self._stream
        try:
            while (found := await stream.receive()) is not None:
                message, arrays = unpack(found)
                if isinstance(message, Goodbye):
                    return handshake.ended_by_peer(stream, message)
                if isinstance(message, Hello | Challenge | Proof | Welcome):
                    raise FrameError(
                        "a handshake came after the handshake", "malformed"
                    )
                await handler(self, message, arrays)
        except (FrameError, WireError) as error:
            if isinstance(error, WireError) and not stream.over:
                raise  # of another connection, in the handler
            return handshake.failed(stream, error)
        gone = WireError(f"{stream.where} closed the connection", "closed")
        stream.end(gone)
        stream.cut()
        return stream.error or gone


async def ignore(connection: Connection, message: Message, arrays: Arrays) -> None:
    """A handler that does nothing."""
