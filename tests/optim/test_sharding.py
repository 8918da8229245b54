"""State lies where the parameters lie, on eight devices, with nobody telling it to."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from spheroid_jax.optim import cgad, pa_cgad

TRANSFORMATIONS = {
    "cgad": lambda: cgad(0.1),
    "cgad skip": lambda: cgad(0.1, closed="skip"),
    "pa_cgad": lambda: pa_cgad(0.1, {"w": "matrix", "b": "rest", "scalar": "rest"}),
}
SPECS = {
    "w": PartitionSpec("rows", "columns"),
    "b": PartitionSpec("rows"),
    "scalar": PartitionSpec(),
}


@pytest.fixture(scope="module")
def shardings() -> dict[str, NamedSharding]:
    devices = np.array(jax.devices()).reshape(4, 2)
    mesh = Mesh(devices, ("rows", "columns"), axis_types=(AxisType.Auto,) * 2)
    return {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}


@pytest.fixture(scope="module")
def params(shardings: dict[str, NamedSharding]) -> dict[str, jax.Array]:
    values = {
        "w": jnp.arange(32.0).reshape(8, 4),
        "b": jnp.arange(8.0),
        "scalar": jnp.float32(1.0),
    }
    return jax.device_put(values, shardings)


@pytest.mark.parametrize("name", TRANSFORMATIONS)
@pytest.mark.parametrize("jit", [False, True])
def test_moments_are_sharded_like_their_parameters(
    name: str, jit: bool, params: Any, shardings: Any
) -> None:
    tx: Any = TRANSFORMATIONS[name]()
    init = jax.jit(tx.init) if jit else tx.init

    def assert_in_place(tree: Any) -> None:
        for key in ("w", "b"):
            assert tree[key].sharding.is_equivalent_to(shardings[key], tree[key].ndim)
            assert tree[key].addressable_shards[0].data.size < tree[key].size

    state = init(params)
    assert_in_place(state.mu)
    assert_in_place(state.nu)

    @jax.jit
    def update(params: Any, state: Any) -> Any:
        steps, state = tx.update(params, state, params, age=2.0)
        return optax.apply_updates(params, steps), state

    moved, new = update(params, state)
    for tree in (moved, new.mu, new.nu):
        assert_in_place(tree)
    # Where things lie doesn't change what they are.
    local = jax.device_get(params)
    expected, _ = tx.update(local, tx.init(local), local, age=2.0)
    np.testing.assert_allclose(moved["w"], local["w"] + expected["w"], rtol=1e-6)


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_an_update_moves_no_parameters_between_devices(name: str, params: Any) -> None:
    tx: Any = TRANSFORMATIONS[name]()
    update = jax.jit(lambda p, s: tx.update(p, s, p, age=2.0))
    program = update.lower(params, tx.init(params)).compile().as_text()
    for collective in ("all-reduce", "all-gather", "all-to-all", "collective-permute"):
        assert collective not in program
