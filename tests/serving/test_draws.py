"""Draws depend on the seed and the place alone, and follow the distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from spheroid_jax.models import VOCABULARY
from spheroid_jax.serving import draws

WIDTH = 5
SIDE = 64  # rows, and positions, of whatever is drawn: one shape to compile
eps = jax.jit(draws.eps, static_argnums=2)
gumbel = jax.jit(draws.gumbel)
filtered = jax.jit(draws.filtered)
draw = jax.jit(draws.draw)


def test_noise_is_the_documented_function_of_seed_and_index() -> None:
    """What peers of another version must reproduce, so it never changes."""
    seeds, indices = np.array([7, 2**32 - 1], np.uint32), np.array([[0, 3], [3, 900]])
    noise = eps(jnp.asarray(seeds), jnp.asarray(indices), WIDTH)
    choice = gumbel(jnp.asarray(seeds), jnp.asarray(indices))
    for row, seed in enumerate(seeds):
        for column, index in enumerate(indices[row]):
            keys = [
                jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), use), index)
                for use in (0, 1)
            ]
            np.testing.assert_array_equal(
                noise[row, column], jax.random.normal(keys[0], (WIDTH,))
            )
            np.testing.assert_array_equal(
                choice[row, column], jax.random.gumbel(keys[1], (VOCABULARY,))
            )


def test_noise_does_not_depend_on_the_place_in_a_batch() -> None:
    seeds = jnp.array([5, 6, 5], jnp.uint32)
    indices = jnp.array([[4, 5, 6], [4, 5, 6], [5, 4, 9]])
    for noise in (np.asarray(eps(seeds, indices, WIDTH)), gumbel(seeds, indices)):
        np.testing.assert_array_equal(noise[0, 0], noise[2, 1])
        np.testing.assert_array_equal(noise[0, 1], noise[2, 0])
        different = np.asarray(noise)[[0, 0, 0, 1, 1, 1, 2], [0, 1, 2, 0, 1, 2, 2]]
        assert len(np.unique(different, axis=0)) == 7


def test_noise_of_the_chain_is_standard_normal_and_independent() -> None:
    indices = jnp.arange(4000)[None]
    x = np.asarray(eps(jnp.array([1], jnp.uint32), indices, WIDTH))[0]
    assert scipy.stats.kstest(x.ravel(), "norm").pvalue > 1e-3
    correlation = np.corrcoef(np.concatenate([x[:-1], x[1:]], axis=1).T)
    assert np.abs(correlation - np.eye(2 * WIDTH)).max() < 0.07  # 4.4 deviations


LOGITS = 2.0 * np.random.default_rng(0).standard_normal(VOCABULARY).astype(np.float32)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.5, 0, 1.0), (1.0, 7, 1.0), (1.5, 0, 0.6)],
)
def test_draws_follow_the_distribution(
    temperature: float, top_k: int, top_p: float
) -> None:
    seeds = np.arange(SIDE) % 2  # so that a row of indices isn't used alone
    got = draw(
        jnp.broadcast_to(jnp.asarray(LOGITS), (SIDE, SIDE, VOCABULARY)),
        jnp.asarray(seeds, jnp.uint32),
        jnp.arange(SIDE * SIDE).reshape(SIDE, SIDE),
        jnp.full(SIDE, temperature, jnp.float32),
        jnp.full(SIDE, top_k, jnp.int32),
        jnp.full(SIDE, top_p, jnp.float32),
    )
    counts = np.bincount(np.ravel(got), minlength=VOCABULARY)
    expected = SIDE**2 * naive(LOGITS, temperature, top_k, top_p)
    assert not np.any(counts[expected == 0])
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    awaited = np.append(expected[~rare], expected[rare].sum())
    if awaited[-1] < 5:
        observed, awaited = observed[:-1], awaited[:-1]
        awaited *= observed.sum() / awaited.sum()
    assert scipy.stats.chisquare(observed, awaited).pvalue > 1e-3


def naive(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float
) -> np.ndarray:
    """Probabilities that are drawn from, in float64 and by loops."""
    order = sorted(range(len(logits)), key=lambda byte: (-logits[byte], byte))
    if temperature == 0:
        return np.eye(len(logits))[order[0]]
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    kept = order[:top_k] if top_k > 0 else order
    nucleus: list[int] = []
    total, held = sum(weights[kept]), 0.0
    for byte in kept:
        if nucleus and held >= top_p * total:
            break
        nucleus.append(byte)
        held += weights[byte]
    out = np.zeros(len(logits))
    out[nucleus] = weights[nucleus] / held
    return out


@given(
    values=st.lists(st.integers(-3, 3), min_size=VOCABULARY, max_size=VOCABULARY),
    rows=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.3, 1.0, 2.5]),
            st.sampled_from([-1, 0, 1, 2, 100, 256, 1000]),
            st.sampled_from([0.0, 1e-9, 0.3001, 0.9001, 1.0, 2.0]),
        ),
        min_size=4,
        max_size=4,
    ),
)
@settings(max_examples=60, deadline=None)
def test_filters_equal_a_naive_reading_with_many_ties(
    values: list[int], rows: list[tuple[float, int, float]]
) -> None:
    logits = np.array(values, np.float32)
    temperature, top_k, top_p = (np.array(column) for column in zip(*rows, strict=True))
    got = filtered(
        jnp.broadcast_to(jnp.asarray(logits), (4, 1, VOCABULARY)),
        jnp.asarray(temperature, jnp.float32),
        jnp.asarray(top_k, jnp.int32),
        jnp.asarray(top_p, jnp.float32),
    )
    shares = np.asarray(jax.nn.softmax(got))[:, 0]
    for row, parameters in enumerate(rows):
        expected = naive(logits, *parameters)
        np.testing.assert_array_equal(shares[row] > 0, expected > 0)
        np.testing.assert_allclose(shares[row], expected, rtol=1e-4, atol=1e-7)


def choose(logits: np.ndarray, temperature: float) -> np.ndarray:
    """What 64 seeds draw at 64 places."""
    return np.asarray(
        draw(
            jnp.broadcast_to(jnp.asarray(logits), (SIDE, SIDE, VOCABULARY)),
            jnp.arange(SIDE).astype(jnp.uint32),
            jnp.broadcast_to(jnp.arange(SIDE), (SIDE, SIDE)),
            jnp.full(SIDE, temperature, jnp.float32),
            jnp.zeros(SIDE, jnp.int32),
            jnp.ones(SIDE, jnp.float32),
        )
    )


@pytest.mark.parametrize("temperature", [0.0, 1e-38, 1e-6])
def test_without_heat_the_best_byte_is_drawn(temperature: float) -> None:
    logits = LOGITS * 1e4
    assert set(choose(logits, temperature).ravel()) == {int(np.argmax(logits))}


def test_of_equals_the_lowest_is_best_without_heat_and_any_is_with_it() -> None:
    logits = np.zeros(VOCABULARY, np.float32)
    logits[[9, 200]] = 50.0
    assert set(choose(logits, 0.0).ravel()) == {9}
    assert set(choose(logits, 1.0).ravel()) == {9, 200}


def test_great_heat_is_uniform() -> None:
    counts = np.bincount(choose(LOGITS, 1e30).ravel(), minlength=VOCABULARY)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_a_row_draws_the_same_anywhere_and_beside_any_other() -> None:
    rng = np.random.default_rng(1)
    arguments = (
        rng.standard_normal((SIDE, SIDE, VOCABULARY)).astype(np.float32),
        rng.integers(0, 2**32, SIDE).astype(np.uint32),
        rng.integers(0, 1000, (SIDE, SIDE)).astype(np.int32),
        rng.choice([0.0, 0.5, 1.0, 2.0], SIDE).astype(np.float32),
        rng.choice([0, 1, 20], SIDE).astype(np.int32),
        rng.choice([0.5, 1.0], SIDE).astype(np.float32),
    )
    order = rng.permutation(SIDE)
    here = np.asarray(draw(*arguments))
    there = np.asarray(draw(*(argument[order] for argument in arguments)))
    np.testing.assert_array_equal(there, here[order])
    # Without its neighbours: no other row has a filter, nor heat.
    alone = [np.zeros_like(argument) for argument in arguments]
    alone[5] += 1.0
    for row in range(4):
        for one, argument in zip(alone, arguments, strict=True):
            one[0] = argument[row]
        np.testing.assert_array_equal(np.asarray(draw(*alone))[0], here[row])


OTHER = LOGITS + np.random.default_rng(1).standard_normal(VOCABULARY).astype(np.float32)
coupled = jax.jit(draws.coupled)


def many(logits: np.ndarray) -> jax.Array:
    return jnp.broadcast_to(jnp.asarray(logits), (SIDE, SIDE, VOCABULARY))


def both(temperature: float, top_k: int, top_p: float) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that were drafted by OTHER, and what LOGITS made of them."""
    asked = (
        jnp.arange(SIDE, dtype=jnp.uint32),
        jnp.broadcast_to(jnp.arange(SIDE)[None], (SIDE, SIDE)),
        jnp.full(SIDE, temperature, jnp.float32),
        jnp.full(SIDE, top_k, jnp.int32),
        jnp.full(SIDE, top_p, jnp.float32),
    )
    drafted = draw(many(OTHER), *asked)
    return np.asarray(drafted), np.asarray(coupled(many(LOGITS), many(OTHER), *asked))


