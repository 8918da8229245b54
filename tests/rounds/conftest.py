"""A toy whose rounds can be worked by hand, and a tiny BlockTrain."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spheroid_jax import partition
from spheroid_jax.diffusion import NoiseLevels, block_ranges
from spheroid_jax.models import BlockDenoiser, InterfaceShape, TransformerShape
from spheroid_jax.objectives import Batch, block_denoising
from spheroid_jax.rounds import Engine, RoundState, init_state, make_round

BLOCKS, REPLICAS, LOCAL_STEPS, BATCH, LENGTH, WIDTH = 3, 2, 2, 2, 8, 16


def pull(params: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, Any]:
    """Half the squared distance of every number from the window's first byte.

    Under ``sgd(0.5)`` a step halves the distance.
    """
    del key
    goal = batch.windows[0, 0].astype(jnp.float32)
    loss = sum(jnp.sum((leaf - goal) ** 2) for leaf in jax.tree.leaves(params)) / 2
    return loss, {"goal": goal, "block": batch.block}


@pytest.fixture(scope="session")
def toy() -> Callable[..., Engine]:
    """An engine for :func:`pull`; arguments change its parts."""

    def make(**changes: Any) -> Engine:
        return Engine(
            **{
                "partition": partition.everything(),
                "objective": pull,
                "inner": optax.sgd(0.5),
                "outer": optax.sgd(1.0),
                "replicas": 2,
            }
            | changes
        )

    return make


@pytest.fixture(scope="session")
def goals() -> Callable[[Any], jax.Array]:
    """Windows of one byte each, from bytes (B, K, H)."""
    return lambda values: jnp.asarray(values, jnp.uint8)[..., None, None]


@pytest.fixture(scope="session")
def start() -> Callable[[Engine, Any], RoundState]:
    return lambda engine, params: init_state(engine, params, jax.random.key(0))


@pytest.fixture(scope="session")
def go() -> Callable[..., tuple[RoundState, Any]]:
    """One round of an engine; everybody is accepted unless told otherwise."""

    def run(
        engine: Engine, state: RoundState, windows: jax.Array, accepted: Any = None
    ) -> tuple[RoundState, Any]:
        everybody = jnp.ones(windows.shape[:2], bool)
        arrived = everybody if accepted is None else jnp.asarray(accepted)
        return jax.jit(make_round(engine))(state, windows, arrived)

    return run


@pytest.fixture(scope="session")
def tiny() -> Engine:
    """BlockTrain with three blocks of one layer and two replicas, in float32."""
    model = BlockDenoiser(
        TransformerShape(width=WIDTH, heads=2, mlp_width=32, layers=1),
        InterfaceShape(width=WIDTH, seq_len=LENGTH),
    )
    ranges = block_ranges(NoiseLevels(), BLOCKS, 0.1)
    objective = block_denoising(model, NoiseLevels(), jnp.asarray(ranges, jnp.float32))
    return Engine(
        partition.blocks(BLOCKS),
        objective,
        # Not Adam, which blows rounding up where a gradient is zero.
        optax.sgd(0.1, momentum=0.9),
        optax.sgd(1.0),
        REPLICAS,
    )


@functools.cache
def tiny_params() -> Any:
    """Parameters for :func:`tiny`, drawn by NumPy: nothing to compile."""
    model = BlockDenoiser(
        TransformerShape(width=WIDTH, heads=2, mlp_width=32, layers=1),
        InterfaceShape(width=WIDTH, seq_len=LENGTH),
    )
    shapes = jax.eval_shape(lambda key: model.init(key, BLOCKS), jax.random.key(0))
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: jnp.asarray(0.25 * rng.standard_normal(leaf.shape), leaf.dtype),
        shapes,
    )


@pytest.fixture(scope="session")
def tiny_state(tiny: Engine) -> RoundState:
    begin = jax.jit(lambda params, key: init_state(tiny, params, key))
    return begin(tiny_params(), jax.random.key(1))


@pytest.fixture(scope="session")
def tiny_windows() -> jax.Array:
    shape = (BLOCKS, REPLICAS, LOCAL_STEPS, BATCH, LENGTH + 1)
    return jax.random.randint(jax.random.key(2), shape, 0, 256).astype(jnp.uint8)


@pytest.fixture(scope="session")
def tiny_round(tiny: Engine) -> Any:
    """The compiled round of :func:`tiny`, one for all tests."""
    return jax.jit(make_round(tiny))
