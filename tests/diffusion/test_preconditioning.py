"""EDM's coefficients against the table of the specification and their definitions."""

import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.diffusion import precondition


@pytest.mark.parametrize(
    ("sigma", "c_skip", "c_out", "c_in", "c_noise"),
    [
        (1.0, 0.2, 0.447, 0.894, 0.0),
        (2.0, 0.059, 0.485, 0.485, 0.173),
        (10.0, 0.0025, 0.499, 0.0999, 0.576),
    ],
)
def test_coefficients_are_those_of_the_specification(
    sigma: float, c_skip: float, c_out: float, c_in: float, c_noise: float
) -> None:
    c = precondition(jnp.float32(sigma))
    assert float(c.c_skip) == pytest.approx(c_skip, abs=5e-4)
    assert float(c.c_out) == pytest.approx(c_out, abs=5e-4)
    assert float(c.c_in) == pytest.approx(c_in, abs=5e-4)
    assert float(c.c_noise) == pytest.approx(c_noise, abs=5e-4)


def test_weight_is_the_sum_of_both_precisions() -> None:
    # 1/sd^2 + 1/s^2: 4 + 1, 4 + 1/4, 4 + 1/100.
    c = precondition(jnp.array([1.0, 2.0, 10.0]))
    np.testing.assert_allclose(c.weight, [5.0, 4.25, 4.01], rtol=1e-6)
    # sd = 2: 1/4 + 1.
    assert float(precondition(jnp.float32(1.0), 2.0).weight) == pytest.approx(1.25)


def test_network_input_has_unit_variance_and_its_output_restores_the_data() -> None:
    """What EDM derives the coefficients from, on Gaussian data."""
    rng = np.random.default_rng(0)
    sigma_data, sigma = 0.5, 1.7
    clean = sigma_data * rng.standard_normal(400_000)
    noisy = clean + sigma * rng.standard_normal(clean.size)
    c = precondition(jnp.float32(sigma), sigma_data)
    assert np.var(float(c.c_in) * noisy) == pytest.approx(1.0, abs=0.01)
    wanted = (clean - float(c.c_skip) * noisy) / float(c.c_out)
    assert np.var(wanted) == pytest.approx(1.0, abs=0.01)
    # Zero is the best constant network: the skip alone is the regression on noisy.
    assert np.mean(wanted * noisy) == pytest.approx(0.0, abs=0.01)


def test_noise_feature_is_finite_at_zero_noise() -> None:
    c = precondition(jnp.array([0.0, 1e-30]))
    assert np.all(np.isfinite(c.c_noise))
    np.testing.assert_allclose(c.c_skip, 1.0)
    np.testing.assert_array_equal(np.asarray(c.c_out)[0], 0.0)


def test_coefficients_keep_the_shape_of_the_noise_levels() -> None:
    for leaf in precondition(jnp.ones((2, 3))):
        assert leaf.shape == (2, 3)
