"""The newest items of each kind stay."""

import asyncio
import os
from pathlib import Path

import pytest

from spheroid_jax.transport.items import fetch
from spheroid_jax.transport.items.cache import Got, ItemCache
from spheroid_jax.transport.link import LinkError, Progress
from spheroid_jax.transport.protocol import Item
from tests.transport.items.making import Source, item_of, layout, numbers


class Fetching:
    """A link that can fetch what it knows, and nothing else."""

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}

    def make(self, seed: int) -> Item:
        index, data = layout({"w": numbers(500, seed)})
        item, content = item_of(index, len(data))
        self.sources[item.digest] = Source(content, data)
        return item

    async def fetch(
        self, item: Item, target: Path, progress: Progress | None = None
    ) -> int:
        return await fetch.fetch(self.sources[item.digest], item, target, progress)


def get(cache: ItemCache, link: Fetching, item: Item, kind: str = "block") -> Got:
    return asyncio.run(cache.get(link, item, kind))  # type: ignore[arg-type]


def test_the_newest_of_each_kind_stay(tmp_path: Path) -> None:
    link = Fetching()
    a, b, c, shared = (link.make(seed) for seed in range(4))
    with ItemCache(tmp_path, keep=2) as cache:
        get(cache, link, shared, "interface")
        paths = [get(cache, link, item).path for item in (a, b)]
        for age, path in enumerate(reversed(paths)):
            os.utime(path, (1000 - age, 1000 - age))  # file systems' clocks are coarse
        assert get(cache, link, a).moved == 0  # and is the newest by that
        get(cache, link, c)
        assert {p.name for p in (tmp_path / "block").iterdir()} == {a.digest, c.digest}
        assert [p.name for p in (tmp_path / "interface").iterdir()] == [shared.digest]


def test_what_was_interrupted_and_is_no_longer_wanted_goes(tmp_path: Path) -> None:
    link = Fetching()
    with ItemCache(tmp_path) as cache:
        (tmp_path / "block" / ("0" * 64 + ".part")).mkdir(parents=True)
        item = link.make(0)
        get(cache, link, item)
        assert os.listdir(tmp_path / "block") == [item.digest]


def test_a_discarded_item_is_fetched_anew(tmp_path: Path) -> None:
    link = Fetching()
    item = link.make(0)
    with ItemCache(tmp_path) as cache:
        first = get(cache, link, item)
        cache.discard(item, "block")
        assert get(cache, link, item) == first
        cache.discard(link.make(1), "block")  # isn't there


def test_two_processes_do_not_share_one(tmp_path: Path) -> None:
    with ItemCache(tmp_path), pytest.raises(LinkError, match="another process"):
        ItemCache(tmp_path)
    ItemCache(tmp_path).close()


def test_what_cannot_be_a_cache_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LinkError, match="can't be used"):
        ItemCache(tmp_path / "file" / "cache")
    with pytest.raises(ValueError, match="keep"):
        ItemCache(tmp_path, keep=0)
