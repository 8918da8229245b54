"""The client against the real server: whole exchanges, and the server's restarts."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from spheroid_jax.transport import protocol
from spheroid_jax.transport.http.client import HttpLink
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.protocol import (
    Heartbeat,
    Item,
    Leave,
    Pulse,
    Register,
    Work,
    WorkRequest,
)
from tests.transport.http import server_fakes
from tests.transport.http.client_server import SECRET, SESSION, Clock, update
from tests.transport.http.server_fakes import Served, served
from tests.transport.items.making import numbers, write_item

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(server_fakes.TOKENS, SECRET, "ada")


def link_to(there: Served, said: Callable[[str], None] = lambda line: None) -> HttpLink:
    tools = Clock().tools()
    return HttpLink(there.url, Token(SECRET), notice=said, tools=tools)


def test_a_whole_exchange(tmp_path: Path) -> None:
    async def scenario() -> None:
        said: list[str] = []
        async with (
            served(tmp_path / "home") as there,
            link_to(there, said.append) as link,
        ):
            told = await link.register(Register(protocol.VERSION, SESSION))
            assert told.worker == "ada"
            work = await link.work(WorkRequest(SESSION, wait=0.1))
            assert work == Work("wait")
            assert await link.heartbeat(Heartbeat(SESSION)) == Pulse(3, True)

            leaves = {"w": numbers(3 * MIB), "b": numbers(7)}
            item = write_item(tmp_path / "item", leaves)
            there.coordinator.items[item.digest] = tmp_path / "item"
            moved = await link.fetch(item, tmp_path / "cache" / "fetched")
            assert moved > item.bytes
            for name in ("data.0", "index.0.json"):
                sent = (tmp_path / "item" / name).read_bytes()
                assert (tmp_path / "cache" / "fetched" / name).read_bytes() == sent
            with pytest.raises(LinkError, match="no such item"):
                await link.fetch(Item("f" * 64, 9), tmp_path / "other")

            path = tmp_path / "update"
            upload = update(path, 9 * MIB + 5)
            link._speed.size = MIB
            verdict = await link.submit(upload, path)
            assert verdict.verdict == "accepted"
            name = protocol.upload_name("ada", upload)
            assert there.coordinator.contents[name] == path.read_bytes()
            assert await link.submit(upload, path) == verdict
            assert there.coordinator.commits == 1
            await link.leave(Leave(SESSION))
            assert said == []
            assert there.coordinator.up["ada"] > upload.bytes

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_an_upload_goes_on_with_the_next_process_of_the_coordinator(
    tmp_path: Path,
) -> None:
    """Cancelled in the middle, then sent by another link to another process."""

    async def scenario() -> None:
        path = tmp_path / "update"
        upload = update(path, 4 * MIB)
        async with served(tmp_path / "home") as there, link_to(there) as link:
            link._speed.size = MIB
            far = asyncio.Event()

            def progress(done: int, total: int) -> None:
                if done >= MIB:
                    far.set()

            sending = asyncio.create_task(link.submit(upload, path, progress))
            await asyncio.wait_for(far.wait(), 10)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        told: list[int] = []
        async with served(tmp_path / "home") as there, link_to(there) as link:
            verdict = await link.submit(upload, path, lambda a, b: told.append(a))
            assert verdict.verdict == "accepted"
            assert told[0] >= MIB
            (content,) = there.coordinator.contents.values()
            assert content == path.read_bytes()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_an_update_whose_bytes_changed_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "update"
        upload = update(path, MIB)
        path.write_bytes(b"x" + path.read_bytes()[1:])
        async with served(tmp_path / "home") as there, link_to(there) as link:
            with pytest.raises(LinkError, match="corrupted 3 times"):
                await link.submit(upload, path)
            assert there.coordinator.commits == 0

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_full_disk_of_the_coordinator_is_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        said: list[str] = []
        path = tmp_path / "update"
        upload = update(path, MIB)
        async with (
            served(tmp_path / "home") as there,
            link_to(there, said.append) as link,
        ):
            other = update(tmp_path / "other", MIB)
            await there.uploads.begin("bob", other)

            async def free() -> None:
                there.uploads.quota = 64 * MIB

            there.uploads.quota = other.bytes + 10
            clock = Clock()
            clock.on_sleep = free
            link._tools = clock.tools()
            assert (await link.submit(upload, path)).verdict == "accepted"
            assert "quota" in said[0]

    asyncio.run(asyncio.wait_for(scenario(), 30))
