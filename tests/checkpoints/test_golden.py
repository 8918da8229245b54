"""A checkpoint written when a format was new must load as long as the format is read.

One of format 2, whose digests are SHA-256, of 3, XXH3, and of 4, BLAKE3. They
were written by ``write`` below, on one device. If this fails, either repair the
reading, or make a new format with a golden checkpoint of its own.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.checkpoints import CheckpointError, Checkpoints
from tests.checkpoints.states import State, abstract, assert_same, files_of, part_of

HERE = Path(__file__).parent
GOLDEN = {"sha256": HERE / "golden", "xxh3": HERE / "golden_xxh3"}
GOLDEN["blake3"] = HERE / "golden_blake3"
FORMAT = {"sha256": 2, "xxh3": 3, "blake3": 4}
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


def write(directory: Path, digest: str) -> None:
    """Writes what is committed."""
    with Checkpoints(directory, keep=1, identity=IDENTITY, digest=digest) as store:
        store.save(4, expected(), {"batches": {"next": 12}}, metric=1.25, age=0.5)


@pytest.fixture(params=GOLDEN)
def digest(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def golden(tmp_path: Path, digest: str) -> Path:
    return Path(shutil.copytree(GOLDEN[digest], tmp_path / "golden"))


def test_it_is_small(digest: str) -> None:
    assert sum(path.stat().st_size for path in files_of(GOLDEN[digest])) < 50_000


def test_it_loads_whole_and_in_parts(golden: Path, digest: str) -> None:
    """By a store that itself writes the default digests."""
    with Checkpoints(golden, keep=1, identity=IDENTITY) as store:
        assert store.latest() == 4
        state, host = store.restore(expected())
        assert_same(state, expected())
        assert host == {"batches": {"next": 12}}
        part = part_of(expected(), 1)
        assert_same(store.restore_part(abstract(part), block=1), part)
        known = store.metadata()
    assert (known["metric"], known["age"]) == (1.25, 0.5)
    assert known["format"] == FORMAT[digest]


def test_what_is_written_today_is_the_same(
    golden: Path, tmp_path: Path, digest: str
) -> None:
    """But for Orbax's own files, which hold times and versions."""
    write(tmp_path / "today", digest)

    def ours(directory: Path) -> dict[str, Any]:
        names = ("data.*", "index.*")
        found = [p for p in files_of(directory) if any(map(p.match, names))]
        return {str(p.relative_to(directory)): p.read_bytes() for p in found}

    assert ours(tmp_path / "today") == ours(golden)
    assert len(ours(golden)) == 2 * 4
    manifests_ = [
        json.loads((where / "4/manifest.json").read_text())["manifest"]
        for where in (golden, tmp_path / "today")
    ]
    for name in ("format", "items", "identity", "leaves", "config"):
        assert manifests_[0][name] == manifests_[1][name]


def test_another_configuration_is_refused(golden: Path) -> None:
    other = IDENTITY | {"seed": 2}
    with (
        Checkpoints(golden, keep=1, identity=other) as store,
        pytest.raises(CheckpointError, match="seed is 1 there and 2 here"),
    ):
        store.restore(expected())
