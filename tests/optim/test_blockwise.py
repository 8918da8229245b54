"""One outer optimizer for each block: who is stepped, how old, and who stays."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spheroid_jax.optim import by_block, cgad

INNERS = {
    "sgd": optax.sgd(0.5),
    "nesterov": optax.sgd(0.7, momentum=0.9, nesterov=True),
    "adam": optax.adam(0.05),
    "cgad": cgad(0.05, gate="both"),
}


def tree(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return {
        "blocks": {"w": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)},
        "interface": {"v": jnp.asarray(rng.normal(size=5), jnp.float32)},
    }


def walk(tx: Any, steps: list[dict[str, Any]]) -> list[Any]:
    """Parameters after each step; each has its own gradient and keywords."""
    params, state = tree(0), tx.init(tree(0))
    path = []
    for seed, keywords in enumerate(steps, 1):
        updates, state = tx.update(tree(seed), state, params, **keywords)
        params = optax.apply_updates(params, updates)
        path.append(params)
    return path


@pytest.mark.parametrize("name", INNERS)
def test_with_arrivals_everywhere_it_is_the_inner_optimizer(name: str) -> None:
    inner = optax.with_extra_args_support(INNERS[name])
    whole = walk(inner, [{"age": 2.0}] * 3)
    apart = walk(by_block(INNERS[name]), [{"age": 2.0, "present": [True] * 3}] * 3)
    unsaid = walk(by_block(INNERS[name]), [{"age": jnp.full(3, 2.0)}] * 3)
    for a, b, c in zip(whole, apart, unsaid, strict=True):
        for x, y, z in zip(*map(jax.tree.leaves, (a, b, c)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6)
            np.testing.assert_array_equal(y, z)


@pytest.mark.parametrize("name", INNERS)
def test_a_block_goes_the_way_it_would_go_without_the_rounds_it_missed(
    name: str,
) -> None:
    """Momentum, moments and counts of a silent block wait with it, bit for bit."""
    tx = by_block(INNERS[name])
    present = [[True, True, True], [True, False, True], [True, True, True]]
    path = walk(tx, [{"age": 1.0, "present": p} for p in present])
    before, silent = path[0]["blocks"]["w"][1], path[1]["blocks"]["w"][1]
    assert np.asarray(before).tobytes() == np.asarray(silent).tobytes()
    # Its own gradients, of rounds 1 and 3 alone, in an optimizer of its own.
    alone = optax.with_extra_args_support(INNERS[name])
    w = tree(0)["blocks"]["w"][1]
    state = alone.init(w)
    for seed in (1, 3):
        updates, state = alone.update(tree(seed)["blocks"]["w"][1], state, w, age=1.0)
        w = optax.apply_updates(w, updates)
    np.testing.assert_allclose(path[2]["blocks"]["w"][1], w, rtol=1e-5)


def test_each_block_is_gated_by_its_own_age_and_the_rest_by_the_mean() -> None:
    tx = by_block(cgad(0.1, alpha=0.2, tau_cut=None, gate="post"))
    ages, present = jnp.array([0.0, 3.0, 9.0]), jnp.array([True, True, False])
    updates, _ = tx.update(
        tree(1), tx.init(tree(0)), tree(0), age=ages, present=present
    )
    # The first step of Adam is the rate times the sign, so that the weight is bare.
    size = np.abs(np.asarray(updates["blocks"]["w"]))
    np.testing.assert_allclose(size[0], 0.1, rtol=1e-4)
    np.testing.assert_allclose(size[1], 0.1 * np.exp(-0.2 * 3), rtol=1e-4)
    np.testing.assert_array_equal(size[2], 0.0)
    # Of the two blocks that were heard: 1.5 rounds.
    np.testing.assert_allclose(
        np.abs(updates["interface"]["v"]), 0.1 * np.exp(-0.2 * 1.5), rtol=1e-4
    )


def test_nothing_anywhere_moves_nothing() -> None:
    tx = by_block(INNERS["nesterov"])
    steps = [{"present": [True] * 3}, {"present": [False] * 3}]
    first, second = walk(tx, steps)
    for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_what_a_silent_block_holds_may_be_nan() -> None:
    tx = by_block(INNERS["adam"])
    bad = tree(1)
    bad["blocks"]["w"] = bad["blocks"]["w"].at[1].set(jnp.nan)
    present = jnp.array([True, False, True])
    updates, state = tx.update(bad, tx.init(tree(0)), tree(0), present=present)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((updates, state)))


def test_a_tree_without_blocks_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"needs a mapping with 'blocks', got \['w'\]"):
        by_block(optax.sgd(1.0)).init({"w": jnp.ones(2)})
