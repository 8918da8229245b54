"""Every limit is there and does what it says."""

import asyncio
import contextlib
import gzip
import os
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import aiohttp
import pytest

from spheroid_jax.transport.http.limits import Gate, Limits, Pace
from spheroid_jax.transport.protocol import ProtocolError
from tests.transport.http.server_fakes import (
    SESSION,
    Served,
    announce,
    raw,
    refused,
    run,
)

HEARTBEAT = b'{"session":"%s"}' % SESSION.encode()
PART = "/v2/uploads/3-1-ada-0"


def head(method: str, path: str, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Authorization: Bearer token-a"]
    return "\r\n".join([*lines, *headers, "", ""]).encode()


def test_a_pace_without_bytes_ends_after_the_idle_time() -> None:
    pace = Pace(Limits(idle=30, rate=0, window=60), 100.0)
    assert pace.deadline == 130.0
    pace.moved(1, 120.0)
    assert pace.deadline == 150.0


def test_a_pace_below_the_rate_ends_with_the_window() -> None:
    pace = Pace(Limits(idle=30, rate=10, window=60), 100.0)
    for now in range(101, 160):
        pace.moved(10, float(now))  # 590 bytes of 600
        assert pace.deadline == min(now + 30.0, 160.0)
    pace.moved(10, 159.5)  # enough
    assert pace.deadline == 189.5
    pace.moved(1, 161.0)  # begins another window
    assert pace.deadline == 191.0
    pace.moved(1, 190.0)
    assert pace.deadline == 220.0
    pace.moved(1, 200.0)
    assert pace.deadline == 221.0  # 161 + 60


def test_a_pace_doesnt_count_the_time_that_we_took() -> None:
    pace = Pace(Limits(idle=30, rate=10, window=40), 100.0)
    pace.excuse(50.0)
    assert pace.deadline == 180.0
    pace.moved(1, 170.0)
    assert pace.deadline == 190.0  # 150 + 40


def test_a_gate_counts_each_worker() -> None:
    gate = Gate(2, "requests")
    with gate.enter("ada"), gate.enter("bob"):
        with gate.enter("ada"):
            with pytest.raises(ProtocolError, match="2 requests") as caught:
                gate.enter("ada").__enter__()
            assert (caught.value.status, caught.value.code) == (429, "busy")
            with gate.enter("bob"):
                pass
        with gate.enter("ada"):
            pass


def test_a_worker_has_so_many_requests_at_once(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        work = {"session": SESSION, "wait": 60}
        polls = [asyncio.create_task(there.http.post("/v2/work", json=work))]
        polls.append(asyncio.create_task(there.http.post("/v2/work", json=work)))
        while there.coordinator.polls < 2:
            await asyncio.sleep(0.005)
        async with there.http.post("/v2/heartbeat", data=HEARTBEAT) as answer:
            await refused(answer, 429, "busy")
            assert int(answer.headers["Retry-After"]) > 0
        other = {"Authorization": "Bearer token-b"}
        async with there.http.post(
            "/v2/heartbeat", data=HEARTBEAT, headers=other
        ) as answer:
            assert answer.status == 200
        there.coordinator.ready.set()
        for poll in polls:
            (await poll).release()
        async with there.http.post("/v2/heartbeat", data=HEARTBEAT) as answer:
            assert answer.status == 200

    run(tmp_path, test, Limits(requests=2, shutdown=0.2))


def test_a_worker_has_so_many_uploads_at_once(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        for attempt in range(2):
            wanted = announce(bytes(10), attempt=attempt)
            async with there.http.post("/v2/uploads", json=wanted) as answer:
                assert answer.status == 200
        begun, end = asyncio.Event(), asyncio.Event()

        async def body() -> AsyncGenerator[bytes, None]:
            yield bytes(5)
            begun.set()
            await end.wait()
            yield bytes(5)

        offset = {"Upload-Offset": "0"}
        first = asyncio.create_task(there.http.patch(PART, data=body(), headers=offset))
        await begun.wait()
        second = "/v2/uploads/3-1-ada-1"
        while True:  # until the first has arrived
            async with there.http.patch(second, data=b"", headers=offset) as answer:
                if answer.status == 429:
                    break
            await asyncio.sleep(0.005)
        end.set()
        assert (await first).status == 204
        async with there.http.patch(second, data=bytes(10), headers=offset) as answer:
            assert answer.status == 204

    run(tmp_path, test, Limits(transfers=1, shutdown=0.2))


@pytest.mark.parametrize("chunked", [False, True])
def test_a_message_has_so_many_bytes(tmp_path: Path, chunked: bool) -> None:
    async def body(data: bytes) -> AsyncGenerator[bytes, None]:
        yield data[:500]
        yield data[500:]

    async def test(there: Served) -> None:
        for size, status in ((1000, 200), (1001, 413)):
            data = HEARTBEAT.ljust(size)
            given = body(data) if chunked else data
            async with there.http.post("/v2/heartbeat", data=given) as answer:
                assert answer.status == status
                if status == 413:
                    await refused(answer, 413, "too_large")

    run(tmp_path, test, Limits(message=1000, shutdown=0.2))


def test_a_message_without_end_is_read_to_its_limit_only(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        request = head("POST", "/v2/heartbeat", "Transfer-Encoding: chunked")
        got = await raw(there, request + b"1000\r\n" + b" " * 4096 + b"\r\n" + b"1")
        assert b" 413 " in got.splitlines()[0]
        lied = head("POST", "/v2/heartbeat", "Content-Length: 999999999999")
        start = time.monotonic()
        got = await raw(there, lied)
        assert b" 413 " in got.splitlines()[0]
        assert time.monotonic() - start < 3  # it hung up

    run(tmp_path, test, Limits(message=1000, linger=0.1, shutdown=0.2))


def test_a_message_has_so_many_seconds(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        request = head("POST", "/v2/heartbeat", "Content-Length: 100")
        got = await raw(there, request + b"{")
        assert b" 408 " in got.splitlines()[0]
        assert b'"code":"too_slow"' in got
        assert b"Connection: close" in got

    run(tmp_path, test, Limits(message_seconds=0.2, linger=0.1, shutdown=0.2))


@pytest.mark.parametrize("size", [50_000, 5_000_000])
def test_an_upload_that_stalls_is_cut_and_stays(tmp_path: Path, size: int) -> None:
    data = bytes(size)

    async def test(there: Served) -> None:
        async with there.http.post("/v2/uploads", json=announce(data)) as answer:
            assert answer.status == 200
        half = size // 2
        request = head("PATCH", PART, "Upload-Offset: 0", f"Content-Length: {size}")
        start = time.monotonic()
        got = await raw(there, request + data[:half])
        assert 0.2 < time.monotonic() - start < 4
        assert b" 408 " in got.splitlines()[0]
        assert b"Connection: close" in got
        async with there.http.head(PART) as answer:
            assert answer.headers["Upload-Offset"] == str(half)

    run(tmp_path, test, Limits(idle=0.3, linger=0.1, shutdown=0.2))


@pytest.mark.parametrize("size", [50_000, 5_000_000])
def test_an_upload_that_trickles_is_cut(tmp_path: Path, size: int) -> None:
    async def test(there: Served) -> None:
        wanted = announce(bytes(size))
        async with there.http.post("/v2/uploads", json=wanted) as answer:
            assert answer.status == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", there.running.port)
        writer.write(head("PATCH", PART, "Upload-Offset: 0", f"Content-Length: {size}"))
        got = bytearray()

        async def read() -> None:
            with contextlib.suppress(ConnectionError):  # after the answer
                while piece := await reader.read(65536):
                    got.extend(piece)

        end = asyncio.create_task(read())
        start = time.monotonic()
        while not end.done() and time.monotonic() - start < 5:
            writer.write(b"x")
            await asyncio.wait({end}, timeout=0.02)
        assert b" 408 " in got.splitlines()[0]
        assert 0.3 < time.monotonic() - start < 4
        writer.close()

    run(tmp_path, test, Limits(rate=1000, window=0.5, linger=0.1, shutdown=0.2))


@pytest.mark.parametrize("chunked", [False, True])
def test_a_peer_isnt_cut_for_a_slow_disk_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunked: bool
) -> None:
    write = os.pwrite

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        time.sleep(0.2)
        return write(descriptor, data, offset)

    data = bytes(6 << 20)

    async def body() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(data), 1 << 18):
            yield data[start : start + (1 << 18)]

    async def test(there: Served) -> None:
        async with there.http.post("/v2/uploads", json=announce(data)) as answer:
            assert answer.status == 200
        monkeypatch.setattr(os, "pwrite", pwrite)
        given = body() if chunked else data
        offset = {"Upload-Offset": "0"}
        async with there.http.patch(PART, data=given, headers=offset) as answer:
            assert answer.status == 204

    run(tmp_path, test, Limits(idle=0.15, rate=1e7, window=0.2, shutdown=0.2))


def test_headers_that_never_end_are_cut(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        async with there.http.post("/v2/heartbeat", data=HEARTBEAT) as answer:
            assert answer.status == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", there.running.port)
        writer.write(b"POST /v2/heartbeat HTTP/1.1\r\nX: ")
        end = asyncio.create_task(reader.read())
        start = time.monotonic()
        while not end.done() and time.monotonic() - start < 5:
            writer.write(b"x")
            await asyncio.wait({end}, timeout=0.02)
        assert time.monotonic() - start < 3
        writer.close()
        assert await raw(there, b"") == b""  # nor does who says nothing stay
        assert time.monotonic() - start < 6

    run(tmp_path, test, Limits(keepalive=0.4, shutdown=0.2))


def test_headers_have_limits(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        for wrong in (
            head("GET", "/" + "x" * 3000),
            head("GET", "/", "X: " + "x" * 3000),
            head("GET", "/", *(f"X-{i}: x" for i in range(20))),
        ):
            got = await raw(there, wrong)
            assert b" 400 " in got.splitlines()[0]
            assert b'"code":"malformed"' in got
        got = await raw(there, head("GET", "/", "Connection: close"))
        assert b" 404 " in got.splitlines()[0]

    run(tmp_path, test, Limits(line=2000, headers=16, shutdown=0.2))


def test_there_are_so_many_connections(tmp_path: Path) -> None:
    """Six with a token, all at work, and two for those without."""

    async def test(there: Served) -> None:
        work = {"session": SESSION, "wait": 60}
        polls = []
        for count in range(1, 7):
            polls.append(asyncio.create_task(there.http.post("/v2/work", json=work)))
            while there.coordinator.polls < count:
                await asyncio.sleep(0.005)
        async with there.http.post("/v2/heartbeat", data=HEARTBEAT) as answer:
            await refused(answer, 503, "busy")
            assert int(answer.headers["Retry-After"]) > 0
        wires = [
            await asyncio.open_connection("127.0.0.1", there.running.port)
            for _ in range(4)
        ]
        await asyncio.sleep(0.05)
        assert len(there.running.guests) == 8
        there.coordinator.ready.set()
        for poll in polls:
            (await poll).release()
        async with there.http.post("/v2/heartbeat", data=HEARTBEAT) as answer:
            assert answer.status == 200
        for _, writer in wires:
            writer.close()

    run(tmp_path, test, Limits(connections=8, requests=9, shutdown=0.2))


def test_a_small_body_doesnt_become_a_large_one(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        bomb = gzip.compress(bytes(10 << 20))
        headers = {"Content-Encoding": "gzip"}
        async with there.http.post(
            "/v2/heartbeat", data=bomb, headers=headers
        ) as answer:
            await refused(answer, 415, "malformed")

    run(tmp_path, test)


def test_closing_waits_a_little_for_what_runs(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        work = {"session": SESSION, "wait": 60}
        poll = asyncio.create_task(there.http.post("/v2/work", json=work))
        while not there.coordinator.polls:
            await asyncio.sleep(0.005)
        start = time.monotonic()
        await there.running.close()
        assert 0.1 < time.monotonic() - start < 4
        with pytest.raises(aiohttp.ClientError):
            await poll
        assert there.coordinator.polls == 0

    run(tmp_path, test, Limits(shutdown=0.2))
