"""What the disk does to an update after it was accepted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spheroid_jax.checkpoints.leaves import named
from spheroid_jax.transport.coordinator.model import Arrival
from spheroid_jax.transport.updates import Encoding, write_update
from tests.transport.tiny import TinyRun


def written(run: TinyRun, path: Path, seed: int) -> Arrival:
    """An update of block 0."""
    rng = np.random.default_rng(seed)
    delta = {
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in run.coordinator._model.expected.items()
    }
    write_update(path, delta, Encoding(), {})
    return Arrival(path, 0, 0, worker=path.name)


def params(run: TinyRun) -> dict[str, np.ndarray]:
    return {n: np.asarray(x) for n, x in named(run.coordinator._model.params).items()}


def spoil(path: Path, what: str) -> None:
    content = bytearray(path.read_bytes())
    if what == "flipped":
        content[-30] ^= 4
    elif what == "truncated":
        del content[len(content) // 2 :]
    path.write_bytes(content)
    if what == "gone":
        path.unlink()


@pytest.mark.parametrize("what", ["flipped", "truncated", "gone"])
def test_one_that_is_damaged_is_left_out_and_told_of(tmp_path: Path, what: str) -> None:
    run = TinyRun(tmp_path / "run")
    arrivals = [written(run, tmp_path / f"update-{n}", n) for n in range(3)]
    spoil(arrivals[1].path, what)
    (line,) = run.coordinator._model.step(arrivals)
    assert "update-1 was accepted, and is left out" in line
    found = params(run)

    other = TinyRun(tmp_path / "other")
    assert other.coordinator._model.step([arrivals[0], arrivals[2]]) == []
    for name, leaf in params(other).items():
        np.testing.assert_array_equal(found[name], leaf)


def test_with_all_of_them_damaged_the_block_stays(tmp_path: Path) -> None:
    run = TinyRun(tmp_path / "run")
    before: dict[str, Any] = params(run)
    arrivals = [written(run, tmp_path / f"update-{n}", n) for n in range(2)]
    for arrival in arrivals:
        spoil(arrival.path, "flipped")
    assert len(run.coordinator._model.step(arrivals)) == 2
    assert run.coordinator._model.round == 1
    for name, leaf in params(run).items():
        np.testing.assert_array_equal(leaf, before[name])
