"""Large bodies past aiohttp: nothing is lost, mixed up, or held for too long."""

import asyncio
import contextlib
import gc
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from spheroid_jax.transport.http.asking import Timeouts
from spheroid_jax.transport.http.client import HttpLink
from spheroid_jax.transport.http.receiving import recycled
from spheroid_jax.transport.http.sink import BUFFER
from spheroid_jax.transport.http.tls import Token
from tests.transport.http.client_server import SECRET, Clock, Coordinator, Fault, run
from tests.transport.items.making import item_of, layout, numbers

COUNT = 1_500_001  # numbers of 4 bytes; the last buffer isn't full
HALF = 2_500_000  # bytes


@contextlib.asynccontextmanager
async def large(
    folder: Path | None = None, *faults: Fault, stall: float = 10.0
) -> AsyncIterator[tuple[Coordinator, HttpLink]]:
    """A coordinator with an item of six buffers; over TLS if there is a folder."""
    coordinator, ca, context = Coordinator(), None, None
    index, coordinator.data = layout({"w": numbers(COUNT)}, piece=1 << 20)
    coordinator.item, coordinator.index = item_of(index, 4 * COUNT)
    coordinator.faults = list(faults)
    if folder is not None:
        authority, ca = trustme.CA(), folder / "ca.pem"
        authority.cert_pem.write_to_path(str(ca))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
    await coordinator.start(context)
    scheme = "http" if ca is None else "https"
    url = f"{scheme}://127.0.0.1:{coordinator.port}"
    times = Timeouts(sock_read=stall)
    link = HttpLink(url, Token(SECRET), ca, timeouts=times, tools=Clock().tools())
    try:
        async with link:
            yield coordinator, link
    finally:
        await coordinator.stop()


def partly(content: bytes, then: Any) -> Fault:
    """Says to send all of it, sends ``HALF`` bytes, and does something."""

    async def fault(request: web.Request) -> web.StreamResponse:
        size = len(content)
        said = f"bytes 0-{size - 1}/{size}"
        headers = {"Content-Length": str(size), "Content-Range": said}
        response = web.StreamResponse(status=206, headers=headers)
        await response.prepare(request)
        await response.write(content[:HALF])
        await asyncio.sleep(0.1)  # or what was written is thrown away
        await then(request)
        return response

    return fault


async def hang_up(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


async def stand_still(request: web.Request) -> None:
    await asyncio.sleep(5.0)


@pytest.mark.parametrize("secured", [False, True])
def test_all_of_it_comes_and_what_is_held_stays(tmp_path: Path, secured: bool) -> None:
    """All chunks are held to the end: none may be written over."""

    async def scenario() -> None:
        async with large(tmp_path if secured else None) as (coordinator, link):
            size = coordinator.item.bytes
            found = [c async for c in link.read_data(coordinator.item, 0, size)]
            assert b"".join(found) == coordinator.data
            assert sum(isinstance(c, memoryview) for c in found) >= size // BUFFER
            # A range, and a small one on the way that small answers take.
            parts = [c async for c in link.read_data(coordinator.item, 7, HALF)]
            assert b"".join(parts) == coordinator.data[7:HALF]
            parts = [c async for c in link.read_data(coordinator.item, 7, 99)]
            assert b"".join(parts) == coordinator.data[7:99]

    run(scenario())


@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize("then", [hang_up, stand_still])
def test_what_came_before_trouble_isnt_asked_for_again(
    tmp_path: Path, secured: bool, then: Any
) -> None:
    async def scenario() -> None:
        folder = tmp_path if secured else None
        async with large(folder, stall=0.5) as (coordinator, link):
            coordinator.faults.append(partly(coordinator.data, then))
            size = coordinator.item.bytes
            found = [c async for c in link.read_data(coordinator.item, 0, size)]
            assert b"".join(found) == coordinator.data
            assert coordinator.ranges == [f"bytes={HALF}-{size - 1}"]

    run(scenario())


def test_a_reader_that_is_slow_isnt_the_peer_standing_still() -> None:
    async def scenario() -> None:
        async with large(stall=0.2) as (coordinator, link):
            got = 0
            size = coordinator.item.bytes
            async for chunk in link.read_data(coordinator.item, 0, size):
                got += len(chunk)
                await asyncio.sleep(0.3)
            assert (got, len(coordinator.ranges)) == (size, 1)

    run(scenario())


def test_who_stops_reading_hangs_up() -> None:
    async def scenario() -> None:
        gone = asyncio.Event()

        async def until_gone(request: web.Request) -> None:
            try:
                while request.transport is not None:
                    await asyncio.sleep(0.02)
            finally:
                gone.set()

        async with large() as (coordinator, link):
            coordinator.faults.append(partly(coordinator.data, until_gone))
            size = coordinator.item.bytes
            async with contextlib.aclosing(
                link.read_data(coordinator.item, 0, size)
            ) as chunks:
                async for _ in chunks:
                    break
            await asyncio.wait_for(gone.wait(), 5.0)

    run(scenario())


def test_memory_is_used_again_once_no_part_of_it_is_held() -> None:
    give = recycled()
    first = give()
    assert (len(first), first.readonly) == (BUFFER, False)
    first[:3] = b"abc"
    part = first[1:3]
    del first
    other = give()
    other[:3] = b"xyz"
    assert bytes(part) == b"bc"
    del part
    gc.collect()
    again = give()
    assert bytes(again[:3]) == b"abc"  # the very memory of the first
