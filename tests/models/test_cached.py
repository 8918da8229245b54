"""Layers with a cache against the same layers on whole sequences."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spheroid_jax.models import TransformerShape
from spheroid_jax.models.cached import Cache, apply_layers_cached, init_cache
from spheroid_jax.models.transformer import apply_layers, init_layers

SHAPE = TransformerShape(width=16, heads=2, mlp_width=32, layers=2)
PLACES, SLOTS, ROWS, SIZE = 9, 4, 2, 4
step = jax.jit(apply_layers_cached, static_argnums=1)
whole = jax.jit(apply_layers, static_argnums=1)

chunks = st.lists(st.integers(0, SIZE), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def stack(filled: Callable[[Any], Any]) -> Any:
    return filled(
        jax.eval_shape(lambda k: init_layers(k, SHAPE, SHAPE.layers), jax.random.key(0))
    )


@pytest.fixture(scope="module")
def stream() -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.standard_normal((ROWS, PLACES, SHAPE.width)).astype(np.float32)


def broken() -> Cache:
    """A cache full of NaN, as a text that broke leaves it."""
    cache = init_cache(SHAPE, SHAPE.layers, SLOTS, PLACES)
    return jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), cache)


def take(
    stream: np.ndarray, starts: list[int], counts: list[int], size: int = SIZE
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of each row and their places; padding is NaN."""
    h = np.full((len(starts), size, stream.shape[-1]), np.nan, np.float32)
    places = np.full((len(starts), size), PLACES)
    for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
        h[row, :count] = stream[row, start : start + count]
        places[row, :count] = np.arange(start, start + count)
    return h, places


@pytest.mark.parametrize("rotary", [True, False])
def test_rows_in_any_pieces_equal_whole_sequences(
    rotary: bool, stack: Any, stream: np.ndarray
) -> None:
    shape = dataclasses.replace(SHAPE, rotary=rotary)
    expected = whole(stack, shape, stream)

    @given(pieces=st.tuples(chunks, chunks), slots=st.permutations(range(SLOTS)))
    @settings(max_examples=15, deadline=None)
    def check(pieces: tuple[list[int], list[int]], slots: list[int]) -> None:
        cache, done = broken(), [0, 0]
        rounds = max(map(len, pieces))
        for turn in range(rounds):
            counts = [
                min(own[turn], PLACES - done[row]) if turn < len(own) else 0
                for row, own in enumerate(pieces)
            ]
            h, places = take(stream, done, counts)
            # A row that has nothing to do has no slot in this call.
            rows = [slots[row] if counts[row] else -1 for row in range(ROWS)]
            out, cache = step(stack, shape, h, places, cache, jnp.array(rows))
            for row, count in enumerate(counts):
                here = slice(done[row], done[row] + count)
                np.testing.assert_allclose(
                    out[row, :count], expected[row, here], rtol=1e-4, atol=1e-5
                )
                done[row] += count

    check()


@pytest.mark.parametrize("size", [1, PLACES])
def test_byte_by_byte_and_all_at_once_are_the_same(
    size: int, stack: Any, stream: np.ndarray
) -> None:
    cache, got = broken(), []
    for start in range(0, PLACES, size):
        h, places = take(stream, [start] * ROWS, [size] * ROWS, size)
        out, cache = step(stack, SHAPE, h, places, cache, jnp.array([3, 0]))
        got.append(out)
    np.testing.assert_allclose(
        jnp.concatenate(got, axis=1),
        whole(stack, SHAPE, stream),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("out_of_range", [-1, SLOTS, -SLOTS])
def test_nothing_but_the_places_of_a_call_is_written(
    out_of_range: int, stack: Any, stream: np.ndarray
) -> None:
    rng = np.random.default_rng(2)
    before = jax.tree.map(
        lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), leaf.dtype),
        init_cache(SHAPE, SHAPE.layers, SLOTS, PLACES),
    )
    h, places = take(stream, [3, 0], [2, 4])
    _, after = step(stack, SHAPE, h, places, before, jnp.array([1, out_of_range]))
    written = np.zeros((SHAPE.layers, SLOTS, PLACES), bool)
    written[:, 1, 3:5] = True
    for old, new in zip(before, after, strict=True):
        changed = np.any(np.asarray(old) != np.asarray(new), axis=(-2, -1))
        np.testing.assert_array_equal(changed, written)


def test_positions_after_the_last_place_are_dropped(
    stack: Any, stream: np.ndarray
) -> None:
    h, places = take(stream, [0, 0], [4, 4])
    before = init_cache(SHAPE, SHAPE.layers, SLOTS, PLACES)
    _, after = step(stack, SHAPE, h, places + PLACES - 2, before, jnp.array([0, 1]))
    changed = np.any(np.asarray(after.keys) != 0, axis=(0, 3, 4))
    np.testing.assert_array_equal(np.nonzero(changed)[1], [7, 8, 7, 8])


def test_what_is_written_over_is_forgotten(stack: Any, stream: np.ndarray) -> None:
    """As after guesses that turned out wrong."""
    slots, cache = jnp.array([2, 1]), broken()
    h, places = take(stream, [0, 0], [4, 4])
    _, cache = step(stack, SHAPE, h, places, cache, slots)
    _, cache = step(stack, SHAPE, 1.0 - h, places + 4, cache, slots)
    got, _ = step(stack, SHAPE, *take(stream, [4, 4], [4, 4]), cache, slots)
    expected = whole(stack, SHAPE, stream)[:, 4:8]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_donated_cache_is_changed_in_place(stack: Any) -> None:
    slots = 4096
    cache = jax.eval_shape(lambda: init_cache(SHAPE, SHAPE.layers, slots, PLACES))
    h = jax.ShapeDtypeStruct((1, 1, SHAPE.width), jnp.float32)
    places = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    rows = jax.ShapeDtypeStruct((1,), jnp.int32)
    donating = jax.jit(apply_layers_cached, static_argnums=1, donate_argnums=4)
    compiled = donating.lower(stack, SHAPE, h, places, cache, rows).compile()
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in cache)
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes >= size
    assert memory.temp_size_in_bytes < size / 10


def test_keys_and_values_are_kept_in_the_dtype_of_activations() -> None:
    half = dataclasses.replace(SHAPE, compute_dtype="bfloat16")
    cache = init_cache(half, 3, SLOTS, PLACES)
    assert {leaf.dtype for leaf in cache} == {jnp.dtype("bfloat16")}
    assert {leaf.shape for leaf in cache} == {(3, SLOTS, PLACES, 2, 8)}
