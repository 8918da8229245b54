"""CE_chain and its companions on a model that is simple enough for NumPy.

Its logits are a part that reads z and a part that reads the context, each as loud as
the block's parameters say.
"""

import functools
import math
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax import evaluation
from spheroid_jax.diffusion import NoiseLevels, block_ranges, chain_grid

VOCABULARY, BLOCKS, RADIUS = 12, 3, 0.45
WINDOWS, LENGTH = 8, 10
NOISE = NoiseLevels()
GRID = chain_grid(NOISE, BLOCKS, "upper_edges").astype(np.float32)
RANGES = block_ranges(NOISE, BLOCKS).astype(np.float32)


class Linear:
    """Stands in for a denoiser; as wide as its vocabulary, targets along the axes."""

    transformer = SimpleNamespace(width=VOCABULARY)

    def targets(self, interface: Any) -> jax.Array:
        del interface
        return RADIUS * jnp.eye(VOCABULARY)

    def logits(
        self, block: Any, interface: Any, x: Any, z: Any, sigma: Any
    ) -> jax.Array:
        from_z = block["reads_z"] * z / sigma[:, None, None]
        return from_z + block["reads_x"] * interface["bigram"][x]


LINEAR = Linear()


def model_of(reads_z: float, reads_x: float) -> Any:
    """Parameters of blocks that grow bolder along the chain."""
    bolder = np.linspace(1.0, 1.5, BLOCKS, dtype=np.float32)
    bigram = np.random.default_rng(5).standard_normal((VOCABULARY, VOCABULARY))
    return {
        "blocks": {
            "reads_z": jnp.asarray(reads_z * bolder),
            "reads_x": jnp.asarray(reads_x * bolder),
        },
        "interface": {"bigram": jnp.asarray(bigram, jnp.float32)},
    }


BOTH, CONTEXT, READER = model_of(1.0, 1.0), model_of(0.0, 1.0), model_of(1.0, 0.0)
KEY = jax.random.key(11)


@jax.jit
def chain(params: Any, x: Any, key: jax.Array) -> jax.Array:
    return evaluation.chain(Linear(), params, GRID, x, key)


@jax.jit
def chain_metrics(params: Any, grid: Any, windows: Any) -> Any:
    return evaluation.evaluate_chain(Linear(), params, grid, windows, KEY)


@functools.partial(jax.jit, static_argnames=("model",))
def local_metrics(
    params: Any, noise: NoiseLevels, ranges: Any, windows: Any, lent: Any, model: Any
) -> Any:
    return evaluation.evaluate_local(model, params, noise, ranges, windows, lent, KEY)


@pytest.fixture(scope="module")
def windows() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, VOCABULARY, (WINDOWS, LENGTH + 1)).astype(np.uint8)


def log_softmax(logits: Any) -> np.ndarray:
    wide = np.asarray(logits, np.float64)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def ce(logits: Any, windows: np.ndarray) -> float:
    y = windows[:, 1:, None].astype(int)
    return float(-np.mean(np.take_along_axis(log_softmax(logits), y, -1)))


def met(params: Any, windows: np.ndarray, key: jax.Array = KEY) -> np.ndarray:
    """Logits of every block on the chain, (B, N, T, V)."""
    return np.asarray(chain(params, windows[:, :-1].astype(np.int32), key), np.float64)


class TestChain:
    def test_begins_in_pure_noise_at_the_highest_level(
        self, windows: np.ndarray
    ) -> None:
        """The first reader shows z_0 / sigma_max: standard normal, knowing nothing."""
        z = met(READER, np.tile(windows, (20, 1)))[0]
        assert np.mean(z) == pytest.approx(0.0, abs=0.03)
        assert np.std(z) == pytest.approx(1.0, abs=0.02)
        assert np.abs(np.corrcoef(z.reshape(160, -1)) - np.eye(160)).max() < 0.5

    def test_hands_z_from_block_to_block_as_the_equations_say(
        self, windows: np.ndarray
    ) -> None:
        logits, x = met(BOTH, windows), windows[:, :-1]
        bigram = np.asarray(BOTH["interface"]["bigram"], np.float64)[x]
        z = GRID[0] * (logits[0] - bigram)
        for b in range(1, BLOCKS):
            p = np.exp(log_softmax(logits[b - 1]))
            ratio = GRID[b] / GRID[b - 1]
            z = ratio * z + (1 - ratio) * RADIUS * p
            bold = 1.0 + 0.25 * b
            np.testing.assert_allclose(
                logits[b], bold * (z / GRID[b] + bigram), rtol=1e-4, atol=1e-4
            )

    def test_is_told_nothing_but_its_key(self, windows: np.ndarray) -> None:
        again, other = met(BOTH, windows), met(BOTH, windows, jax.random.key(12))
        np.testing.assert_array_equal(met(BOTH, windows), again)
        assert not np.any(again == other)

    def test_metrics_are_the_cross_entropies_of_what_it_met(
        self, windows: np.ndarray
    ) -> None:
        got = chain_metrics(BOTH, GRID, windows)
        logits = met(BOTH, windows)
        ensemble = np.mean(log_softmax(logits), axis=0)
        expected = {
            "ce_chain": ce(logits[-1], windows),
            "ce_first": ce(logits[0], windows),
            # The mean of log-probabilities, made to sum to one again.
            "ce_ensemble": ce(ensemble, windows),
        }
        assert set(got) == set(expected)
        for name, value in expected.items():
            assert float(got[name]) == pytest.approx(value, rel=1e-5), name
        assert len({round(value, 3) for value in expected.values()}) == 3


