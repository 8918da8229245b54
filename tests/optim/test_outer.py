"""Outer optimizers on numbers worked by hand; a pseudo-gradient is sent - returned."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spheroid_jax.optim import OUTER_OPTIMIZERS, outer_optimizer


def steps(
    name: str, rate: float, momentum: float, returned: list[float]
) -> list[float]:
    """Parameters after each round; a round's worker returns the number it is given."""
    optimizer = outer_optimizer(name, rate, momentum)
    params = {"w": jnp.float32(0.0)}
    state, path = optimizer.init(params), []
    for value in returned:
        gradient = {"w": params["w"] - value}
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        path.append(float(params["w"]))
    return path


def test_sgd_at_rate_one_lands_on_what_was_returned() -> None:
    assert steps("sgd", 1.0, 0.9, [2.5, -1.0, 0.25]) == [2.5, -1.0, 0.25]


def test_sgd_leaves_parameters_bit_identical_on_a_zero_gradient() -> None:
    optimizer = outer_optimizer("sgd")
    values = np.array([0.0, -0.0, 1.2e-38, -3.3, 1e30, np.pi], np.float32)
    params = {"w": jnp.asarray(values)}
    gradient = {"w": jnp.zeros(6)}
    updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    after = np.asarray(optax.apply_updates(params, updates)["w"])
    np.testing.assert_array_equal(after.view(np.uint32), values.view(np.uint32))


def test_sgd_at_rate_half_goes_half_of_the_way() -> None:
    assert steps("sgd", 0.5, 0.9, [2.0, 2.0]) == [1.0, 1.5]


def test_nesterov_by_hand_over_two_rounds() -> None:
    # Rate 0.7, momentum 0.9, v the sum of what was: v <- g + 0.9 v, step g + 0.9 v.
    # Round 1: g = 0 - 2 = -2; v = -2; step -2 - 1.8 = -3.8; w = 0 + 0.7 * 3.8 = 2.66.
    # Round 2: g = 2.66 - 3 = -0.34; v = -0.34 - 1.8 = -2.14;
    #          step -0.34 - 1.926 = -2.266; w = 2.66 + 1.5862 = 4.2462.
    path = steps("nesterov", 0.7, 0.9, [2.0, 3.0])
    np.testing.assert_allclose(path, [2.66, 4.2462], rtol=1e-6)


def test_nesterov_without_momentum_is_sgd() -> None:
    values = [2.5, -1.0, 0.25]
    np.testing.assert_allclose(
        steps("nesterov", 0.7, 0.0, values), steps("sgd", 0.7, 0.0, values), rtol=1e-6
    )


def test_every_listed_name_builds_and_another_is_refused() -> None:
    for name in OUTER_OPTIMIZERS:
        outer_optimizer(name)
    with pytest.raises(ValueError, match=r"sgd.*nesterov.*'adamw'"):
        outer_optimizer("adamw")
