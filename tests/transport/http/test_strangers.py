"""Who has shown no token takes little, and nothing from who has.

Addresses 127.0.0.x play several hosts.
"""

import asyncio
import contextlib
import dataclasses
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import trustme

from spheroid_jax.transport.http.client import HttpLink
from spheroid_jax.transport.http.guests import Guests
from spheroid_jax.transport.http.limits import Limits
from spheroid_jax.transport.http.rates import Rate
from spheroid_jax.transport.http.server import make_app, serve, tls_context
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.http.uploads import Uploads
from spheroid_jax.transport.protocol import Heartbeat, Pulse
from tests.transport.http import server_fakes
from tests.transport.http.client_server import SECRET
from tests.transport.http.server_fakes import (
    SESSION,
    FakeCoordinator,
    Served,
    bearer,
    refused,
    run,
)

BEAT = b'{"session":"%s"}' % SESSION.encode()
HOST_A, HOST_B = "127.0.0.2", "127.0.0.3"
NEVER = Rate(1e-3, 10**6)  # none of the tests of connections is about rates

Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int, host: str = HOST_A) -> Wire:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))


def beat(token: str = "token-a", path: str = "/v2/heartbeat") -> bytes:
    given = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{given}Content-Length: {len(BEAT)}"
    return f"{head}\r\n\r\n".encode() + BEAT


async def status(wire: Wire, request: bytes) -> int:
    """The status of an answer, which is read whole."""
    reader, writer = wire
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = next(li for li in head.splitlines() if li.startswith("content-length:"))
    await reader.readexactly(int(length.split(":")[1]))
    return int(head.split()[1])


async def is_cut(wire: Wire, seconds: float = 0.0) -> bool:
    """Whether a connection is over, or will be within so long."""
    try:
        async with asyncio.timeout(seconds or 0.05):
            return not await wire[0].read(1)
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@contextlib.contextmanager
def closing(wires: list[Wire]):  # type: ignore[no-untyped-def]
    try:
        yield
    finally:
        for _, writer in wires:
            writer.transport.abort()


# 16 strangers, 4 of an address; who is new isn't one for long.
FEW = Limits(
    connections=64, strangers_each=4, new_seconds=0.1, asks=NEVER, shutdown=0.2
)


async def come_down(guests: Guests, most: int) -> None:
    """Waits until there are no more connections than that."""
    while len(guests) > most:
        await asyncio.sleep(0.01)


def test_silent_connections_of_one_address_take_nothing_of_anothers(
    tmp_path: Path,
) -> None:
    async def test(there: Served) -> None:
        port = there.running.port
        other = await connect(port, HOST_B)
        silent = [await connect(port) for _ in range(40)]
        with closing([*silent, other]):
            await come_down(there.running.guests, 5)
            assert await status(await connect(port), beat()) == 200  # beside them
            assert await status(other, beat("token-b")) == 200  # was there before
            left = [wire for wire in silent if not await is_cut(wire)]
            assert left == silent[-4:]  # the oldest went

    run(tmp_path, test, FEW)


