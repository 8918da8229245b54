"""Saved on some devices, loaded on others, along other axes."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from spheroid_jax import manifests
from spheroid_jax.checkpoints.blobs import Source
from spheroid_jax.checkpoints.placement import Loader
from tests.checkpoints.states import open_

BLOCKS = 4
W = np.arange(BLOCKS * 8 * 6, dtype=np.float32).reshape(BLOCKS, 8, 6)
HEAD = np.arange(16, dtype=np.float32)
KEYS = np.arange(8, dtype=np.uint32)


def mesh(*shape: int) -> Mesh:
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return Mesh(devices, ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def state(place: Any) -> dict[str, Any]:
    """Blocks over the first axis, rows and the interface over the second."""
    keys = jax.vmap(jax.random.key)(KEYS)
    return {
        "params": {
            "blocks": {"w": jax.device_put(W, place(P("a", "b")))},
            "interface": {"head": jax.device_put(HEAD, place(P("b")))},
        },
        "keys": jax.device_put(keys, place(P("a"))),
        "round": jax.device_put(jnp.int32(3), place(P())),
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by eight devices, four to the blocks and two to their rows."""
    directory = tmp_path_factory.mktemp("eight")
    with open_(directory) as store:
        store.save(1, state(lambda spec: NamedSharding(mesh(4, 2), spec)), {})
    return directory


def test_each_block_has_one_box_of_each_row_shard(saved: Path) -> None:
    """So nothing is written twice, whatever is replicated."""
    for block in range(BLOCKS):
        data = (saved / "1" / f"block_{block}" / "data.0").read_bytes()
        assert data == W[block].tobytes()  # 4 rows of one device, 4 of the next
    assert (saved / "1" / "interface" / "data.0").read_bytes() == HEAD.tobytes()


SHARDINGS = {
    "the same": (mesh(4, 2), P("a", "b"), P("b"), P("a")),
    "axes swapped": (mesh(2, 4), P("b", "a"), P(("a", "b")), P("b")),
    "four devices, columns": (mesh(2, 2), P(None, None, "a"), P(), P(("a", "b"))),
    "two devices, rows": (mesh(2, 1), P(None, "a"), P("a"), P()),
    "all replicated": (mesh(4, 2), P(), P(), P()),
}


@pytest.mark.parametrize("name", SHARDINGS)
def test_loads_onto_any_mesh(saved: Path, name: str) -> None:
    devices, w, head, keys = SHARDINGS[name]
    place = {"w": w, "head": head, "keys": keys, "round": P()}

    def target(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(devices, place[path[-1].key])
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    one = state(lambda _: SingleDeviceSharding(jax.devices()[0]))
    targets = jax.tree_util.tree_map_with_path(target, one)
    with open_(saved) as store, jax.set_mesh(devices):
        restored, _ = store.restore(targets)
    check(restored)
    for leaf, wanted in zip(
        jax.tree.leaves(restored), jax.tree.leaves(targets), strict=True
    ):
        assert leaf.sharding.is_equivalent_to(wanted.sharding, leaf.ndim)


def test_loads_onto_one_device(saved: Path) -> None:
    one = SingleDeviceSharding(jax.devices()[5])
    targets = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one),
        state(lambda _: SingleDeviceSharding(jax.devices()[0])),
    )
    with open_(saved) as store:
        restored, _ = store.restore(targets)
    check(restored)
    assert all(x.devices() == {jax.devices()[5]} for x in jax.tree.leaves(restored))


def test_loads_a_block_onto_several_devices(saved: Path) -> None:
    rows = NamedSharding(mesh(4, 2), P("a"))
    part = {
        "block": {"w": jax.ShapeDtypeStruct((8, 6), "float32", sharding=rows)},
        "interface": {"head": jax.ShapeDtypeStruct((16,), "float32", sharding=rows)},
    }
    with open_(saved) as store:
        restored = store.restore_part(part, block=2)
    np.testing.assert_array_equal(restored["block"]["w"], W[2])
    assert restored["block"]["w"].sharding == rows
    np.testing.assert_array_equal(restored["interface"]["head"], HEAD)


def test_what_was_loaded_may_be_donated(saved: Path) -> None:
    """Its memory may be shared with NumPy until then."""
    target = {
        "blocks": {"w": jax.ShapeDtypeStruct(W.shape, "float32")},
        "interface": {"head": jax.ShapeDtypeStruct(HEAD.shape, "float32")},
    }
    with open_(saved) as store:
        params = store.restore_params(target)
    step = jax.jit(lambda p: jax.tree.map(lambda x: x + 1, p), donate_argnums=0)
    np.testing.assert_array_equal(step(step(params))["blocks"]["w"], W + 2)


def test_an_array_that_is_not_all_there_is_damage(tmp_path: Path) -> None:
    """As when the index of one process were lost."""
    floats = np.dtype("float32")
    source = Source(tmp_path / "data.0", 0, (0,), (3,), floats, 4096, (), "xxh3")
    record = {"dtype": "float32", "shape": [4]}
    with pytest.raises(manifests.Damage, match="doesn't hold all of an array"):
        Loader().want(jax.ShapeDtypeStruct((4,), "float32"), record, [source])


def check(restored: dict[str, Any]) -> None:
    np.testing.assert_array_equal(restored["params"]["blocks"]["w"], W)
    np.testing.assert_array_equal(restored["params"]["interface"]["head"], HEAD)
    expected = jax.random.key_data(jax.vmap(jax.random.key)(KEYS))
    np.testing.assert_array_equal(jax.random.key_data(restored["keys"]), expected)
    assert int(restored["round"]) == 3
