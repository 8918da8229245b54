"""A proxy between a client and a target, over real sockets and a clock that jumps.

The loop's clock goes on only where nothing is left to do, so seconds of a slow link
take none, and what is measured doesn't hang on how busy the machine is. A test that
waits for what never comes fails by its time-out at once.
"""

import asyncio
import contextlib
import selectors
from collections.abc import AsyncIterator, Awaitable, Callable

from spheroid_jax.transport.shaping import Proxy, shaped

HOST = "127.0.0.1"
LIMIT = 300.0  # seconds of the loop's clock


class _Selector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout=None):
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            ready = super().select(10)
            assert ready, "nothing will ever happen"
            return ready
        # A moment for the kernel to pass on what was just written.
        ready = super().select(0.001)
        if not ready:
            self.now += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._times = _Selector()
        super().__init__(self._times)

    def time(self):
        return self._times.now


def run(test: Awaitable[None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT):
            await test

    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(limited())


def now() -> float:
    return asyncio.get_running_loop().time()


class Target:
    """What the proxy connects to; notes what every connection said.

    Attributes:
      heard: bytes of each connection.
      ends: how each one ended: "end", "reset", or "" while it's open.
    """

    def __init__(self, answer: Callable[[bytes], bytes], at_end: bool = False):
        self._answer, self._at_end = answer, at_end
        self.heard: list[bytearray] = []
        self.ends: list[str] = []
        self.over = asyncio.Condition()
        self.tasks: set[asyncio.Task[None]] = set()

    def __call__(self, reader, writer) -> None:
        self.heard.append(bytearray())
        self.ends.append("")
        task = asyncio.create_task(self._serve(len(self.ends) - 1, reader, writer))
        self.tasks.add(task)

    async def _serve(self, number: int, reader, writer) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.heard[number] += data
                if not self._at_end:
                    writer.write(self._answer(data))
                    await writer.drain()
            if self._at_end:
                writer.write(self._answer(bytes(self.heard[number])))
                await writer.drain()
            self.ends[number] = "end"
        except ConnectionError:
            self.ends[number] = "reset"
        finally:
            writer.close()
            async with self.over:
                self.over.notify_all()

    async def ended(self, count: int) -> None:
        async with self.over:
            await self.over.wait_for(lambda: sum(map(bool, self.ends)) >= count)


@contextlib.asynccontextmanager
async def link(
    *args, answer=bytes, at_end: bool = False, **kwargs
) -> AsyncIterator[tuple[Target, Proxy]]:
    target = Target(answer, at_end)
    server = await asyncio.start_server(target, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with shaped(HOST, 0, HOST, port, *args, **kwargs) as proxy:
            yield target, proxy
    finally:
        server.close()
        for task in target.tasks:
            task.cancel()
        await asyncio.gather(*target.tasks, return_exceptions=True)


async def say(proxy: Proxy, data: bytes) -> bytes:
    """Says something and hears all of the answer; a reset raises."""
    reader, writer = await asyncio.open_connection(HOST, proxy.port)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()
