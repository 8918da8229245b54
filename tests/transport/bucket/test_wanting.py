"""One item that a step leads to: who misses its data says so, and gets them."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax.transport.bucket import conversation, layout
from spheroid_jax.transport.bucket.publishing import Publisher
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.protocol import (
    VERSION,
    Heartbeat,
    Item,
    Register,
    WorkRequest,
)
from tests.transport.bucket.whole_runs import (
    Counting,
    Spoiling,
    about,
)
from tests.transport.items.making import numbers, write_item

SESSION = "ab" * 16


def stepped(bench: Any, size: int = 1000) -> Item:
    """The block of round 0, from now on with a step of which nothing can come."""
    made_ = bench.coordinator.items[0, "block"]
    (bench.root / "coordinator" / "0-block" / "step.0").write_bytes(b"s" * 77)
    item = Item(made_.digest, size, "ab" * 32, 77)
    bench.coordinator.items[0, "block"] = item
    return item


async def keys_of(store: BlobStore, item: Item) -> set[str]:
    return {key.split("/")[-1] for key in await store.list(f"items/{item.digest}/")}


def test_a_coordinator_that_starts_anew_is_told_again(
    bench: Any, tmp_path: Path
) -> None:
    item = stepped(bench)

    def change(key: str, content: bytes) -> bytes | None:
        return None if about(key) == "data" else content

    async def work() -> None:
        link_ = bench.link("ada")
        async with bench.serving(Spoiling(bench.store, change)):
            await link_.register(Register(VERSION, SESSION))
            await link_.work(WorkRequest(SESSION))
            assert await keys_of(bench.store, item) == {"index", "step-00000"}
            fetching = asyncio.create_task(link_.fetch(item, tmp_path / "item"))
            await asyncio.sleep(0.2)
            assert not fetching.done()
        bench.coordinator.restart()
        async with bench.serving():
            await fetching

    asyncio.run(asyncio.wait_for(work(), 30))
    sent = bench.root / "coordinator" / "0-block" / "data.0"
    assert (tmp_path / "item" / "data.0").read_bytes() == sent.read_bytes()


def test_data_that_somebody_deleted_are_put_again(bench: Any, tmp_path: Path) -> None:
    item = stepped(bench)

    async def work() -> None:
        async with bench.serving():
            link_ = bench.link("ada")
            await link_.register(Register(VERSION, SESSION))
            await link_.work(WorkRequest(SESSION))
            for n in range(2):
                await link_.fetch(item, tmp_path / str(n) / "item")
                await bench.store.delete(layout.item_data(item.digest, 0))

    asyncio.run(asyncio.wait_for(work(), 30))
    for n in range(2):
        assert (tmp_path / str(n) / "item" / "data.0").stat().st_size == item.bytes


def test_what_is_needed_again_after_its_round_is_put_again(bench: Any) -> None:
    item = stepped(bench)
    directory = bench.root / "coordinator" / "0-block"

    async def work() -> None:
        publisher = Publisher(bench.store)
        for whole in (False, True, False):
            await publisher.publish(item, directory, 0, whole=whole)
            there = await keys_of(bench.store, item)
            assert there == {"index", "data-00000" if whole else "step-00000"}
            await publisher.clean(5, 5)
            assert await keys_of(bench.store, item) == set()

    asyncio.run(asyncio.wait_for(work(), 30))


def test_an_item_that_nobody_has_any_more_is_told(bench: Any, tmp_path: Path) -> None:
    item = stepped(bench)

    async def work() -> None:
        async with bench.serving():
            link_ = bench.link("ada")
            await link_.register(Register(VERSION, SESSION))
            await link_.work(WorkRequest(SESSION))
            bench.coordinator.items.clear()
            with pytest.raises(LinkError, match="has item .* no more") as caught:
                await link_.fetch(item, tmp_path / "item")
            assert (caught.value.code, caught.value.status) == ("unknown", 404)
            # And no more is said of it.
            await link_.heartbeat(Heartbeat(SESSION))
            assert link_._talk._wants == {}

    asyncio.run(asyncio.wait_for(work(), 30))


def test_a_step_that_the_disk_lost_is_no_obstacle(bench: Any, tmp_path: Path) -> None:
    item = stepped(bench)
    (bench.root / "coordinator" / "0-block" / "step.0").unlink()

    async def work() -> None:
        async with bench.serving():
            link_ = bench.link("ada")
            await link_.register(Register(VERSION, SESSION))
            await link_.work(WorkRequest(SESSION))
            assert await keys_of(bench.store, item) == {"index", "data-00000"}

    asyncio.run(asyncio.wait_for(work(), 30))


def test_a_worker_that_knows_no_steps_finds_the_data(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of before: its messages have neither wants nor bytes."""
    item = stepped(bench)
    monkeypatch.setattr(conversation, "Said", lambda *said: layout.Said(*said[:4]))

    async def work() -> None:
        async with bench.serving():
            link_ = bench.link("ada")
            await link_.register(Register(VERSION, SESSION))
            await link_.work(WorkRequest(SESSION))
            assert {"index", "data-00000"} <= await keys_of(bench.store, item)

    asyncio.run(asyncio.wait_for(work(), 30))


def test_what_was_read_is_counted_once_over_a_restart(
    bench: Any, tmp_path: Path
) -> None:
    own = Counting(bench.store)

    async def work() -> None:
        link_ = bench.link("ada", store=own)
        async with bench.serving():
            await link_.register(Register(VERSION, SESSION))
            got = await link_.work(WorkRequest(SESSION))
            await link_.fetch(got.items["block"], tmp_path / "item")
            await link_.heartbeat(Heartbeat(SESSION))
        bench.coordinator.restart()
        async with bench.serving():
            await link_.heartbeat(Heartbeat(SESSION))
            await link_.heartbeat(Heartbeat(SESSION))

    asyncio.run(asyncio.wait_for(work(), 30))
    assert 1000 < bench.coordinator.down["ada"] <= own.received


def test_pieces_of_large_items_and_their_steps(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "PIECE", 1000)
    directory = bench.root / "coordinator" / "0-block"
    shutil.rmtree(directory)
    whole = write_item(directory, {"a": numbers(1080)})
    (directory / "step.0").write_bytes(b"s" * 2500)
    item = Item(whole.digest, 4320, "ab" * 32, 2500)
    bench.coordinator.items[0, "block"] = item

    async def work() -> None:
        async with bench.serving():
            link_ = bench.link("ada")
            await link_.register(Register(VERSION, SESSION))
            await link_.work(WorkRequest(SESSION))
            steps = {f"step-{n:05d}" for n in range(3)}
            assert await keys_of(bench.store, item) == {"index", *steps}
            await link_.fetch(item, tmp_path / "item")
            data = {f"data-{n:05d}" for n in range(5)}
            assert await keys_of(bench.store, item) == {"index", *steps, *data}

    asyncio.run(asyncio.wait_for(work(), 30))
