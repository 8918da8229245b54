"""The sampler chain with denoisers whose answer is known in advance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.diffusion import (
    GRIDS,
    ChainOutput,
    NoiseLevels,
    chain_grid,
    euler_step,
    run_chain,
)

NOISE = NoiseLevels()
VOCABULARY, WIDTH, SHAPE = 7, 5, (2, 3)


@pytest.fixture(scope="module")
def targets() -> jax.Array:
    return jax.random.normal(jax.random.key(1), (VOCABULARY, WIDTH))


@pytest.fixture(scope="module")
def bytes_to_find() -> jax.Array:
    return jax.random.randint(jax.random.key(2), SHAPE, 0, VOCABULARY)


@pytest.fixture(scope="module")
def pure_noise() -> jax.Array:
    return 10.0 * jax.random.normal(jax.random.key(3), (*SHAPE, WIDTH))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("official", [10, 1.6232, 1]), ("upper_edges", [10, 2.0711, 1.3436])],
)
def test_grids_of_three_blocks_are_those_of_the_specification(
    kind: str, expected: list[float]
) -> None:
    np.testing.assert_allclose(chain_grid(NOISE, 3, kind), expected, atol=5e-5)


@pytest.mark.parametrize("kind", GRIDS)
@pytest.mark.parametrize("blocks", [1, 2, 3, 12, 50])
def test_grids_start_at_the_highest_noise_and_strictly_fall(
    kind: str, blocks: int
) -> None:
    for noise in (NOISE, NoiseLevels(0.002, 80.0), NoiseLevels(0.1, 2.0)):
        grid = chain_grid(noise, blocks, kind)
        assert grid.shape == (blocks,)
        assert grid[0] == noise.sigma_max
        # In the precision that the chain runs in, too: no step may lead nowhere.
        assert np.all(np.diff(grid.astype(np.float32)) < 0)


def test_an_unknown_grid_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'linear'"):
        chain_grid(NOISE, 3, "linear")


def test_a_step_follows_the_probability_flow() -> None:
    """Against dz/dsigma = (z - yhat) / sigma, whose sign the paper prints flipped."""
    z, prediction = jnp.array([4.0, -2.0]), jnp.array([1.0, 1.0])
    sigma, following = 10.0, 9.0
    slope = (z - prediction) / sigma
    expected = z + (following - sigma) * slope
    got = euler_step(z, prediction, jnp.float32(following / sigma))
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    # All noise gone: the prediction itself.
    np.testing.assert_array_equal(euler_step(z, prediction, jnp.float32(0)), prediction)


@jax.jit
def with_perfect_blocks(
    y: jax.Array, z: jax.Array, grid: jax.Array, targets: jax.Array
) -> ChainOutput:
    """A chain of denoisers that are certain of y, whatever they see."""

    def denoise(block: jax.Array, z: jax.Array, sigma: jax.Array) -> jax.Array:
        del block, z, sigma
        return 1e4 * jax.nn.one_hot(y, VOCABULARY)

    return run_chain(denoise, jnp.zeros(grid.shape), z, grid, targets)


@pytest.mark.parametrize("kind", GRIDS)
@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_a_perfect_denoiser_lands_where_the_formula_says(
    kind: str,
    blocks: int,
    targets: jax.Array,
    bytes_to_find: jax.Array,
    pure_noise: jax.Array,
) -> None:
    grid = jnp.asarray(chain_grid(NOISE, blocks, kind), jnp.float32)
    out = with_perfect_blocks(bytes_to_find, pure_noise, grid, targets)
    goal = np.asarray(targets)[np.asarray(bytes_to_find)].astype(np.float64)
    left = chain_grid(NOISE, blocks, kind)[-1] / NOISE.sigma_max
    expected = goal + left * (np.asarray(pure_noise, np.float64) - goal)
    np.testing.assert_allclose(out.z, expected, rtol=2e-5, atol=2e-6)
    assert out.logits.shape == (blocks, *SHAPE, VOCABULARY)
    np.testing.assert_array_equal(jnp.argmax(out.logits[-1], -1), bytes_to_find)


@pytest.mark.parametrize("kind", GRIDS)
def test_every_block_but_the_last_moves_z_towards_its_prediction(
    kind: str, targets: jax.Array, bytes_to_find: jax.Array, pure_noise: jax.Array
) -> None:
    blocks = 4
    grid = jnp.asarray(chain_grid(NOISE, blocks, kind), jnp.float32)
    goal = np.asarray(targets)[np.asarray(bytes_to_find)]
    distances = [
        np.linalg.norm(
            with_perfect_blocks(bytes_to_find, pure_noise, grid[:n], targets).z - goal
        )
        for n in range(1, blocks + 1)
    ]
    # A chain of n blocks ends in front of the nth; that is what each one is handed.
    np.testing.assert_allclose(distances / distances[0], grid / grid[0], rtol=1e-4)
    assert np.all(np.diff(distances) < 0)


def test_blocks_are_met_in_order_each_with_its_own_level(
    targets: jax.Array, pure_noise: jax.Array
) -> None:
    grid = jnp.asarray(chain_grid(NOISE, 4, "official"), jnp.float32)

    def report(block: jax.Array, z: jax.Array, sigma: jax.Array) -> jax.Array:
        assert sigma.shape == z.shape[:1]
        seen = jnp.stack(
            [jnp.full(SHAPE, block), jnp.broadcast_to(sigma[:, None], SHAPE)]
        )
        rest = jnp.zeros((VOCABULARY - 2, *SHAPE))
        return jnp.moveaxis(jnp.concatenate([seen, rest]), 0, -1)

    names = jnp.array([100.0, 101.0, 102.0, 103.0])
    logits = run_chain(report, names, pure_noise, grid, targets).logits
    for place in range(4):
        assert np.all(np.asarray(logits[place, ..., 0]) == 100 + place)
        np.testing.assert_array_equal(
            logits[place, ..., 1], np.full(SHAPE, np.asarray(grid)[place])
        )


def test_a_block_is_handed_the_mean_target_of_its_predecessor(
    targets: jax.Array, pure_noise: jax.Array
) -> None:
    """Two blocks worked by hand: z_1 = r z_0 + (1 - r) softmax(logits) @ Ehat."""
    grid = jnp.array([10.0, 4.0])
    logits = np.linspace(-1.0, 1.0, VOCABULARY)

    def denoise(block: jax.Array, z: jax.Array, sigma: jax.Array) -> jax.Array:
        del sigma
        # The second block shows what it was handed.
        shown = jnp.pad(z, ((0, 0), (0, 0), (0, VOCABULARY - WIDTH)))
        return jnp.where(block == 0, jnp.broadcast_to(logits, shown.shape), shown)

    out = run_chain(denoise, jnp.arange(2), pure_noise, grid, targets)
    probability = np.exp(logits) / np.exp(logits).sum()
    expected = 0.4 * np.asarray(pure_noise) + 0.6 * (probability @ np.asarray(targets))
    np.testing.assert_allclose(out.logits[1, ..., :WIDTH], expected, rtol=1e-5)


def test_one_block_answers_from_pure_noise(
    targets: jax.Array, pure_noise: jax.Array
) -> None:
    for kind in GRIDS:
        grid = jnp.asarray(chain_grid(NOISE, 1, kind), jnp.float32)
        np.testing.assert_array_equal(grid, [10.0])

        def denoise(block: jax.Array, z: jax.Array, sigma: jax.Array) -> jax.Array:
            del block
            return z @ targets.T / sigma[:, None, None]

        out = run_chain(denoise, jnp.zeros(1), pure_noise, grid, targets)
        np.testing.assert_array_equal(out.z, pure_noise)
        np.testing.assert_allclose(
            out.logits[0], pure_noise @ targets.T / 10.0, rtol=1e-5, atol=1e-6
        )
