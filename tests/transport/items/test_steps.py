"""Steps that come from others: which are asked for, and what of them stays."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import numpy as np
import pytest

from spheroid_jax.transport.items.fetch import fetch
from spheroid_jax.transport.items.steps import is_worth, write_step
from spheroid_jax.transport.protocol import Item
from spheroid_jax.transport.updates import Encoding
from tests.transport.items.making import Source, item_of, layout, numbers, write_item

OLD = {"w": numbers(2000), "b": numbers(3, seed=1)}


class Stepping(Source):
    """Has a step as well; counts what is asked of it."""

    def __init__(self, content: bytes, data: bytes, step: bytes) -> None:
        super().__init__(content, data)
        self.step, self.steps = step, 0

    async def read_step(self, item: Item) -> AsyncGenerator[bytes, None]:
        self.steps += 1
        yield self.step


def made(directory: Path, old: dict[str, np.ndarray]) -> tuple[Item, Stepping]:
    """An item that a step leads to, from the one in ``directory / "items"``."""
    new = {name: leaf + np.float32(0.01) for name, leaf in old.items()}
    base = write_item(directory / "made", old)
    path = directory / "step"
    led = write_step(path, old, new, Encoding("int8"), base.digest)
    index, data = layout(led)
    item, content = item_of(index, len(data))
    write_item(directory / "items" / base.digest, old)
    step = path.read_bytes()
    item = Item(item.digest, item.bytes, base.digest, len(step))
    return item, Stepping(content, data, step)


def get(source: Stepping, item: Item, directory: Path) -> int:
    target = directory / "items" / item.digest
    moved = asyncio.run(asyncio.wait_for(fetch(source, item, target), 20))
    assert (target / "data.0").read_bytes() == source.data
    return moved


def test_a_step_is_all_that_moves(tmp_path: Path) -> None:
    item, source = made(tmp_path, OLD)
    moved = get(source, item, tmp_path)
    assert (source.steps, source.asked) == (1, [])
    assert moved == len(source.content) + len(source.step)


@pytest.mark.parametrize("rot", ["data", "index", "cut"])
def test_from_an_older_item_that_is_damaged_nothing_wrong_comes(
    tmp_path: Path, rot: str
) -> None:
    item, source = made(tmp_path, OLD)
    older = tmp_path / "items" / item.base
    if rot == "index":
        (older / "index.0.json").write_text("{}")
    else:
        data = bytearray((older / "data.0").read_bytes())
        data[100] ^= 64
        (older / "data.0").write_bytes(data if rot == "data" else data[:-1])
    get(source, item, tmp_path)
    # Of what is sound the step makes pieces that are right.
    assert source.steps == (rot == "data")
    assert source.asked == [(0, 1000 if rot == "data" else item.bytes)]


@pytest.mark.parametrize(
    ("base", "size", "asks"),
    [
        ("", 100, False),
        ("own", 0, False),
        ("own", 100 << 20, False),  # a step of 100 MiB to an item of 8 kB
        ("ab" * 32, 100, False),  # from an item that isn't here
        ("own", 100, True),
    ],
)
def test_which_steps_are_asked_for(
    tmp_path: Path, base: str, size: int, asks: bool
) -> None:
    item, source = made(tmp_path, OLD)
    item = Item(item.digest, item.bytes, item.base if base == "own" else base, size)
    get(source, item, tmp_path)
    assert source.steps == asks
    assert (source.asked == []) == asks


def test_a_step_is_as_large_as_its_item_at_most() -> None:
    digest = "cd" * 32
    assert is_worth(Item(digest, 10 << 20, digest, 10 << 20))
    assert is_worth(Item(digest, 140, digest, 700))  # it has a header
    assert not is_worth(Item(digest, 10 << 20, digest, 12 << 20))
    assert not is_worth(Item(digest, 10 << 20, "", 1))


def test_a_step_from_another_item_is_no_use_and_no_harm(tmp_path: Path) -> None:
    item, source = made(tmp_path, OLD)
    other = {name: leaf * 2 for name, leaf in OLD.items()}
    _, foreign = made(tmp_path / "other", other)
    source.step = foreign.step
    get(source, item, tmp_path)
    assert source.steps == 1
    assert source.asked != []
