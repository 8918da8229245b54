"""What a hostile or unlucky peer, disk or moment must not do to a run."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from spheroid_jax.transport.items.cache import ItemCache
from spheroid_jax.transport.protocol import (
    Item,
    ProtocolError,
    Registered,
    Work,
    decode,
    encode,
)
from tests.transport.tiny import DirectLink, TinyRun

SECONDS = 15.0


class Liar(DirectLink):
    """A coordinator that names items as it likes."""

    async def work(self, request: Any) -> Work:
        work = await super().work(request)
        if work.do != "train":
            return work
        items = {"../../victims": work.items["block"], **work.items}
        return msgspec.structs.replace(work, items=items)


def test_an_items_kind_is_no_path(tmp_path: Path) -> None:
    """Whatever the coordinator calls an item, no folder but the worker's is touched."""
    run = TinyRun(tmp_path / "run", rounds=1, blocks=1)
    victims = run.directory / "workers" / "victims"
    for name in "abc":
        (victims / name).mkdir(parents=True)
        (victims / name / "precious").touch()

    async def scenario() -> None:
        async with asyncio.timeout(SECONDS):
            running = asyncio.create_task(run.coordinator.run())
            worker = run.worker("ada", link=Liar(run, "ada"))
            await worker.register()
            await worker.run()
            await running

    asyncio.run(scenario())
    assert sorted(p.name for p in victims.iterdir()) == ["a", "b", "c"]
    run.close()


@pytest.mark.parametrize("kind", ["..", "../x", "/tmp", "a/b", ""])
def test_the_cache_takes_no_path_for_a_kind(tmp_path: Path, kind: str) -> None:
    class NoLink:
        async def fetch(self, *given: Any) -> int:
            raise AssertionError

    with (
        ItemCache(tmp_path / "items") as cache,
        pytest.raises(ValueError, match="word"),
    ):
        asyncio.run(cache.get(NoLink(), Item("0" * 64, 1), kind))  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["worker", "run"])
def test_what_a_coordinator_calls_a_worker_is_a_files_name(field: str) -> None:
    """The worker's folder is named after both."""
    given = {"worker": "ada", "run": "0f" * 16, field: "../../.ssh"}
    told = Registered(
        1, given["run"], given["worker"], {}, "0" * 64, "", lease=1.0, heartbeat=1.0
    )
    with pytest.raises(ProtocolError, match=field):
        decode(encode(told), Registered)
