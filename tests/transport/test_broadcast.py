"""What changed in a round goes out encoded, and everybody comes to the same model."""

import asyncio
import math
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spheroid_jax.checkpoints.leaves import named
from spheroid_jax.transport.items.fetch import fetch
from spheroid_jax.transport.items.steps import STEP, write_step
from spheroid_jax.transport.link import LinkError, Progress
from spheroid_jax.transport.protocol import Item
from spheroid_jax.transport.updates import Encoding, UpdateReader
from tests.transport.tiny import DirectLink, TinyRun

ROUNDS, BLOCKS = 6, 2
INT4 = Encoding("int4", 3)


class ByPiece(DirectLink):
    """Fetches as over HTTP, from the coordinator's disk, and counts.

    Attributes:
      moved: bytes by what they were of.
      spoil: whether steps have a flipped bit on arrival.
      forget: whether steps are gone.
    """

    url = "here"

    def __init__(self, run: TinyRun, name: str) -> None:
        super().__init__(run, name)
        self.moved = {"index": 0, "data": 0, "step": 0}
        self.spoil = self.forget = False

    async def fetch(
        self, item: Item, target: Path, progress: Progress | None = None
    ) -> int:
        return await fetch(self, item, target, progress)

    def _read(self, item: Item, name: str) -> bytes:
        where = self.run.coordinator.item(item.digest)
        assert where is not None
        return (where / name).read_bytes()

    async def read_index(self, item: Item) -> bytes:
        content = self._read(item, "index.0.json")
        self.moved["index"] += len(content)
        return content

    async def read_data(
        self, item: Item, start: int, stop: int
    ) -> AsyncGenerator[bytes, None]:
        self.moved["data"] += stop - start
        yield self._read(item, "data.0")[start:stop]

    async def read_step(self, item: Item) -> AsyncGenerator[bytes, None]:
        if self.forget:
            raise LinkError("no such step", code="unknown", status=404)
        content = bytearray(self._read(item, STEP))
        assert len(content) == item.step_bytes
        self.moved["step"] += len(content)
        if self.spoil:
            content[len(content) // 2] ^= 1
        yield bytes(content)


def trained(
    directory: Path, broadcast: Encoding | None, *, until: int = ROUNDS, **flags: bool
) -> tuple[TinyRun, list[ByPiece]]:
    """A run with a worker a block, over ``until`` rounds."""
    run = TinyRun(
        directory, blocks=BLOCKS, rounds=until, workers=BLOCKS, broadcast=broadcast
    )
    links = [ByPiece(run, name) for name in ("ann", "bob")]
    for link in links:
        for flag, value in flags.items():
            setattr(link, flag, value)

    async def main() -> None:
        workers = [run.worker(link.name, link=link) for link in links]
        for worker in workers:
            await worker.register()
        await asyncio.gather(run.coordinator.run(), *(w.run() for w in workers))

    asyncio.run(asyncio.wait_for(main(), 60))
    return run, links


def flat(tree: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf) for name, leaf in named(tree).items()}


def state_of(run: TinyRun) -> Any:
    return run.coordinator._model.state


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The model of a run that sends everything as it is."""
    run, _ = trained(tmp_path_factory.mktemp("whole"), None)
    return flat(state_of(run).params)


def test_after_the_first_round_steps_are_all_that_is_read(tmp_path: Path) -> None:
    _, links = trained(tmp_path, INT4)
    for link in links:
        # One model in full at the start; then steps, which workers turn into items.
        part = sum(4 * math.prod(s) for s in link.run.trainer.shapes.values())
        assert link.moved["data"] == part
        assert link.moved["step"] > 0


def test_the_model_is_that_of_the_outer_optimizer_but_for_a_rounding(
    tmp_path: Path, whole: dict[str, np.ndarray]
) -> None:
    run, _ = trained(tmp_path, Encoding("bfloat16"))
    state = state_of(run)
    published, ahead = flat(state.params), flat(state.ahead)
    for name, leaf in whole.items():
        scale = np.abs(leaf).max()
        np.testing.assert_allclose(published[name], leaf, atol=2e-2 * scale)
        # What is kept back is a rounding of one step, not of all of them.
        assert np.abs(ahead[name]).max() < 1e-2 * scale


@pytest.mark.parametrize("flags", [{"spoil": True}, {"forget": True}])
def test_a_step_that_is_damaged_or_gone_costs_a_full_download_and_no_more(
    tmp_path: Path, flags: dict[str, bool]
) -> None:
    good, _ = trained(tmp_path / "good", INT4)
    bad, links = trained(tmp_path / "bad", INT4, **flags)
    for name, leaf in flat(state_of(good).params).items():
        np.testing.assert_array_equal(flat(state_of(bad).params)[name], leaf)
    assert all(link.moved["data"] > 0 for link in links)


def test_a_restart_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    straight, _ = trained(tmp_path / "straight", INT4)
    half, _ = trained(tmp_path / "half", INT4, until=ROUNDS // 2)
    del half
    rest, _ = trained(tmp_path / "half", INT4)
    for part in ("params", "ahead"):
        for name, leaf in flat(getattr(state_of(straight), part)).items():
            found = flat(getattr(state_of(rest), part))[name]
            np.testing.assert_array_equal(found, leaf)


def test_a_step_leads_to_what_it_says(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    old = {"a": rng.normal(size=(3, 7)).astype(np.float32)}
    new = {"a": old["a"] + rng.normal(size=(3, 7)).astype(np.float32) * 1e-3}
    led = write_step(tmp_path / "step", old, new, Encoding("int8"), "base")
    with UpdateReader(tmp_path / "step") as step:
        change = step.read("a", 0, 21).reshape(3, 7)
    np.testing.assert_array_equal(led["a"], old["a"] + change)
    np.testing.assert_allclose(led["a"], new["a"], atol=1e-3 * 4 / 127)
