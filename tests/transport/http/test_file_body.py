"""Updates sent by the kernel: all of it, to who listens, and an end when it must."""

import asyncio
import os
import ssl
import time
from pathlib import Path

import pytest
import trustme
from aiohttp import web

from spheroid_jax.transport.http.asking import Timeouts
from spheroid_jax.transport.http.client import HttpLink
from spheroid_jax.transport.http.file_body import parts
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.protocol import Problem
from tests.transport.http.client_server import (
    ACCEPTED,
    SECRET,
    Clock,
    Coordinator,
    answer,
    fine,
    run,
    setting,
    update,
)

SIZE = (9 << 20) + 5
MIB = 1 << 20


@pytest.mark.parametrize("secured", [False, True])
def test_it_arrives_as_it_is(tmp_path: Path, secured: bool) -> None:
    """The coordinator compares the digest; 4 MiB go by the first request."""

    async def scenario() -> None:
        coordinator, ca, context = Coordinator(), None, None
        if secured:
            authority, ca = trustme.CA(), tmp_path / "ca.pem"
            authority.cert_pem.write_to_path(str(ca))
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.issue_cert("127.0.0.1").configure_cert(context)
        await coordinator.start(context)
        scheme = "https" if secured else "http"
        url = f"{scheme}://127.0.0.1:{coordinator.port}"
        upload = update(tmp_path / "u", SIZE)
        async with HttpLink(url, Token(SECRET), ca, tools=Clock().tools()) as link:
            assert await link.submit(upload, tmp_path / "u") == ACCEPTED
        assert coordinator.patched == [(0, 4 * MIB), (4 * MIB, SIZE)]
        await coordinator.stop()

    run(scenario())


def test_who_answers_before_the_end_is_heard(tmp_path: Path) -> None:
    async def early(request: web.Request) -> web.StreamResponse:
        return answer(Problem("the round is over", "malformed"), 400)

    async def scenario() -> None:
        async with setting(fine, early) as s:
            upload = update(tmp_path / "u", 4 * MIB)
            assert await s.link.submit(upload, tmp_path / "u") == ACCEPTED
            assert len(s.notices) == 1
            assert "the round is over" in s.notices[0]

    run(scenario())


def test_a_peer_that_takes_nothing_is_left_and_no_file_stays_open(
    tmp_path: Path,
) -> None:
    upload = update(tmp_path / "u", 64 * MIB)

    async def stuck(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.pause_reading()
        await asyncio.sleep(20.0)
        return web.Response(status=500)

    async def scenario() -> None:
        async with setting(fine, stuck, timeouts=Timeouts(stall=0.3)) as s:
            s.link._speed.size = upload.bytes
            began = time.monotonic()
            assert await s.link.submit(upload, tmp_path / "u") == ACCEPTED
            assert time.monotonic() - began < 10.0
            assert any("it took too long" in line for line in s.notices)

    open_before = len(os.listdir("/proc/self/fd"))
    run(scenario())
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_file_that_ends_early_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "u"
    upload = update(path, 8 * MIB)

    async def shorten(request: web.Request) -> None:
        os.truncate(path, 2 * MIB)

    async def scenario() -> None:
        async with setting(fine, shorten) as s:
            s.link._speed.size = upload.bytes
            with pytest.raises(LinkError, match="it ends early.*check that disk"):
                await s.link.submit(upload, path)
            assert s.notices == []

    run(scenario())


@pytest.mark.parametrize("size", [0, 1, 128 << 10, (128 << 10) + 1, MIB])
def test_parts_are_all_of_it(size: int) -> None:
    data = os.urandom(size)
    assert b"".join(parts(data)) == data
    assert all(0 < len(part) <= 128 << 10 for part in parts(data))
