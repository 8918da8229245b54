"""A checkpoint written when format 2 was new must load as long as format 2 does.

It was written by ``write`` below, on one device. If this fails, either repair the
reading, or raise FORMAT_VERSION and write the golden checkpoint anew.
"""

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.checkpoints import CheckpointError, Checkpoints
from tests.checkpoints.states import State, abstract, assert_same, files_of, part_of

GOLDEN = Path(__file__).parent / "golden"
IDENTITY = {"model": {"blocks": 2, "width": 3}, "seed": 1}


def expected() -> State:
    """Every kind of leaf, of values that no library's random bits decide."""
    ramp = np.arange(2 * 4 * 3, dtype=np.float32).reshape(2, 4, 3)
    params = {
        "blocks": {"w": jnp.asarray(ramp / 7), "b": jnp.asarray(-ramp[:, 0])},
        "interface": {"head": jnp.asarray(np.arange(5, dtype=jnp.bfloat16) / 3)},
    }
    outer = {"trace": jnp.asarray(ramp * 0.25), "none": jnp.zeros((0, 3))}
    workers = {"count": np.arange(3), "rate": 0.5, "frozen": True, "steps": 7}
    return State(params, outer, workers, jnp.int32(4), jax.random.key(9))


def write(directory: Path) -> None:
    """Writes what is committed."""
    with Checkpoints(directory, keep=1, identity=IDENTITY) as store:
        store.save(4, expected(), {"batches": {"next": 12}}, metric=1.25, age=0.5)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "golden"))


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in files_of(GOLDEN)) < 50_000


def test_it_loads_whole_and_in_parts(golden: Path) -> None:
    with Checkpoints(golden, keep=1, identity=IDENTITY) as store:
        assert store.latest() == 4
        state, host = store.restore(expected())
        assert_same(state, expected())
        assert host == {"batches": {"next": 12}}
        part = part_of(expected(), 1)
        assert_same(store.restore_part(abstract(part), block=1), part)
        known = store.metadata()
    assert (known["format"], known["metric"], known["age"]) == (2, 1.25, 0.5)


def test_what_is_written_today_is_the_same(golden: Path, tmp_path: Path) -> None:
    """But for Orbax's own files, which hold times and versions."""
    write(tmp_path / "today")

    def ours(directory: Path) -> dict[str, Any]:
        names = ("data.*", "index.*")
        found = [p for p in files_of(directory) if any(map(p.match, names))]
        return {str(p.relative_to(directory)): p.read_bytes() for p in found}

    assert ours(tmp_path / "today") == ours(golden)
    assert len(ours(golden)) == 2 * 4


def test_another_configuration_is_refused(golden: Path) -> None:
    other = IDENTITY | {"seed": 2}
    with (
        Checkpoints(golden, keep=1, identity=other) as store,
        pytest.raises(CheckpointError, match="seed is 1 there and 2 here"),
    ):
        store.restore(expected())
