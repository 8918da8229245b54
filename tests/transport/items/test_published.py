"""From a checkpoint over the wire to a worker's part."""

import asyncio
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from spheroid_jax import manifests
from spheroid_jax.checkpoints import CheckpointError
from spheroid_jax.transport.items import fetch
from spheroid_jax.transport.items.loading import load_part
from spheroid_jax.transport.items.published import Published
from tests.checkpoints.states import blocks_state, open_
from tests.transport.items.making import Source


def saved(directory: Path, seed: int = 0, **how: Any) -> tuple[Path, Any]:
    state = blocks_state(seed=seed)
    with open_(directory, **{"digest": "blake3"} | how) as checkpoints:
        checkpoints.save(3, state, {})
    return directory / "3", state.params


def abstract(params: Any, make: Any) -> Any:
    return {
        "block": jax.tree.map(lambda x: make(x.shape[1:], x.dtype), params["blocks"]),
        "interface": jax.tree.map(
            lambda x: make(x.shape, x.dtype), params["interface"]
        ),
    }


def fetched(directory: Path, step: Path, items: dict, name: str) -> Path:
    there = step / name
    source = Source(
        (there / "index.0.json").read_bytes(), (there / "data.0").read_bytes()
    )
    asyncio.run(fetch.fetch(source, items[name], directory / name))
    return directory / name


@pytest.mark.parametrize(
    ("make", "digest"), [(jax.ShapeDtypeStruct, "blake3"), (np.empty, "sha256")]
)
def test_a_part_arrives_as_it_was_saved(tmp_path: Path, make: Any, digest: str) -> None:
    """Also of a checkpoint from before BLAKE3."""
    step, params = saved(tmp_path / "checkpoints", digest=digest)
    items = Published().publish(step)
    assert sorted(items) == ["block_0", "block_1", "block_2", "interface"]
    block = fetched(tmp_path, step, items, "block_1")
    interface = fetched(tmp_path, step, items, "interface")
    part = load_part(block, interface, abstract(params, make))
    expected = {
        "block": jax.tree.map(lambda x: x[1], params["blocks"]),
        "interface": params["interface"],
    }
    jax.tree.map(np.testing.assert_array_equal, part, expected)
    kind = np.ndarray if make is np.empty else jax.Array
    assert all(isinstance(leaf, kind) for leaf in jax.tree.leaves(part))


def test_another_model_is_refused(tmp_path: Path) -> None:
    step, params = saved(tmp_path)
    wanted = abstract(params, lambda shape, dtype: jax.ShapeDtypeStruct((9,), dtype))
    with pytest.raises(CheckpointError, match="the coordinator's part is another"):
        load_part(step / "block_0", step / "interface", wanted)


def test_a_flipped_bit_is_found_when_it_is_loaded(tmp_path: Path) -> None:
    step, params = saved(tmp_path)
    data = bytearray((step / "block_0" / "data.0").read_bytes())
    data[5] ^= 4
    (step / "block_0" / "data.0").write_bytes(data)
    wanted = abstract(params, jax.ShapeDtypeStruct)
    with pytest.raises(manifests.Damage, match="BLAKE3"):
        load_part(step / "block_0", step / "interface", wanted)


def test_items_are_found_by_digest_until_they_are_withdrawn(tmp_path: Path) -> None:
    old, _ = saved(tmp_path / "old")
    new, _ = saved(tmp_path / "new")
    other, _ = saved(tmp_path / "other", seed=1)
    published = Published()
    items = published.publish(old)
    assert published.path(items["block_1"].digest) == old / "block_1"
    # The same parameters are the same items, wherever they are.
    assert published.publish(new) == items
    assert published.publish(other, ["block_1"])["block_1"] != items["block_1"]
    assert published.path(items["block_1"].digest) == new / "block_1"
    published.withdraw(new)
    assert published.path(items["block_1"].digest) == old / "block_1"
    published.withdraw(old)
    assert published.path(items["block_1"].digest) is None
    assert published.path("../../etc/passwd") is None


def test_only_what_is_whole_and_checkable_is_published(tmp_path: Path) -> None:
    step, _ = saved(tmp_path / "a")
    with pytest.raises(ValueError, match="no item block_7"):
        Published().publish(step, ["block_7"])
    (step / "block_0" / "index.1.json").write_text("{}")
    with pytest.raises(ValueError, match="one process"):
        Published().publish(step)
    (step / "block_0" / "index.1.json").unlink()
    index = json.loads((step / "block_0" / "index.0.json").read_bytes())
    (step / "block_0" / "index.0.json").write_text(json.dumps(index, indent=2))
    with pytest.raises(manifests.Damage, match="bytes where"):
        Published().publish(step)
    step, _ = saved(tmp_path / "fast", digest="xxh3")
    with pytest.raises(ValueError, match="blake3"):
        Published().publish(step)