class TestEnsemble:
    def test_is_the_renormalised_geometric_mean(self) -> None:
        logits = np.random.default_rng(1).normal(size=(3, 2, 4, 5))
        p = np.exp(log_softmax(logits))
        geometric = np.prod(p, axis=0) ** (1 / 3)
        expected = geometric / geometric.sum(-1, keepdims=True)
        got = np.exp(evaluation.ensemble_log_probabilities(jnp.asarray(logits)))
        np.testing.assert_allclose(got, expected, rtol=1e-5)
        np.testing.assert_allclose(got.sum(-1), 1.0, rtol=1e-5)
        # And not the arithmetic one, which is a mixture.
        assert np.abs(got - p.mean(0)).max() > 0.01

    def test_of_one_block_is_that_block(self) -> None:
        logits = np.random.default_rng(1).normal(size=(1, 2, 4, 5))
        got = evaluation.ensemble_log_probabilities(jnp.asarray(logits))
        np.testing.assert_allclose(got, log_softmax(logits[0]), rtol=1e-5)

    def test_does_not_depend_on_how_logits_are_shifted(self) -> None:
        logits = np.random.default_rng(1).normal(size=(3, 1, 4, 5)).astype(np.float32)
        shifted = logits + np.array([5, 0, -9], np.float32)[:, None, None, None]
        np.testing.assert_allclose(
            evaluation.ensemble_log_probabilities(jnp.asarray(logits)),
            evaluation.ensemble_log_probabilities(jnp.asarray(shifted)),
            rtol=1e-4,
            atol=1e-5,
        )


class TestMix:
    DRAWS = 4

    @pytest.fixture(scope="class")
    @staticmethod
    def mixed(windows: np.ndarray) -> float:
        result = evaluation.evaluate_mix(
            Linear(), BOTH, GRID, windows, KEY, TestMix.DRAWS
        )
        return float(result["ce_mix"])

    @pytest.fixture(scope="class")
    @staticmethod
    def drawn(windows: np.ndarray) -> list[np.ndarray]:
        keys = jax.random.split(KEY, TestMix.DRAWS)
        return [met(BOTH, windows, key)[-1] for key in keys]

    def test_is_minus_the_log_of_the_mean_probability(
        self, windows: np.ndarray, mixed: float, drawn: list[np.ndarray]
    ) -> None:
        y = windows[:, 1:, None].astype(int)
        p = [np.exp(np.take_along_axis(log_softmax(logits), y, -1)) for logits in drawn]
        expected = -np.mean(np.log(np.mean(p, axis=0)))
        assert mixed == pytest.approx(expected, rel=1e-5)

    def test_with_one_draw_is_the_cross_entropy_of_a_chain(
        self, windows: np.ndarray
    ) -> None:
        got = evaluation.evaluate_mix(Linear(), BOTH, GRID, windows, KEY, 1)
        alone = met(BOTH, windows, jax.random.split(KEY, 1)[0])[-1]
        assert float(got["ce_mix"]) == pytest.approx(ce(alone, windows), rel=1e-5)

    def test_is_below_the_mean_of_its_draws(
        self, windows: np.ndarray, mixed: float, drawn: list[np.ndarray]
    ) -> None:
        assert mixed < np.mean([ce(logits, windows) for logits in drawn]) - 0.01


