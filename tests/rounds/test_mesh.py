"""The same round on a mesh of devices: same numbers, little said between blocks."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from spheroid_jax.rounds import Engine, RoundState, make_round
from spheroid_jax.rounds.mesh import WORKERS, make_mesh, state_sharding

BLOCKS, REPLICAS = 3, 2


@pytest.fixture(scope="module")
def placed(tiny_state: RoundState, tiny_windows: jax.Array) -> Any:
    """State, windows and acceptance, every worker on a device of its own."""
    mesh = make_mesh(BLOCKS, REPLICAS)
    return (
        jax.device_put(tiny_state, state_sharding(mesh, tiny_state)),
        jax.device_put(tiny_windows, NamedSharding(mesh, WORKERS)),
        jnp.ones((BLOCKS, REPLICAS), bool),
    )


@pytest.fixture(scope="module")
def spread(tiny: Engine, placed: Any) -> Any:
    """The round compiled for where things are placed; it refuses any other place."""
    return jax.jit(make_round(tiny)).lower(*placed).compile()


@pytest.fixture(scope="module")
def after(spread: Any, placed: Any) -> Any:
    return spread(*placed)


def test_a_worker_lives_on_one_device_and_a_block_beside_its_replicas(
    placed: Any,
) -> None:
    state, windows, _ = placed
    assert len(windows.sharding.device_set) == BLOCKS * REPLICAS
    assert windows.addressable_shards[0].data.shape[:2] == (1, 1)
    for leaf in jax.tree.leaves(state.workers):
        assert leaf.addressable_shards[0].data.shape[:2] == (1, 1)
    for leaf in jax.tree.leaves(state.params["blocks"]):
        assert leaf.addressable_shards[0].data.shape[0] == 1
    for leaf in jax.tree.leaves(state.params["interface"]):
        assert leaf.sharding.is_fully_replicated


def test_a_mesh_of_devices_gives_the_result_of_one_device(
    after: Any, tiny_round: Any, tiny_state: RoundState, tiny_windows: jax.Array
) -> None:
    """Noise included: it comes from a worker's place, not from its device."""
    expected, metrics = tiny_round(
        tiny_state, tiny_windows, jnp.ones((BLOCKS, REPLICAS), bool)
    )
    got, got_metrics = after
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        (got.params, got.workers, got_metrics),
        (expected.params, expected.workers, metrics),
    )
    losses = np.asarray(got_metrics["loss"])
    assert len(np.unique(losses)) == BLOCKS * REPLICAS


def test_a_round_leaves_the_state_where_it_was_and_needs_no_other_program(
    spread: Any, after: Any, placed: Any
) -> None:
    state, windows, accepted = placed
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(after[0]), strict=True):
        assert new.sharding.is_equivalent_to(old.sharding, old.ndim)
    again, _ = spread(after[0], windows, accepted)
    assert int(again.round) == 2


def test_blocks_exchange_the_interface_only(spread: Any, placed: Any) -> None:
    """A device adds up its own block and interface over replicas, then the interface
    over blocks. A full-model all-reduce would move every block to every device.
    """
    moved = re.findall(
        r"= (.*?) (all-[a-z]+|reduce-scatter|collective-\w+)\(", spread.as_text()
    )
    assert {name for _, name in moved} == {"all-reduce"}
    sizes = [
        int(np.prod([int(n) for n in dims.split(",") if n]))
        for shapes, _ in moved
        for dims in re.findall(r"f32\[([\d,]*)\]", shapes)
    ]
    params = placed[0].params
    one_block = sum(leaf.size for leaf in jax.tree.leaves(params["blocks"])) // BLOCKS
    interface = sum(leaf.size for leaf in jax.tree.leaves(params["interface"]))
    assert sum(sizes) == one_block + 2 * interface