def test_many_addresses_dont_keep_a_newcomer_out(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        port = there.running.port
        lone = await connect(port, HOST_B)
        crowd = [
            await connect(port, f"127.0.1.{host}")
            for _ in range(4)
            for host in range(1, 11)
        ]
        with closing([*crowd, lone]):
            await come_down(there.running.guests, 16)
            assert await status(await connect(port), beat()) == 200
            assert await status(lone, beat("token-b")) == 200

    run(tmp_path, test, FEW)


def test_a_flood_of_new_ones_doesnt_keep_a_newcomer_out_either(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        port, guests = there.running.port, there.running.guests
        known = [await connect(port, HOST_B) for _ in range(2)]
        for wire in known:
            assert await status(wire, beat("token-b")) == 200
        lone = await connect(port, HOST_B)
        flood = [await connect(port) for _ in range(200)]
        with closing([*flood, *known, lone]):
            assert len(guests) == 64
            assert await status(await connect(port), beat()) == 200
            for wire in (*known, lone):
                assert await status(wire, beat("token-b")) == 200

    run(tmp_path, test, dataclasses.replace(FEW, new_seconds=20.0))


def test_many_that_come_at_once_from_one_address_all_get_in(tmp_path: Path) -> None:
    """As workers behind one NAT or proxy, when the coordinator is back."""

    async def test(there: Served) -> None:
        async def one(number: int) -> None:
            wire = await connect(there.running.port)
            await asyncio.sleep(0.2 * number / 40)  # for the way of its request
            token = "token-a" if number % 2 else "token-b"
            for _ in range(3):
                assert await status(wire, beat(token)) == 200
                await asyncio.sleep(0.2)
            wire[1].close()

        await asyncio.gather(*map(one, range(40)))

    run(tmp_path, test, dataclasses.replace(FEW, new_seconds=5.0, requests=40))


def test_connections_with_a_token_arent_counted_nor_cut(tmp_path: Path) -> None:
    """Nor are those of one address, while somebody there is silent."""

    async def test(there: Served) -> None:
        port = there.running.port
        tokens = ["token-a", "token-b"] * 15
        workers = []
        for token in tokens:
            workers.append(await connect(port))
            assert await status(workers[-1], beat(token)) == 200
        silent = [await connect(port) for _ in range(20)]
        with closing([*workers, *silent]):
            await come_down(there.running.guests, 34)
            for wire, token in zip(workers, tokens, strict=True):
                assert await status(wire, beat(token)) == 200
            assert sum([await is_cut(wire) for wire in silent]) == 16

    run(tmp_path, test, FEW)


def test_who_asks_without_a_token_is_a_stranger_at_once(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        port = there.running.port
        wires = [await connect(port) for _ in range(7)]
        with closing(wires):
            for wire in wires:
                assert await status(wire, beat("", "/nothing")) == 404
            assert [await is_cut(wire) for wire in wires] == [True] * 3 + [False] * 4

    run(tmp_path, test, dataclasses.replace(FEW, new_seconds=20.0))


def test_a_connection_that_several_use_in_turn(tmp_path: Path) -> None:
    """As of a proxy that keeps its connections, whoever is in front of it."""

    async def test(there: Served) -> None:
        wire = await connect(there.running.port)
        with closing([wire]):
            for _ in range(3):
                assert await status(wire, beat("token-a")) == 200
                assert await status(wire, beat("", "/nothing")) == 404
                assert await status(wire, beat("token-b")) == 200
                assert await status(wire, beat("wrong-token")) == 401

    run(tmp_path, test)


def test_one_token_has_so_many_connections_and_the_idle_go(tmp_path: Path) -> None:
    async def test(there: Served) -> None:
        port = there.running.port
        other = await connect(port)
        assert await status(other, beat("token-b")) == 200
        wires = [await connect(port) for _ in range(5)]
        with closing([other, *wires]):
            for wire in wires:
                assert await status(wire, beat()) == 200
            assert [await is_cut(wire) for wire in wires] == [True] * 2 + [False] * 3
            assert await status(other, beat("token-b")) == 200

    run(tmp_path, test, Limits(connections_each=3, shutdown=0.2))


def test_one_token_whose_connections_are_all_at_work_gets_no_more(
    tmp_path: Path,
) -> None:
    async def test(there: Served) -> None:
        work = {"session": SESSION, "wait": 60}
        polls = []
        for count in range(1, 4):
            polls.append(asyncio.create_task(there.http.post("/v2/work", json=work)))
            while there.coordinator.polls < count:
                await asyncio.sleep(0.005)
        wire = await connect(there.running.port)
        with closing([wire]):
            assert await status(wire, beat()) == 429
            assert await status(wire, beat("token-b")) == 200
        there.coordinator.ready.set()
        for poll in polls:
            assert (await poll).status == 200

    run(tmp_path, test, Limits(connections_each=3, shutdown=0.2))


def test_a_stranger_has_so_long_for_the_head_of_a_request(tmp_path: Path) -> None:
    async def drips(wire: Wire) -> None:
        with contextlib.suppress(ConnectionError):
            wire[1].write(b"GET / HTTP/1.1\r\nX: ")
            while not wire[0].at_eof() and not wire[1].is_closing():
                wire[1].write(b"x")
                await wire[1].drain()
                await asyncio.sleep(0.02)

    async def test(there: Served) -> None:
        port = there.running.port
        silent, dripping, idle, known = [await connect(port) for _ in range(4)]
        with closing([silent, dripping, idle, known]):
            assert await status(known, beat()) == 200
            assert await status(idle, beat("", "/nothing")) == 404
            began = time.monotonic()
            drip = asyncio.create_task(drips(dripping))
            for wire in (silent, dripping, idle):
                assert await is_cut(wire, 5.0)
            assert 0.3 < time.monotonic() - began < 5
            assert await status(known, beat()) == 200
            drip.cancel()

    run(tmp_path, test, Limits(stranger_seconds=0.5, shutdown=0.2))


def test_a_worker_that_asks_too_often_is_put_off_and_no_other(tmp_path: Path) -> None:
    limits = Limits(asks=Rate(0.5, 4), hold=0.3, shutdown=0.2)

    async def test(there: Served) -> None:
        for _ in range(4):
            async with there.http.post("/v2/heartbeat", data=BEAT) as answer:
                assert answer.status == 200
        began = time.monotonic()
        async with there.http.post("/v2/heartbeat", data=BEAT) as answer:
            await refused(answer, 429, "busy")
            assert answer.headers["Retry-After"] == "2"
        assert time.monotonic() - began > 0.25
        assert len(there.coordinator.asked) == 4
        async with there.http.post(
            "/v2/heartbeat", data=BEAT, headers=bearer("token-b")
        ) as answer:
            assert answer.status == 200

    run(tmp_path, test, limits)


def test_our_client_waits_as_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(server_fakes.TOKENS, SECRET, "ada")
    limits = Limits(asks=Rate(5.0, 5), hold=0.05, shutdown=0.2)
    said: list[str] = []

    async def test(there: Served) -> None:
        async with HttpLink(there.url, Token(SECRET), notice=said.append) as link:
            for _ in range(7):
                assert await link.heartbeat(Heartbeat(SESSION)) == Pulse(3, True)
        assert len(said) == 1
        assert "ask again in 1 s" in said[0]
        assert float(said[0].split("next try in ")[1].removesuffix(" s")) >= 1.0

    run(tmp_path, test, limits)


def test_strangers_that_ask_too_often_dont_put_off_workers(tmp_path: Path) -> None:
    limits = Limits(stranger_asks=Rate(0.01, 5), hold=0.05, shutdown=0.2)

    async def test(there: Served) -> None:
        port = there.running.port
        wire = await connect(port)
        for token, path in [("", "/nothing"), ("", "/v2/heartbeat"), ("wrong", "")] * 2:
            expected = 401 if path != "/nothing" else 404
            if wire[0].at_eof():
                break
            assert await status(wire, beat(token, path or "/v2/heartbeat")) == expected
        # The sixth was one too many: it was told what it lacks, and hung up on.
        assert await is_cut(wire, 5.0)
        wire = await connect(port)
        assert await status(wire, beat("", "/nothing")) == 429
        assert await is_cut(wire, 5.0)
        wires = [await connect(port), await connect(port, HOST_B)]
        with closing(wires):
            assert await status(wires[0], beat()) == 200
            assert await status(wires[1], beat("", "/nothing")) == 404

    run(tmp_path, test, limits)


@contextlib.asynccontextmanager
async def with_tls(
    home: Path, limits: Limits
) -> AsyncIterator[tuple[int, ssl.SSLContext, Uploads]]:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(str(home / "pem"))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    uploads = Uploads(home / "parts", 1 << 20)
    app = make_app(FakeCoordinator(home), uploads, limits)
    context = tls_context(home / "pem", home / "pem")
    running = await serve(app, "127.0.0.1", 0, context)
    try:
        yield running.port, trust, uploads
    finally:
        await running.close()


def test_who_says_nothing_to_tls_is_counted_too(tmp_path: Path) -> None:
    """And for the oldest of its address there is a new one, without a wait."""

    async def test() -> None:
        async with with_tls(tmp_path, FEW) as (port, trust, _):
            silent = [await connect(port) for _ in range(100)]
            with closing(silent):
                began = time.monotonic()
                connector = aiohttp.TCPConnector(local_addr=(HOST_A, 0), ssl=trust)
                async with (
                    aiohttp.ClientSession(connector=connector) as http,
                    http.post(
                        f"https://localhost:{port}/v2/heartbeat",
                        data=BEAT,
                        headers=bearer("token-a"),
                    ) as answer,
                ):
                    assert answer.status == 200
                    assert time.monotonic() - began < 5  # of 10 for a handshake
                    for wire in silent[:-4]:
                        assert await is_cut(wire, 5.0)
                    assert not await is_cut(silent[-1])

    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_handshake_has_so_long(tmp_path: Path) -> None:
    async def test() -> None:
        limits = Limits(message_seconds=0.5, shutdown=0.2)
        async with with_tls(tmp_path, limits) as (port, _, _):
            silent, garbage = [await connect(port) for _ in range(2)]
            garbage[1].write(b"GET / HTTP/1.1\r\n\r\n")
            with closing([silent, garbage]):
                with contextlib.suppress(ConnectionError):
                    await garbage[0].read()  # an alert, and the end
                assert await is_cut(silent, 5.0)

    asyncio.run(asyncio.wait_for(test(), 30))


def test_closing_doesnt_wait_for_handshakes(tmp_path: Path) -> None:
    async def test() -> None:
        async with with_tls(tmp_path, Limits(shutdown=0.2)) as (port, _, _):
            silent = [await connect(port) for _ in range(3)]
            await asyncio.sleep(0.05)
            began = time.monotonic()
        assert time.monotonic() - began < 5
        with closing(silent):
            for wire in silent:
                assert await is_cut(wire, 5.0)

    asyncio.run(asyncio.wait_for(test(), 30))
