"""Which noise a block owns: boundaries, order, ranges and the distribution of draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spheroid_jax.diffusion import (
    GRIDS,
    NoiseLevels,
    block_ranges,
    boundaries,
    chain_grid,
    sample_sigma,
    sigma_to_block,
)

HIGH = NoiseLevels()
WIDE = NoiseLevels(sigma_min=0.002, sigma_max=80.0)
LOW = NoiseLevels(sigma_min=0.1, sigma_max=2.0)


draw = jax.jit(sample_sigma, static_argnums=3)


def log_normal(noise: NoiseLevels) -> "scipy.stats.rv_frozen":
    """SciPy's own log-normal with the same two parameters."""
    return scipy.stats.lognorm(s=noise.p_std, scale=np.exp(noise.p_mean))


def truncated_cdf(
    noise: NoiseLevels, low: float, high: float, sigma: np.ndarray
) -> np.ndarray:
    full = log_normal(noise)
    return (full.cdf(sigma) - full.cdf(low)) / (full.cdf(high) - full.cdf(low))


@pytest.mark.parametrize(
    ("noise", "blocks", "expected"),
    [
        (HIGH, 2, [1, 1.6232, 10]),
        (HIGH, 3, [1, 1.3436, 2.0711, 10]),
        (HIGH, 4, [1, 1.2379, 1.6232, 2.4285, 10]),
        (HIGH, 6, [1, 1.1475, 1.3436, 1.6232, 2.0711, 2.9892, 10]),
        (WIDE, 4, [0.002, 0.1341, 0.3012, 0.6766, 80]),
    ],
)
def test_boundaries_are_those_of_the_specification(
    noise: NoiseLevels, blocks: int, expected: list[float]
) -> None:
    edges = boundaries(noise, blocks)
    assert edges.dtype == np.float64
    np.testing.assert_allclose(edges, expected, atol=5e-5)


def test_cumulative_probability_has_the_published_values() -> None:
    assert float(HIGH.cdf(1.0)) == pytest.approx(0.84134, abs=5e-6)
    assert float(HIGH.cdf(10.0)) == pytest.approx(0.99824, abs=5e-6)


def test_quantile_inverts_the_cumulative_probability() -> None:
    sigma = np.geomspace(0.1, 2.0, 7)
    np.testing.assert_allclose(LOW.quantile(LOW.cdf(sigma)), sigma, rtol=1e-12)


@pytest.mark.parametrize("noise", [HIGH, WIDE, LOW])
def test_quantiles_at_the_ends_are_clamped_and_not_zero_or_infinite(
    noise: NoiseLevels,
) -> None:
    with np.errstate(all="raise"):
        ends = noise.quantile(np.array([0.0, 1.0]))
    np.testing.assert_array_equal(ends, [noise.sigma_min, noise.sigma_max])


@pytest.mark.parametrize("noise", [HIGH, WIDE, LOW])
@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 12])
def test_every_block_owns_the_same_probability(noise: NoiseLevels, blocks: int) -> None:
    """By numerical integration of the density, not by the code's own quantiles."""
    density = scipy.stats.norm(noise.p_mean, noise.p_std).pdf
    mass = [
        scipy.integrate.quad(density, np.log(low), np.log(high))[0]
        for low, high in block_ranges(noise, blocks)
    ]
    np.testing.assert_allclose(mass, np.sum(mass) / blocks, rtol=1e-7)


@pytest.mark.parametrize("noise", [HIGH, WIDE, LOW])
def test_draws_of_the_whole_range_fall_equally_on_the_blocks(
    noise: NoiseLevels,
) -> None:
    count, blocks = 20_000, 5
    whole = jnp.array([noise.sigma_min, noise.sigma_max])
    sigma = np.asarray(draw(noise, jax.random.key(3), whole, (count,)))
    share = np.bincount(sigma_to_block(noise, blocks, sigma), minlength=blocks) / count
    # Four standard deviations of a binomial share.
    allowed = 4 * np.sqrt((1 / blocks) * (1 - 1 / blocks) / count)
    np.testing.assert_allclose(share, 1 / blocks, atol=allowed)


def test_block_zero_owns_the_highest_noise_everywhere_that_order_matters() -> None:
    for blocks in (2, 3, 4, 6, 12):
        ranges = block_ranges(HIGH, blocks)
        middles = np.sqrt(ranges[:, 0] * ranges[:, 1])
        assert ranges[0, 1] == HIGH.sigma_max
        assert ranges[-1, 0] == HIGH.sigma_min
        assert np.all(np.diff(middles) < 0)
        # The function, the ranges and the grid of the chain name the same owner.
        np.testing.assert_array_equal(
            sigma_to_block(HIGH, blocks, middles), np.arange(blocks)
        )
        grid = chain_grid(HIGH, blocks, "upper_edges")
        np.testing.assert_array_equal(grid, ranges[:, 1])


def test_official_grid_gives_a_block_a_level_of_its_own_range_or_its_edge() -> None:
    for blocks in (2, 3, 4, 6, 12):
        ranges = block_ranges(HIGH, blocks, overlap=0.0)
        grid = chain_grid(HIGH, blocks, "official")
        assert np.all(grid >= ranges[:, 0] - 1e-12)
        assert np.all(grid <= ranges[:, 1] + 1e-12)


