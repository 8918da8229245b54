"""The proxy: listens, connects on, and passes bytes at the link's times."""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator

from spheroid_jax.transport.shaping.connection import BUFFER, Connection, reset
from spheroid_jax.transport.shaping.faults import Counts, Plan, listed
from spheroid_jax.transport.shaping.link import CHUNK, Lane, Shape, round_trip

QUIET = 0.5  # seconds without an answer after which a repetition is over
REPEATING = 10.0  # seconds that a repetition may take


class Proxy:
    """A proxy that runs; :func:`shaped` makes one.

    Attributes:
      host, port: where it listens.
      counts: what happened so far.
    """

    def __init__(
        self,
        target: tuple[str, int],
        lanes: tuple[Lane, Lane],
        plan: Plan,
    ):
        self.host, self.port = "", 0
        self._target, self._lanes, self._plan = target, lanes, plan
        self._counts = Counts()
        self._connections: set[asyncio.Task[None]] = set()
        self._repetitions: set[asyncio.Task[None]] = set()
        self._down = False
        self._server: asyncio.Server | None = None

    @property
    def counts(self) -> Counts:
        """What happened so far."""
        self._counts.lost_segments = sum(lane.lost for lane in self._lanes)
        return self._counts

    @property
    def connected(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    def partition(self) -> None:
        """Takes the link down: resets all connections, and new ones, until `heal`."""
        self._down = True
        for task in self._connections:
            task.cancel()

    def heal(self) -> None:
        """Takes the link up again."""
        self._down = False

    async def settled(self) -> None:
        """Waits until everything that is sent once more has been sent."""
        while self._repetitions:
            await asyncio.wait(self._repetitions)

    async def open(self, host: str, port: int) -> None:
        """Listens; port 0 takes a free one.

        Raises:
          OSError: the address can't be had.
        """
        self._server = await asyncio.start_server(
            self._accept, host, port, limit=CHUNK, backlog=512
        )
        listening = self._server.sockets[0]
        self.host, self.port = listening.getsockname()[:2]
        for sock in self._server.sockets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)

    async def close(self) -> None:
        """Stops listening and resets what is open."""
        if self._server:
            self._server.close()
        tasks = self._connections | self._repetitions
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        number = self._counts.connections
        self._counts.connections += 1
        if self._down:
            self._counts.refused += 1
            reset(writer)
            return
        task = asyncio.create_task(self._serve(number, reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: reset(writer))  # even if it never began

    async def _serve(
        self,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        faults = self._plan(number)
        try:
            target = await self._connect()
        except OSError:
            self._counts.refused += 1
            await asyncio.sleep(self._lanes[0].rtt)
            return
        client = (reader, writer)
        await Connection(
            client, target, self._lanes, faults, self._counts, self._repeat
        ).run()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self._target, limit=CHUNK)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        return reader, writer

    def _repeat(self, data: bytes) -> None:
        task = asyncio.create_task(self._send_again(data))
        self._repetitions.add(task)
        task.add_done_callback(self._repetitions.discard)

    async def _send_again(self, data: bytes) -> None:
        """Sends bytes to the target, and hears its answers out."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(REPEATING):
                reader, writer = await self._connect()
                try:
                    writer.write(data)
                    await writer.drain()
                    # An HTTP server answers and waits for more; others wait for the
                    # end first. Some would not answer at all if the end came at once.
                    with contextlib.suppress(TimeoutError):
                        await _heard(reader, QUIET)
                    if writer.can_write_eof():
                        writer.write_eof()
                    await _heard(reader, REPEATING)
                finally:
                    reset(writer)


async def _heard(reader: asyncio.StreamReader, quiet: float) -> None:
    """Reads to the end, or raises TimeoutError once nothing has come for a while."""
    data = b"-"
    while data:
        async with asyncio.timeout(quiet):
            data = await reader.read(CHUNK)


@contextlib.asynccontextmanager
async def shaped(
    listen_host: str,
    listen_port: int,
    target_host: str,
    target_port: int,
    shape: Shape | None = None,
    plan: Plan | None = None,
    *,
    back: Shape | None = None,
    seed: int = 0,
) -> AsyncIterator[Proxy]:
    """A proxy between those who connect to it and a target.

    Each direction is a link of its own. Memory: a few MiB for a connection, however
    slow the link (``WINDOW`` bytes a direction and the kernel's buffers); who sends
    faster than the link has to wait.

    Args:
      listen_host, listen_port: where to listen; port 0 takes a free one.
      target_host, target_port: where to connect to, once for every connection.
      shape: of the direction to the target; none: it's as fast as can be.
      plan: what goes wrong; nothing by default.
      back: the shape of the way back; the same as ``shape`` by default.
      seed: of the losses and the jitter.

    Raises:
      OSError: the address to listen on can't be had.
    """
    shape = shape or Shape()
    back = shape if back is None else back
    rtt = round_trip(shape, back)
    lanes = (
        Lane(shape, rtt, random.Random(f"{seed}/up")),
        Lane(back, rtt, random.Random(f"{seed}/down")),
    )
    proxy = Proxy((target_host, target_port), lanes, plan or listed(()))
    try:
        await proxy.open(listen_host, listen_port)
        yield proxy
    finally:
        await proxy.close()