def shares(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float
) -> np.ndarray:
    kept = filtered(
        jnp.asarray(logits)[None, None],
        jnp.full(1, temperature),
        jnp.full(1, top_k, jnp.int32),
        jnp.full(1, top_p),
    )
    return np.asarray(jax.nn.softmax(kept, axis=-1))[0, 0].astype(float)


@pytest.mark.parametrize("asked", [(1.0, 0, 1.0), (0.7, 20, 1.0), (1.3, 0, 0.8)])
def test_a_coupled_draw_follows_its_own_distribution_and_keeps_most_drafts(
    asked: tuple[float, int, float],
) -> None:
    drafted, chosen = both(*asked)
    p, q = shares(LOGITS, *asked), shares(OTHER, *asked)
    total = chosen.size
    often = p * total >= 8
    counts = np.bincount(chosen.ravel(), minlength=VOCABULARY)
    assert counts[p == 0].sum() == 0
    observed = [*counts[often], counts[~often].sum()]
    expected = [*(p[often] * total), p[~often].sum() * total]
    if expected[-1] < 1e-6:
        observed, expected = observed[:-1], expected[:-1]
    expected = np.array(expected, float)
    expected *= np.sum(observed) / np.sum(expected)
    assert scipy.stats.chisquare(observed, expected).pvalue > 1e-3
    # No coupling keeps more than one minus the total variation.
    best = np.minimum(p, q).sum()
    assert abs((chosen == drafted).mean() - best) < 4 * np.sqrt(0.25 / total)
    assert best < 0.8  # the two differ enough for that to say something


def test_a_draft_from_the_same_distribution_always_stands() -> None:
    asked = (
        jnp.arange(SIDE, dtype=jnp.uint32),
        jnp.broadcast_to(jnp.arange(SIDE)[None], (SIDE, SIDE)),
        *(jnp.full(SIDE, 0.9), jnp.zeros(SIDE, jnp.int32), jnp.full(SIDE, 0.95)),
    )
    same = coupled(many(LOGITS), many(LOGITS), *asked)
    np.testing.assert_array_equal(same, draw(many(LOGITS), *asked))


def test_a_greedy_coupled_draw_is_the_best_byte_whatever_the_draft() -> None:
    _, chosen = both(0.0, 0, 1.0)
    assert (chosen == LOGITS.argmax()).all()
