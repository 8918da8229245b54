"""The loss that remains with ideal blocks, by Monte Carlo (spec section 5).

An ideal block knows p(y) of its context and multiplies in what z says, as if z were a
noisy target. But z started as noise that knew nothing, so what is left of it in the
last block misleads. The price ``CE_chain - H`` is about
``(1 - E sum p^2) / 2 (R / sigma_last)^2``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.diffusion import NoiseLevels, chain_grid, run_chain

VOCABULARY, POSITIONS, BLOCKS = 32, 6_000, 3
NOISE = NoiseLevels()


@pytest.fixture(scope="module")
def log_p() -> jax.Array:
    """Distributions of the next byte, one a position, of mean entropy 1.32 nats."""
    scores = jax.random.normal(jax.random.key(0), (1, POSITIONS, VOCABULARY))
    low, high = 0.5, 10.0
    for _ in range(40):
        middle = (low + high) / 2
        p = jax.nn.softmax(middle * scores)
        entropy = float(jnp.mean(-jnp.sum(p * jnp.log(p), axis=-1)))
        low, high = (middle, high) if entropy > 1.32 else (low, middle)
    assert entropy == pytest.approx(1.32, abs=0.005)
    return jax.nn.log_softmax(middle * scores)


@jax.jit
def excess(log_p: jax.Array, radius: jax.Array, grid: jax.Array) -> jax.Array:
    """CE_chain - H of ideal blocks; exact over y, sampled over the noise."""
    targets = radius * jnp.eye(VOCABULARY)

    def ideal(block: jax.Array, z: jax.Array, sigma: jax.Array) -> jax.Array:
        """log p(y | context, z) up to a constant; all targets have the same norm."""
        del block
        return log_p + z @ targets.T / sigma[:, None, None] ** 2

    def once(key: jax.Array) -> jax.Array:
        z = grid[0] * jax.random.normal(key, (1, POSITIONS, VOCABULARY))
        last = run_chain(ideal, jnp.zeros(grid.shape), z, grid, targets).logits[-1]
        return jnp.mean(
            jnp.sum(jnp.exp(log_p) * (log_p - jax.nn.log_softmax(last)), axis=-1)
        )

    return jnp.mean(jax.lax.map(once, jax.random.split(jax.random.key(7), 4)))


def floor(log_p: jax.Array, radius: float, sigma_last: float) -> float:
    p = np.exp(np.asarray(log_p, np.float64))
    return 0.5 * (1 - np.mean(np.sum(p**2, axis=-1))) * (radius / sigma_last) ** 2


def measured(log_p: jax.Array, radius: float, kind: str) -> tuple[float, float]:
    levels = chain_grid(NOISE, BLOCKS, kind)
    grid = jnp.asarray(levels, jnp.float32)
    value = float(excess(log_p, jnp.float32(radius), grid))
    return value, floor(log_p, radius, levels[-1])


@pytest.mark.parametrize(
    ("radius", "kind", "quoted"),
    [
        (1.0, "official", 0.31),
        (0.45, "official", 0.06),
        (0.45, "upper_edges", 0.03),
        (0.30, "official", 0.03),
    ],
)
def test_ideal_blocks_pay_the_quoted_price(
    log_p: jax.Array, radius: float, kind: str, quoted: float
) -> None:
    # At one entropy, sum p^2 still depends on the shape of p: hence the 15 %.
    value, _ = measured(log_p, radius, kind)
    assert value == pytest.approx(quoted, abs=max(0.006, 0.15 * quoted))


@pytest.mark.parametrize("kind", ["official", "upper_edges"])
@pytest.mark.parametrize(("radius", "tolerance"), [(0.45, 0.02), (1.0, 0.04)])
def test_the_price_follows_the_formula(
    log_p: jax.Array, radius: float, kind: str, tolerance: float
) -> None:
    value, formula = measured(log_p, radius, kind)
    assert value == pytest.approx(formula, rel=tolerance)


def test_only_radius_over_noise_matters(log_p: jax.Array) -> None:
    """Twice the radius under twice the noise is the same problem."""
    grid = jnp.array([10.0, 2.0, 1.0])
    one = excess(log_p, jnp.float32(0.45), grid)
    other = excess(log_p, jnp.float32(0.9), 2.0 * grid)
    np.testing.assert_allclose(one, other, rtol=1e-3)
