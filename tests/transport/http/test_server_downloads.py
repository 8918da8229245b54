"""Items are sent as they are, in ranges, and not for ever to who doesn't read."""

import asyncio
import contextlib
import logging
import random
import socket
from pathlib import Path

import pytest

from spheroid_jax.transport.http.downloads import Unsatisfiable, parse_range
from spheroid_jax.transport.http.limits import Limits
from tests.transport.http.server_fakes import Served, refused, run

DIGEST = "ab" * 32
DATA = random.Random(4).randbytes(10_000)
URL = f"/v2/items/{DIGEST}/data"
REQUEST = f"GET {URL} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-a\r\n\r\n"


def publish(there: Served, data: bytes, index: bytes = b"{}") -> Path:
    directory = there.coordinator.home / "item"
    directory.mkdir(exist_ok=True)
    (directory / "data.0").write_bytes(data)
    (directory / "index.0.json").write_bytes(index)
    there.coordinator.items[DIGEST] = directory
    return directory


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("", None),
        ("bytes=0-9", (0, 10)),
        ("bytes=90-99", (90, 100)),
        ("bytes=90-1000", (90, 100)),
        ("bytes=99-", (99, 100)),
        ("bytes=-1", (99, 100)),
        ("bytes=-1000", (0, 100)),
        ("bytes=0-0", (0, 1)),
        # Not understood, so ignored.
        ("bytes=-", None),
        ("bytes=9-1", None),
        ("bytes=0-1,5-6", None),
        ("bytes=a-b", None),
        ("lines=0-1", None),
        ("bytes=\u0661-\u0662", None),
        ("bytes=" + "9" * 20 + "-", None),
    ],
)
def test_ranges(header: str | None, expected: tuple[int, int] | None) -> None:
    assert parse_range(header, 100) == expected


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=100-200", "bytes=-0"])
def test_ranges_outside(header: str) -> None:
    with pytest.raises(Unsatisfiable) as caught:
        parse_range(header, 100)
    assert caught.value.headers == {"Content-Range": "bytes */100"}


def test_no_range_of_an_empty_file() -> None:
    with pytest.raises(Unsatisfiable):
        parse_range("bytes=0-", 0)


