"""Hosts that talk to each other, and somebody who talks to them byte by byte."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

import numpy as np

from spheroid_jax.serving.wire import (
    Connection,
    Credentials,
    Identity,
    Limits,
    Listener,
    WireError,
    dial,
    listen,
)
from spheroid_jax.serving.wire.codec import pack, unpack
from spheroid_jax.serving.wire.frames import Frame, FrameReader, Sizes
from spheroid_jax.serving.wire.messages import Arrays, Message, Sweep
from spheroid_jax.transport.http.tls import Token

HOST = "127.0.0.1"
TOKEN = Token("spheroid_" + "k" * 40)
OTHER = Token("spheroid_" + "j" * 40)
SHARED = Credentials.shared(TOKEN)
FRONTEND = Identity("frontend", {"software": "test"})
STAGE = Identity(
    "stage", {"block": 1, "fingerprint": "f00", "share": 0.5, "last": True}
)

SWEEP = Sweep(b"r" * 16, 3, 1, b"f" * 16, 5.0, 0, 7, 1, 4, route=("a:1", "b:2"))
BYTES = {"bytes": np.arange(4, dtype=np.uint8)}


@dataclasses.dataclass
class Heard:
    """What a host heard, and what became of its connections."""

    messages: asyncio.Queue[tuple[Message, Arrays]] = dataclasses.field(
        default_factory=asyncio.Queue
    )
    opened: list[Connection] = dataclasses.field(default_factory=list)
    closed: list[WireError] = dataclasses.field(default_factory=list)

    async def take(self, _: Connection, message: Message, arrays: Arrays) -> None:
        self.messages.put_nowait((message, arrays))

    def gone(self, connection: Connection) -> None:
        assert connection.error is not None
        self.closed.append(connection.error)


async def echo(connection: Connection, message: Message, arrays: Arrays) -> None:
    await connection.send(message, arrays)


@contextlib.asynccontextmanager
async def host(
    handler=echo, credentials: Credentials = SHARED, limits: Limits | None = None
) -> AsyncIterator[tuple[Listener, Heard]]:
    """A stage that listens; when it ends nothing of it may be left."""
    before = asyncio.all_tasks()
    heard = Heard()
    listener = await listen(
        *(HOST, 0, credentials, handler),
        identity=STAGE,
        opened=heard.opened.append,
        closed=heard.gone,
        limits=limits,
    )
    try:
        yield listener, heard
    finally:
        await listener.close()
    assert not listener.connections
    for _ in range(3):  # callbacks of what has ended
        await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before | {asyncio.current_task()}


async def call(
    port: int,
    heard: Heard | None = None,
    credentials: Credentials = SHARED,
    limits: Limits | None = None,
    identity: Identity = FRONTEND,
) -> Connection:
    heard = heard or Heard()
    return await dial(
        f"{HOST}:{port}",
        credentials,
        heard.take,
        identity=identity,
        closed=heard.gone,
        limits=limits,
    )


def framed(message: Message, arrays: Arrays | None = None) -> bytes:
    return b"".join(pack(message, arrays))


def frames(data: bytes, sizes: Sizes | None = None, step: int = 1 << 20) -> list[Frame]:
    """Reads a stream that arrives in pieces of ``step`` bytes, to its end."""
    reader, found = FrameReader(sizes or Sizes()), []
    view = memoryview(data)
    while view:
        room = reader.buffer()
        count = min(step, len(view), len(room))
        assert count, "there is no room, and no frame"
        room[:count] = view[:count]
        reader.advance(count)
        view = view[count:]
        while (one := reader.next()) is not None:
            found.append(one)
    reader.end()
    return found


class Raw:
    """A peer that says what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader, self.writer = reader, writer
        self._frames = FrameReader(Sizes())

    @classmethod
    async def connect(cls, port: int, source: str = HOST) -> "Raw":
        """Connects from an address of this machine."""
        return cls(*await asyncio.open_connection(HOST, port, local_addr=(source, 0)))

    def say(self, data: bytes | Message) -> None:
        self.writer.write(data if isinstance(data, bytes) else framed(data))

    async def hear(self) -> tuple[Message, bytes] | None:
        """The next message and its header; None when the connection ends."""
        while (found := self._frames.next()) is None:
            try:
                data = await self.reader.read(1024)
            except ConnectionError:
                return None
            if not data:
                return None
            self._frames.buffer()[: len(data)] = data
            self._frames.advance(len(data))
        return unpack(found)[0], found.header

    async def rest(self) -> list[Message]:
        """What comes until the connection ends."""
        said = []
        while (found := await self.hear()) is not None:
            said.append(found[0])
        return said

    def close(self) -> None:
        self.writer.transport.abort()