def test_an_inner_edge_belongs_to_the_noisier_block_and_the_ends_to_their_own() -> None:
    edges = boundaries(HIGH, 3)
    np.testing.assert_array_equal(sigma_to_block(HIGH, 3, edges), [2, 1, 0, 0])
    below = np.nextafter(edges[1:], 0)
    np.testing.assert_array_equal(sigma_to_block(HIGH, 3, below), [2, 1, 0])


@pytest.mark.parametrize("sigma", [0.999, 10.001, 0.0])
def test_a_level_outside_the_range_belongs_to_nobody(sigma: float) -> None:
    with pytest.raises(ValueError, match=r"\[1.0, 10.0\]"):
        sigma_to_block(HIGH, 3, np.array([2.0, sigma]))


def test_one_block_owns_everything() -> None:
    for overlap in (0.0, 0.1):
        np.testing.assert_array_equal(
            block_ranges(HIGH, 1, overlap), [[HIGH.sigma_min, HIGH.sigma_max]]
        )
    np.testing.assert_array_equal(
        sigma_to_block(HIGH, 1, np.array([1.0, 2.0, 10.0])), [0, 0, 0]
    )


def test_overlap_widens_by_the_power_formula_and_is_clipped_to_the_range() -> None:
    gamma, blocks = 0.1, 3
    edges = [1.0, 1.3436, 2.0711, 10.0]
    expected = []
    for low, high in [(edges[2], edges[3]), (edges[1], edges[2]), (edges[0], edges[1])]:
        expected.append(
            [
                max(low * (low / high) ** gamma, 1.0),
                min(high * (high / low) ** gamma, 10.0),
            ]
        )
    widened = block_ranges(HIGH, blocks, gamma)
    np.testing.assert_allclose(widened, expected, rtol=1e-4)
    # Hand-worked: 2.0711 (2.0711 / 10)^0.1 = 1.7693.
    assert widened[0, 0] == pytest.approx(1.7693, abs=1e-4)
    # Neighbours do meet levels of each other now.
    assert np.all(widened[:-1, 0] < widened[1:, 1])


@settings(deadline=None, max_examples=60)
@given(
    low=st.floats(1e-3, 2.0),
    factor=st.floats(1.5, 1e4),
    p_mean=st.floats(-2.0, 1.0),
    p_std=st.floats(0.8, 2.0),
    blocks=st.integers(1, 16),
)
def test_ranges_tile_the_whole_and_agree_with_the_owner_for_any_distribution(
    low: float, factor: float, p_mean: float, p_std: float, blocks: int
) -> None:
    noise = NoiseLevels(low, low * factor, p_mean, p_std)
    edges = boundaries(noise, blocks)
    # So far out in a tail, validation refuses the configuration.
    assume(np.all(np.diff(noise.cdf(edges)) > 1e-6))
    ranges = block_ranges(noise, blocks)
    assert ranges.shape == (blocks, 2)
    assert ranges[0, 1] == noise.sigma_max
    assert ranges[-1, 0] == noise.sigma_min
    np.testing.assert_array_equal(ranges[:-1, 0], ranges[1:, 1])
    assert np.all(ranges[:, 0] < ranges[:, 1])
    inside = np.sqrt(ranges[:, 0] * ranges[:, 1])
    np.testing.assert_array_equal(
        sigma_to_block(noise, blocks, inside), np.arange(blocks)
    )
    for kind in GRIDS:
        grid = chain_grid(noise, blocks, kind)
        assert grid.shape == (blocks,)
        assert grid[0] == noise.sigma_max
        assert np.all(np.diff(grid) < 0)
        assert grid[-1] >= noise.sigma_min


@pytest.mark.parametrize("noise", [HIGH, WIDE, LOW])
@pytest.mark.parametrize("block", [0, 2])
def test_draws_stay_in_range_and_follow_the_truncated_log_normal(
    noise: NoiseLevels, block: int
) -> None:
    low, high = block_ranges(noise, 3, overlap=0.1)[block]
    sigma = draw(
        noise, jax.random.key(0), jnp.array([low, high], jnp.float32), (20_000,)
    )
    drawn = np.asarray(sigma)
    assert drawn.dtype == np.float32
    assert drawn.min() >= np.float32(low)
    assert drawn.max() <= np.float32(high)
    fit = scipy.stats.kstest(drawn, lambda s: truncated_cdf(noise, low, high, s))
    assert fit.pvalue > 0.01
    # The test is able to tell: uniform draws of the same range are not log-normal.
    uniform = np.random.default_rng(0).uniform(low, high, 20_000)
    other = scipy.stats.kstest(uniform, lambda s: truncated_cdf(noise, low, high, s))
    assert other.pvalue < 1e-6


def test_draws_depend_on_the_key_alone() -> None:
    whole = jnp.array([1.0, 10.0])
    first, again, other = (
        np.asarray(draw(HIGH, jax.random.key(seed), whole, (8,))) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.any(first == other)
