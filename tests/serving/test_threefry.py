"""The written-out generator against its published vector and ``jax.random``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.serving import draws, threefry

SEEDS = np.array([0, 7, 2**32 - 1], np.uint32)
INDICES = np.array([[0, 3], [3, 900], [2**31 - 1, 1]], np.int32)


def test_the_published_vector() -> None:
    """Of Random123, known answers: 20 rounds, all zero."""
    zero = jnp.zeros((), jnp.uint32)
    left, right = threefry.hashed((zero, zero), zero)
    assert (int(left), int(right)) == (0x6B200159, 0x99BA4EFE)


@pytest.mark.parametrize("count", [1, 5])
def test_bits_are_those_of_the_keys_that_jax_derives(count: int) -> None:
    found = jax.jit(threefry.bits, static_argnums=(0, 3))((2, 0), SEEDS, INDICES, count)
    for p, purpose in enumerate((2, 0)):
        for row, seed in enumerate(SEEDS):
            own = jax.random.fold_in(jax.random.key(seed), purpose)
            for column, index in enumerate(INDICES[row]):
                expected = jax.random.bits(jax.random.fold_in(own, index), (count,))
                np.testing.assert_array_equal(found[p, row, column], expected)


def test_numbers_are_those_that_jax_makes_of_the_bits() -> None:
    key = jax.random.key(3)
    words = jax.random.bits(key, (1000,))
    for low in (0.0, -0.5, float(np.finfo(np.float32).tiny)):
        np.testing.assert_array_equal(
            threefry.uniform(words, low), jax.random.uniform(key, (1000,), minval=low)
        )


def test_the_ends_of_the_range_are_reached_and_never_left() -> None:
    words = jnp.array([0, 0x1FF, 0x200, 2**32 - 1], jnp.uint32)
    got = np.asarray(threefry.uniform(words, 0.0))
    np.testing.assert_array_equal(got, [0, 0, 2.0**-23, 1 - 2.0**-23])


def test_draws_have_no_loop_that_takes_long_to_compile() -> None:
    """As each call of the generator in ``jax.random`` is on a CPU."""
    logits = jnp.zeros((1, 2, 256))
    asked = (SEEDS[:1], INDICES[:1], np.ones(1), np.zeros(1, np.int32), np.ones(1))
    text = jax.jit(draws.coupled).lower(logits, logits, *asked).as_text()
    assert "while" not in text