class TestLocal:
    @staticmethod
    def local(
        params: Any,
        windows: np.ndarray,
        *,
        noise: NoiseLevels = NOISE,
        model: Any = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        ranges = jnp.asarray(block_ranges(noise, BLOCKS), jnp.float32)
        lent = np.roll(windows, 3, axis=0)
        got = local_metrics(params, noise, ranges, windows, lent, model or LINEAR)
        assert got["local_ce"].shape == got["scrambled_gap"].shape == (BLOCKS,)
        return np.asarray(got["local_ce"]), np.asarray(got["scrambled_gap"])

    def test_gap_of_blocks_that_ignore_their_context_is_zero(
        self, windows: np.ndarray
    ) -> None:
        _, gap = self.local(READER, windows)
        np.testing.assert_allclose(gap, 0.0, atol=1e-6)

    def test_gap_of_blocks_that_live_on_their_context_is_its_worth(
        self, windows: np.ndarray
    ) -> None:
        local, gap = self.local(CONTEXT, windows)
        lent = np.roll(windows, 3, axis=0)
        bigram = np.asarray(CONTEXT["interface"]["bigram"])
        for b in range(BLOCKS):
            bold = 1.0 + 0.25 * b
            own = ce(bold * bigram[windows[:, :-1]], windows)
            other = ce(bold * bigram[lent[:, :-1]], windows)
            assert local[b] == pytest.approx(own, rel=1e-5)
            assert gap[b] == pytest.approx(other - own, abs=1e-5)
        assert np.abs(gap).min() > 1e-3

    def test_targets_leak_out_of_low_noise_and_the_chain_collapses(
        self, windows: np.ndarray
    ) -> None:
        """The signature that the sigma ablation shows: [0.1, 2] against [1, 10]."""
        low = NoiseLevels(0.01, 0.05)
        reader = model_of(4.0, 0.0)
        local, gap = self.local(reader, windows, noise=low)
        np.testing.assert_allclose(gap, 0.0, atol=1e-6)
        assert np.all(local < 0.01)
        grid = jnp.asarray(chain_grid(low, BLOCKS, "official"), jnp.float32)
        got = chain_metrics(reader, grid, windows)
        assert float(got["ce_chain"]) > math.log(VOCABULARY) + 1.0

    def test_each_block_is_asked_about_noise_of_its_own_range(
        self, windows: np.ndarray
    ) -> None:
        class Loud(Linear):
            """As sure of byte 0 as the noise is loud."""

            def logits(
                self, block: Any, interface: Any, x: Any, z: Any, sigma: Any
            ) -> jax.Array:
                favourite = jax.nn.one_hot(jnp.zeros_like(x), VOCABULARY)
                return sigma[:, None, None] * favourite

        local, _ = self.local(BOTH, np.zeros_like(windows), model=Loud())
        sigma = np.log((VOCABULARY - 1) / np.expm1(local))
        assert np.all(RANGES[:, 0] < sigma)
        assert np.all(sigma < RANGES[:, 1])


class TestEvaluators:
    @pytest.fixture(scope="class")
    @staticmethod
    def full() -> Any:
        return jax.jit(
            evaluation.full_evaluator(
                Linear(), NOISE, jnp.asarray(GRID), jnp.asarray(RANGES), 4, 3
            )
        )

    def test_the_curve_and_the_table_agree_on_the_chain(
        self, full: Any, windows: np.ndarray
    ) -> None:
        curve = jax.jit(evaluation.chain_evaluator(Linear(), jnp.asarray(GRID), 4))
        short, long = curve(BOTH, windows, KEY), full(BOTH, windows, KEY)
        assert set(short) == {"ce_chain", "ce_first", "ce_ensemble"}
        assert set(long) == set(short) | {"ce_mix", "local_ce", "scrambled_gap"}
        for name, value in short.items():
            assert float(long[name]) == pytest.approx(float(value), rel=1e-6)

    def test_every_window_counts_once_and_borrows_from_the_one_before(
        self, full: Any, windows: np.ndarray
    ) -> None:
        """Over the whole slice and not within a batch."""
        got = full(CONTEXT, windows, KEY)
        bigram = np.asarray(CONTEXT["interface"]["bigram"])
        lent = np.roll(windows, 1, axis=0)
        own = ce(bigram[windows[:, :-1]], windows)
        other = ce(bigram[lent[:, :-1]], windows)
        assert float(got["ce_first"]) == pytest.approx(own, rel=1e-5)
        assert float(got["local_ce"][0]) == pytest.approx(own, rel=1e-5)
        assert float(got["scrambled_gap"][0]) == pytest.approx(other - own, abs=1e-5)
        # Without noise in the answer, draws and chain are one: CE_mix = CE_chain.
        assert float(got["ce_mix"]) == pytest.approx(float(got["ce_chain"]), rel=1e-5)

    def test_batches_have_noise_of_their_own(
        self, full: Any, windows: np.ndarray
    ) -> None:
        """Two equal batches under one noise would give what the first gives alone."""
        twice = np.concatenate([windows[:4], windows[:4]])
        first_key, second_key = jax.random.split(KEY, 2)
        first, second = (
            ce(met(BOTH, windows[:4], key)[-1], windows[:4])
            for key in (first_key, second_key)
        )
        assert abs(first - second) > 1e-3
        got = float(full(BOTH, twice, KEY)["ce_chain"])
        assert got == pytest.approx((first + second) / 2, rel=1e-5)

    @pytest.mark.parametrize("batch", [2, 8])
    def test_a_reference_is_its_cross_entropy_whatever_the_batch(
        self, batch: int, windows: np.ndarray
    ) -> None:
        reference = SimpleNamespace(logits=lambda params, x: params["bigram"][x])
        params = BOTH["interface"]
        got = jax.jit(evaluation.reference_evaluator(reference, batch))(
            params, windows, KEY
        )
        expected = ce(np.asarray(params["bigram"])[windows[:, :-1]], windows)
        assert set(got) == {"ce"}
        assert float(got["ce"]) == pytest.approx(expected, rel=1e-5)
