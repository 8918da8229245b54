"""Taking a model apart for its workers, and putting what they return together."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.partition import blocks, difference, everything, masked_mean


@pytest.fixture
def params() -> Any:
    return {
        "blocks": {"w": jnp.arange(12.0).reshape(3, 2, 2)},
        "interface": {"table": jnp.array([5.0, 7.0]), "scale": jnp.float32(2.0)},
    }


ALL = jnp.ones(3, bool)


def test_a_worker_of_blocktrain_holds_one_block_and_the_whole_interface(
    params: Any,
) -> None:
    partition = blocks(3)
    parts = partition.take(params)
    assert partition.count == 3
    assert set(parts) == {"block", "interface"}
    for b in range(3):
        np.testing.assert_array_equal(parts["block"]["w"][b], params["blocks"]["w"][b])
        np.testing.assert_array_equal(parts["interface"]["table"][b], [5.0, 7.0])
        assert float(parts["interface"]["scale"][b]) == 2.0


def test_unchanged_parts_make_the_same_model_again(params: Any) -> None:
    partition = blocks(3)
    again = partition.put(partition.take(params), ALL)
    assert jax.tree.structure(again) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, again, params)


def test_the_interface_is_the_mean_over_the_blocks_that_are_present(
    params: Any,
) -> None:
    partition = blocks(3)
    parts = partition.take(params)
    # Blocks 0 and 2 returned 1 and 4; block 1 returned nothing that counts.
    scale = jnp.array([1.0, jnp.nan, 4.0])
    parts = {**parts, "interface": {**parts["interface"], "scale": scale}}
    put = partition.put(parts, jnp.array([True, False, True]))
    assert float(put["interface"]["scale"]) == 2.5
    nobody = partition.put(parts, jnp.zeros(3, bool))
    assert float(nobody["interface"]["scale"]) == 0.0


def test_blocks_stay_apart(params: Any) -> None:
    partition = blocks(3)
    parts = partition.take(params)
    moved = {"w": parts["block"]["w"].at[1].add(100.0)}
    put = partition.put({**parts, "block": moved}, ALL)
    np.testing.assert_array_equal(
        put["blocks"]["w"] - params["blocks"]["w"],
        jnp.zeros((3, 2, 2)).at[1].set(100.0),
    )


def test_everything_is_one_part(params: Any) -> None:
    partition = everything()
    parts = partition.take(params)
    assert partition.count == 1
    assert {leaf.shape[0] for leaf in jax.tree.leaves(parts)} == {1}
    again = partition.put(parts, jnp.ones(1, bool))
    jax.tree.map(np.testing.assert_array_equal, again, params)
    nothing = partition.put(parts, jnp.zeros(1, bool))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(nothing))


def test_masked_mean_takes_what_is_chosen_and_nothing_else() -> None:
    values = {"a": jnp.array([[1.0, 2.0], [jnp.nan, jnp.inf], [5.0, 8.0]])}
    mean = masked_mean(values, jnp.array([True, False, True]))
    np.testing.assert_array_equal(mean["a"], [3.0, 5.0])
    none = masked_mean(values, jnp.zeros(3, bool))
    np.testing.assert_array_equal(none["a"], [0.0, 0.0])


def test_masked_mean_does_not_hide_a_bad_value_that_was_chosen() -> None:
    mean = masked_mean(jnp.array([1.0, jnp.nan]), jnp.array([True, True]))
    assert np.isnan(mean)


def test_masked_mean_keeps_the_type_of_its_leaves() -> None:
    half = masked_mean(jnp.ones((2, 3), jnp.bfloat16), jnp.ones(2, bool))
    assert half.dtype == jnp.bfloat16


def test_a_difference_of_half_precision_is_exact() -> None:
    """In bfloat16 the difference of 256 and 1.0078125 would be rounded to 255."""
    sent = jnp.array([256.0, 1.0], jnp.bfloat16)
    returned = jnp.array([1.0078125, 1.0078125], jnp.bfloat16)
    delta = difference(sent, returned)
    assert delta.dtype == jnp.float32
    np.testing.assert_array_equal(delta, [254.9921875, -0.0078125])
    single = difference(jnp.float32(3.0), jnp.float32(1.0))
    assert single.dtype == jnp.float32
    assert float(single) == 2.0
    # A model in single precision that was returned in half: what was sent counts.
    mixed = difference(jnp.float32(1.001), jnp.bfloat16(1.0))
    assert float(mixed) == pytest.approx(0.001, rel=1e-4)


def test_workers_may_hold_the_model_in_a_type_of_their_own(params: Any) -> None:
    awkward = jax.tree.map(lambda leaf: leaf + 1.2345678, params)
    parts = everything(jnp.bfloat16).take(awkward)
    assert {leaf.dtype for leaf in jax.tree.leaves(parts)} == {jnp.dtype("bfloat16")}
    jax.tree.map(
        lambda part, leaf: np.testing.assert_array_equal(
            part[0], leaf.astype(jnp.bfloat16)
        ),
        parts,
        awkward,
    )
    # What comes back is put together as it is: pseudo-gradients are float32.
    put = everything(jnp.bfloat16).put(
        jax.tree.map(lambda leaf: leaf[None], awkward), jnp.ones(1, bool)
    )
    jax.tree.map(np.testing.assert_array_equal, put, awkward)
    kept = everything().take({"w": jnp.ones(2, jnp.float16)})
    assert kept["w"].dtype == jnp.float16
