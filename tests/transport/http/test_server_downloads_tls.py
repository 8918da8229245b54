"""Items over TLS, which the kernel doesn't send: whole, and not for ever."""

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trustme

from spheroid_jax.transport.http.limits import Limits
from spheroid_jax.transport.http.server import Running, make_app, serve, tls_context
from spheroid_jax.transport.http.uploads import Uploads
from tests.transport.http.server_fakes import FakeCoordinator

DIGEST = "ab" * 32
REQUEST = (
    f"GET /v2/items/{DIGEST}/data HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-a"
)
Test = Callable[[FakeCoordinator, Running, ssl.SSLContext], Awaitable[None]]


def run(home: Path, data: bytes, limits: Limits, test: Test) -> None:
    """Runs a test against a server with a certificate and one item."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(str(home / "pem"))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    (home / "item").mkdir()
    (home / "item" / "data.0").write_bytes(data)

    async def main() -> None:
        coordinator = FakeCoordinator(home)
        coordinator.items[DIGEST] = home / "item"
        app = make_app(coordinator, Uploads(home / "parts", 1 << 20), limits)
        context = tls_context(home / "pem", home / "pem")
        running = await serve(app, "127.0.0.1", 0, context)
        try:
            async with asyncio.timeout(30):
                await test(coordinator, running, trust)
        finally:
            await running.close()

    asyncio.run(main())


async def ask(
    running: Running, trust: ssl.SSLContext, more: str = ""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Asks for the item; the answer, after its headers."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", running.port, ssl=trust, server_hostname="localhost", limit=65536
    )
    writer.write(f"{REQUEST}\r\n{more}\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 20"), head
    return reader, writer


def test_all_of_it_comes_however_it_is_read(tmp_path: Path) -> None:
    """Now the server waits for the reader, now the reader for the server."""
    data = random.Random(1).randbytes((20 << 20) + 7)

    async def test(
        coordinator: FakeCoordinator, running: Running, trust: ssl.SSLContext
    ) -> None:
        reader, writer = await ask(running, trust)
        got = bytearray()
        while len(got) < len(data):
            if len(got) % 5 == 0:
                await asyncio.sleep(0.01)
            piece = await reader.read(1 << 20)
            assert piece, f"cut after {len(got)} bytes"
            got += piece
        assert bytes(got) == data
        while coordinator.down["ada"] < len(data):
            await asyncio.sleep(0.005)
        writer.close()
        reader, writer = await ask(running, trust, "Range: bytes=300000-900000\r\n")
        assert await reader.readexactly(600_001) == data[300_000:900_001]
        writer.close()

    run(tmp_path, data, Limits(shutdown=0.2), test)


def test_who_doesnt_read_is_cut_and_who_hangs_up_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(
        coordinator: FakeCoordinator, running: Running, trust: ssl.SSLContext
    ) -> None:
        server = running._runner.server
        assert server is not None
        loop = asyncio.get_running_loop()
        for is_patient in (True, False):
            _, writer = await ask(running, trust)
            began = loop.time()
            if not is_patient:
                writer.transport.abort()
            while server.connections:
                await asyncio.sleep(0.01)
            assert loop.time() - began < 5
            assert not is_patient or loop.time() - began > 0.2
            writer.transport.abort()
        assert coordinator.down["ada"] < 2 * (40 << 20)

    with caplog.at_level(logging.INFO):
        run(tmp_path, bytes(40 << 20), Limits(idle=0.4, shutdown=0.2), test)
    assert [record for record in caplog.records if record.exc_info] == []