def test_an_item_comes_whole_and_in_ranges(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        publish(there, DATA, b'{"index": 1}')
        async with there.http.get(f"/v2/items/{DIGEST}/index") as answer:
            assert await answer.read() == b'{"index": 1}'
        async with there.http.get(URL) as answer:
            assert (answer.status, await answer.read()) == (200, DATA)
            assert answer.headers["Accept-Ranges"] == "bytes"
            assert "immutable" in answer.headers["Cache-Control"]
            tag = answer.headers["ETag"]
        while there.coordinator.down["ada"] < len(DATA) + 12:
            await asyncio.sleep(0.005)
        assert there.coordinator.down["ada"] == len(DATA) + 12
        for given, start, stop in (("5-9", 5, 10), ("9000-", 9000, 10_000)):
            headers = {"Range": f"bytes={given}", "If-Range": tag}
            async with there.http.get(URL, headers=headers) as answer:
                assert (answer.status, await answer.read()) == (206, DATA[start:stop])
                said = f"bytes {start}-{stop - 1}/10000"
                assert answer.headers["Content-Range"] == said
        headers = {"Range": "bytes=5-9", "If-Range": '"another"'}
        async with there.http.get(URL, headers=headers) as answer:
            assert (answer.status, await answer.read()) == (200, DATA)
        async with there.http.get(URL, headers={"Range": "bytes=10000-"}) as answer:
            await refused(answer, 416, "malformed")
            assert answer.headers["Content-Range"] == "bytes */10000"
        async with there.http.head(URL) as answer:
            assert answer.headers["Content-Length"] == "10000"
            assert await answer.read() == b""

    run(tmp_path, test)


def test_only_items_are_served(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        directory = publish(there, DATA)
        (directory / "secret").write_bytes(b"secret")
        for path in (
            f"/v2/items/{'0' * 64}/data",
            f"/v2/items/{DIGEST.upper()}/data",
            f"/v2/items/{DIGEST}/secret",
            f"/v2/items/{DIGEST}/%2e%2e%2fitem%2fdata.0",
            f"/v2/items/{DIGEST}/data.0",
            f"/v2/items/{DIGEST}%00/data",
        ):
            async with there.http.get(path) as answer:
                await refused(answer, 404, "unknown")
        (directory / "data.0").unlink()  # its checkpoint was deleted
        async with there.http.get(URL) as answer:
            await refused(answer, 404, "unknown")

    run(tmp_path, test)


def test_more_than_two_gibibytes(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        with (publish(there, b"") / "data.0").open("r+b") as file:
            file.seek(2**31 + 5)
            file.write(DATA)
        async with there.http.head(URL) as answer:
            assert int(answer.headers["Content-Length"]) == 2**31 + 5 + len(DATA)
        headers = {"Range": f"bytes={2**31 + 5}-"}
        async with there.http.get(URL, headers=headers) as answer:
            assert await answer.read() == DATA

    run(tmp_path, test)


async def connect(there: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that holds little of what it is sent."""
    mine = socket.socket()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    mine.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(mine, ("127.0.0.1", there.running.port))
    return await asyncio.open_connection(sock=mine, limit=4096)


async def until_gone(there: Served) -> float:
    """Seconds until the server has no connection but that of its own client."""
    server = there.running._runner.server
    assert server is not None
    start = asyncio.get_running_loop().time()
    while server.connections:
        await asyncio.sleep(0.01)
    return asyncio.get_running_loop().time() - start


@pytest.mark.parametrize("limits", [Limits(idle=0.4), Limits(window=0.4, rate=2**30)])
def test_who_doesnt_read_is_cut(
    tmp_path: Path, limits: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(there: Served) -> None:
        publish(there, bytes(30 << 20))
        _, writer = await connect(there)
        writer.write(REQUEST.encode())
        while not there.running._runner.server.connections:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        assert 0.2 < await until_gone(there) < 5
        assert there.coordinator.down["ada"] < 30 << 20
        writer.close()
        async with there.http.get(URL, headers={"Range": "bytes=0-9"}) as answer:
            assert await answer.read() == bytes(10)

    with caplog.at_level(logging.INFO):
        run(tmp_path, test, limits)
    assert [record for record in caplog.records if record.exc_info] == []


def test_who_reads_slowly_but_reads_gets_it_all(tmp_path: Path) -> None:
    """Five times the idle time for one piece, with bytes moving all the while."""

    async def test(there: Served) -> None:
        data = random.Random(1).randbytes(3 << 20)
        publish(there, data)
        reader, writer = await connect(there)
        writer.write(REQUEST.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head
        got = bytearray()
        loop = asyncio.get_running_loop()
        start = loop.time()
        while len(got) < len(data):
            # As a line of 2 MB/s would.
            await asyncio.sleep(max(0.0, start + len(got) / 2e6 - loop.time()))
            piece = await reader.read(16 << 10)
            assert piece, f"cut after {len(got)} bytes"
            got += piece
        assert bytes(got) == data
        assert loop.time() - start > 1.5
        writer.close()

    run(tmp_path, test, Limits(idle=0.3, rate=1000, window=0.5))


def test_who_hangs_up_in_the_middle_is_no_failure_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(there: Served) -> None:
        publish(there, bytes(30 << 20))
        for _ in range(3):
            reader, writer = await connect(there)
            writer.write(REQUEST.encode())
            await reader.readexactly(10_000)
            writer.transport.abort()
        await until_gone(there)
        async with there.http.get(URL) as answer:
            assert len(await answer.read()) == 30 << 20

    with caplog.at_level(logging.INFO):
        run(tmp_path, test)
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.skipif(
    not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel has no such option"
)
def test_who_reads_no_answers_is_cut(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        publish(there, bytes(10_000))
        _, writer = await connect(there)
        with contextlib.suppress(ConnectionError, TimeoutError):
            # Requests whose answers fill every buffer on the way.
            async with asyncio.timeout(5):
                while True:
                    writer.write(REQUEST.encode() * 10)
                    await writer.drain()
        assert await until_gone(there) < 5
        writer.close()

    run(tmp_path, test, Limits(idle=0.5))
