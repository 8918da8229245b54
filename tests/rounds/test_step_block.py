"""A coordinator steps one block at a time; the simulator steps all of them at once."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spheroid_jax import partition
from spheroid_jax.optim import cgad
from spheroid_jax.rounds import (
    Engine,
    init_outer,
    inner_optimizer,
    placed,
    step_block,
    step_outer,
    step_shared,
)

BLOCKS = 3


def tree(seed: int) -> dict[str, dict[str, jax.Array]]:
    keys = jax.random.split(jax.random.key(seed), 3)
    return {
        "blocks": {
            "kernel": jax.random.normal(keys[0], (BLOCKS, 4, 5)),
            "bias": jax.random.normal(keys[1], (BLOCKS, 5)),
        },
        "interface": {"head": jax.random.normal(keys[2], (5, 2))},
    }


@pytest.mark.parametrize(
    "outer",
    [
        optax.sgd(1.0),
        optax.sgd(0.7, momentum=0.9, nesterov=True),
        cgad(1e-2, gate="both"),
    ],
    ids=["mean", "nesterov", "cgad"],
)
def test_block_after_block_is_the_whole_step(
    outer: optax.GradientTransformation,
) -> None:
    engine = Engine(partition.blocks(BLOCKS), None, optax.sgd(1.0), outer, 1)  # type: ignore[arg-type]
    params = tree(0)
    whole = (params, init_outer(engine, params))
    single = whole
    rounds = [([True, False, True], [0.0, 0.0, 2.0]), ([True] * 3, [1.0, 3.0, 0.0])]
    for number, (there, ages) in enumerate(rounds):
        gradient = tree(number + 1)
        present, age = jnp.array(there), jnp.array(ages)
        # A block that nothing arrived for has no pseudo-gradient.
        gradient["blocks"] = jax.tree.map(
            lambda g, p=present: jnp.where(p.reshape(-1, *[1] * (g.ndim - 1)), g, 0.0),
            gradient["blocks"],
        )
        whole = step_outer(engine, gradient, whole[1], whole[0], present, age)[:2]
        for block in np.flatnonzero(there):
            own = jax.tree.map(lambda g, b=block: g[b], gradient["blocks"])
            single = step_block(
                engine, own, single[1], single[0], jnp.int32(block), age[block]
            )
        shared = {"interface": gradient["interface"]}
        mean_age = jnp.mean(age[np.flatnonzero(there)])
        single = step_shared(engine, shared, single[1], single[0], mean_age)
    flat, treedef = jax.tree.flatten(whole)
    others, same = jax.tree.flatten(single)
    assert treedef == same
    for one, other in zip(flat, others, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def test_a_state_is_put_at_its_place_in_the_schedule() -> None:
    part = {"kernel": jnp.ones(3)}
    inner = inner_optimizer(1e-2, 100, warmup_steps=10)
    state = inner.init(part)
    walked = state
    for _ in range(7):
        _, walked = inner.update(part, walked, part)
    found = placed(state, 7)
    assert optax.tree.get(found, "mu")["kernel"].tolist() == [0.0, 0.0, 0.0]

    def place(state: optax.OptState) -> list[int]:
        kind = optax.ScaleByScheduleState
        flat = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, kind))
        return [int(s.count) for s in flat if isinstance(s, kind)]

    assert place(found) == place(walked) == [7]
    assert place(state) == [0]
