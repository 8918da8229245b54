"""One connection through the proxy: two ways, each with its delays and its faults."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Sequence

from spheroid_jax.transport.shaping.faults import RECORDED, Counts, Fault
from spheroid_jax.transport.shaping.link import Flow, Lane

WINDOW = 4 << 20  # bytes of a connection on the way in one direction, at most
BUFFER = 1 << 18  # bytes that the kernel is asked to hold for a socket


class _Ended(Exception):
    """The connection is over, since a fault says so."""

    def __init__(self, *, reset: bool):
        super().__init__()
        self.reset = reset


class _Way:
    """One direction of a connection.

    ``take`` reads and decides when what it read arrives; ``give`` waits for that time,
    lets the faults happen and writes.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        lane: Lane,
        faults: Sequence[Fault],
    ):
        self.reader, self.writer = reader, writer
        self._chunk = lane.chunk
        self._flow = Flow(lane, asyncio.get_running_loop().time())
        self.faults = sorted(faults, key=lambda fault: fault.after_bytes)
        self.passed = 0
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._under_way = 0
        self._room = asyncio.Event()

    async def take(self) -> None:
        clock = asyncio.get_running_loop().time
        data = b"-"
        while data:
            data = await self.reader.read(self._chunk)
            await _until(self._flow.opens)
            ready, arrives = self._flow.send(len(data), clock())
            self._under_way += len(data)
            self._queue.put_nowait((arrives, data))
            await _until(ready)
            while self._under_way >= WINDOW:
                self._room.clear()
                await self._room.wait()

    async def give(self, connection: "Connection") -> None:
        while True:
            arrives, data = await self._queue.get()
            await _until(arrives)
            await connection.going.wait()
            if not data:
                break
            await self._pass(data, connection)
            self._under_way -= len(data)
            self._room.set()
        if self.writer.can_write_eof():
            self.writer.write_eof()

    async def _pass(self, data: bytes, connection: "Connection") -> None:
        while self.faults and self.faults[0].after_bytes < self.passed + len(data):
            fault = self.faults.pop(0)
            before = fault.after_bytes - self.passed
            await self._write(data[:before], connection)
            data = data[before:]
            if fault.kind == "flip":
                data = bytes([data[0] ^ 1 << fault.bit]) + data[1:]
            await connection.strike(fault)
        await self._write(data, connection)

    async def _write(self, data: bytes, connection: "Connection") -> None:
        if data:
            self.passed += len(data)
            connection.passes(self, data)
            self.writer.write(data)
            await self.writer.drain()


class Connection:
    """A connection between a client and the target.

    Args:
      client: its reader and writer.
      target: its reader and writer.
      lanes: of the link, up and down.
      faults: of this connection.
      counts: where to note what happened.
      again: is called with bytes to send to the target once more.
    """

    def __init__(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        target: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        lanes: tuple[Lane, Lane],
        faults: Sequence[Fault],
        counts: Counts,
        again: Callable[[bytes], None],
    ):
        def of(direction: str) -> list[Fault]:
            here = [fault for fault in faults if fault.direction == direction]
            return [fault for fault in here if fault.kind != "duplicate"]

        self._up = _Way(client[0], target[1], lanes[0], of("up"))
        self._down = _Way(target[0], client[1], lanes[1], of("down"))
        self._copies = [fault for fault in faults if fault.kind == "duplicate"]
        self._record = bytearray()
        self._counts, self._again = counts, again
        self._takes: list[asyncio.Task[None]] = []
        self.going = asyncio.Event()  # cleared for good by a stall
        self.going.set()

    async def run(self) -> None:
        """Serves the connection until it has ended; both sockets are closed then."""
        ways = (self._up, self._down)
        writers = [way.writer for way in ways]
        for writer in writers:
            writer.transport.set_write_buffer_limits(high=BUFFER)
        self._takes = [asyncio.create_task(way.take()) for way in ways]
        tasks = [*self._takes, *(asyncio.create_task(w.give(self)) for w in ways)]
        try:
            await _all(tasks)
            await _closed(writers)
        except _Ended as end:
            if not end.reset:
                await _closed(writers)
        except OSError:  # an end that goes without a word takes the other along
            if not self.going.is_set():  # but for one that stalls
                await asyncio.wait(self._takes)
        finally:
            reset(*writers)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._copy()

    def passes(self, way: _Way, data: bytes) -> None:
        """Notes bytes that are about to be passed on."""
        if way is self._up:
            self._counts.bytes_up += len(data)
            if self._copies and len(self._record) + len(data) <= RECORDED:
                self._record += data
        else:
            self._copy()
            self._counts.bytes_down += len(data)

    async def strike(self, fault: Fault) -> None:
        """Lets a fault happen; a flip has been done by the caller.

        Raises:
          _Ended: the connection is over.
        """
        self._counts.happened.append(fault)
        if fault.kind == "delay":
            await asyncio.sleep(fault.seconds)
        elif fault.kind == "stall":
            self.going.clear()
            await asyncio.wait(self._takes)
            raise _Ended(reset=False)
        elif fault.kind in ("cut", "reset"):
            raise _Ended(reset=fault.kind == "reset")

    def _copy(self) -> None:
        """Sends once more what is due to be."""
        due = [fault for fault in self._copies if fault.after_bytes < self._up.passed]
        self._copies = [fault for fault in self._copies if fault not in due]
        for fault in due:
            if len(self._record) == self._up.passed:  # else it was too much to keep
                self._counts.happened.append(fault)
                self._again(bytes(self._record))


def reset(*writers: asyncio.StreamWriter) -> None:
    """Ends connections with RST, at once; those that are closed stay as they are."""
    for writer in writers:
        sock = writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Waits for all, or for the first that fails."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()


async def _closed(writers: Sequence[asyncio.StreamWriter]) -> None:
    """Closes, once what was written has gone to the kernel."""
    for writer in writers:
        writer.close()
    for writer in writers:
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _until(when: float) -> None:
    """Sleeps until a time of the loop's clock."""
    seconds = when - asyncio.get_running_loop().time()
    if seconds > 0:
        await asyncio.sleep(seconds)
