r"""How much a pseudo-gradient counts that was computed some outer updates ago."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from spheroid_jax.optim._arguments import (
    Hyperparameter,
    Numeric,
    ScheduleState,
    at,
    check,
)
from spheroid_jax.optim._trees import broadcast_prefix, flatten


def staleness_weight(
    age: Numeric, alpha: Numeric = 0.2, tau_cut: Numeric | None = 32.0
) -> jax.Array:
    r"""The weight of a pseudo-gradient of a given age: exponential times cosine gate.

    .. math::

        \sigma(\tau) = \tfrac12 \bigl(1 + \cos(\pi \tau / \tau_{cut})\bigr)
        \, e^{-\alpha \tau} \quad (\tau \le \tau_{cut}), \qquad 0 \text{ beyond}

    It is exactly 1 at age 0 and exactly 0 from ``tau_cut`` on, and
    ``age * staleness_weight(age)`` never exceeds ``1 / (e * alpha)``. Gradients with
    respect to all three arguments are finite at every finite age.

    Args:
      age: in outer updates, any shape; fractions are allowed. A traced negative age
        counts as 0; a traced NaN gives NaN.
      alpha: rate of the exponential, per outer update. 0 leaves the gate alone.
      tau_cut: the age from which the weight is 0. None or infinity leaves the
        exponential alone (Adam-Decay).

    Returns:
      Weights in [0, 1], float32, of the shape of ``age``.

    Raises:
      ValueError: if ``age`` or ``alpha`` is negative or NaN, or ``tau_cut`` is not
        positive, where the value is concrete.

    Examples:
      >>> [f"{staleness_weight(age):.4f}" for age in (0, 1, 4, 16, 32)]
      ['1.0000', '0.8168', '0.4322', '0.0204', '0.0000']

    References:
      *Cosine-Gated Adam-Decay*, arXiv 2605.09126.
    """
    check("age", age, lambda x: x >= 0, "a number of outer updates >= 0")
    check_staleness(alpha, tau_cut)
    largest = jnp.finfo(jnp.float32).max
    # Infinite ages are clamped so that alpha = 0 doesn't turn them into NaN.
    age = jnp.clip(jnp.asarray(age, jnp.float32), 0.0, largest)
    alpha = jnp.asarray(alpha, jnp.float32)
    if _never_closes(tau_cut):
        return jnp.exp(-alpha * age)
    cut = jnp.asarray(tau_cut, jnp.float32)
    # Past the cut-off the other branch is still computed, and differentiated: clamped,
    # it stays finite. cos(x/2)^2 is (1 + cos(x))/2 without its cancellation near 0.
    within = jnp.minimum(age, cut)
    gate = jnp.square(jnp.cos((jnp.pi / 2) * (within / cut)))
    return jnp.where(age >= cut, 0.0, gate * jnp.exp(-alpha * within))


def polynomial_weight(age: Numeric, exponent: Numeric = 0.5) -> jax.Array:
    r"""The polynomial staleness weight of asynchronous federated averaging.

    .. math::

        s(\tau) = (1 + \tau)^{-a}

    Args:
      age: in outer updates, any shape. A traced negative age counts as 0.
      exponent: a; 0.5 gives the inverse square root.

    Returns:
      Weights in (0, 1], float32, of the shape of ``age``.

    Raises:
      ValueError: if an argument is negative or NaN, where the value is concrete.

    Examples:
      >>> print(polynomial_weight(3))
      0.5

    References:
      Xie et al., *Asynchronous Federated Optimization*, arXiv 1903.03934, section 5.
    """
    check("age", age, lambda x: x >= 0, "a number of outer updates >= 0")
    check("exponent", exponent, lambda x: x >= 0, ">= 0")
    age = jnp.maximum(jnp.asarray(age, jnp.float32), 0.0)
    return (1.0 + age) ** -jnp.asarray(exponent, jnp.float32)


def scale_by_staleness(
    alpha: Hyperparameter = 0.2, tau_cut: Hyperparameter | None = 32.0
) -> optax.GradientTransformationExtraArgs:
    r"""Scales updates by the weight of their age.

    .. math::

        u \leftarrow \sigma(\tau) \, u

    with :func:`staleness_weight` for the weight. ``update`` takes ``age``: one number
    (0 if not given), or a tree of numbers that stand at or above the updates' leaves.

    Args:
      alpha: rate of the exponential; a number, an array or a schedule.
      tau_cut: the age from which updates are zero; None for no gate.

    Returns:
      The transformation. It has no state, unless an argument is a schedule: then it
      counts updates.

    Raises:
      ValueError: on bad concrete arguments, or, from ``update``, if the ages don't
        match the updates.

    Examples:
      >>> import jax, jax.numpy as jnp, optax
      >>> f = lambda x: jnp.sum(x**2)
      >>> tx = optax.chain(scale_by_staleness(), optax.sgd(0.1))
      >>> params = jnp.array([1.0, 2.0])
      >>> state = tx.init(params)
      >>> for age in (0, 1, 2, 4, 8):
      ...     u, state = tx.update(jax.grad(f)(params), state, params, age=age)
      ...     params = optax.apply_updates(params, u)
      ...     print(f"{f(params):.4f}")
      3.2000
      2.2399
      1.6846
      1.4059
      1.3107

    References:
      *Cosine-Gated Adam-Decay*, arXiv 2605.09126.
    """
    check_staleness(alpha, tau_cut)
    scheduled = callable(alpha) or callable(tau_cut)

    def init(params: optax.Params) -> optax.OptState:
        del params
        if scheduled:
            return ScheduleState(jnp.zeros([], jnp.int32))
        return optax.EmptyState()

    def update(
        updates: optax.Updates,
        state: Any,
        params: optax.Params | None = None,
        *,
        age: Any = 0,
        **extra_args: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        del params, extra_args
        count = state.count if scheduled else None
        weight = weight_function(alpha, tau_cut, count)
        leaves, treedef = flatten(updates)
        weights = leaf_weights(weight, age, updates)
        scaled = [
            None if u is None else w.astype(u.dtype) * u
            for u, w in zip(leaves, weights, strict=True)
        ]
        if scheduled:
            state = ScheduleState(optax.safe_increment(state.count))
        return treedef.unflatten(scaled), state

    return optax.GradientTransformationExtraArgs(init, update)


def check_staleness(alpha: Hyperparameter, tau_cut: Hyperparameter | None) -> None:
    """Raises a ValueError if a concrete alpha or cut-off makes no sense."""
    check("alpha", alpha, lambda x: x >= 0, ">= 0")
    if tau_cut is not None:
        check("tau_cut", tau_cut, lambda x: x > 0, "> 0, or None for no gate")


def weight_function(
    alpha: Hyperparameter, tau_cut: Hyperparameter | None, count: Any
) -> Callable[[Any], jax.Array]:
    """:func:`staleness_weight` of an age, with schedules read at ``count``."""
    return lambda age: staleness_weight(age, at(alpha, count), at(tau_cut, count))


def leaf_weights(
    weight: Callable[[Any], jax.Array], age: Any, updates: optax.Updates
) -> list[Any]:
    """The weight of each leaf, computed once for each age.

    Raises:
      ValueError: if the ages don't match the updates, or one isn't a scalar.
    """
    if age is None:
        raise ValueError("age must be a number or a tree of numbers, got None")
    weights = jax.tree.map(lambda x: weight(_scalar(x)), age)
    return broadcast_prefix(weights, updates, "age", "updates")


def _scalar(age: Any) -> Any:
    if np.ndim(age) != 0:
        raise ValueError(
            f"age must be a scalar for each leaf, got shape {np.shape(age)}; give a "
            "tree of scalars that stand at or above the updates' leaves"
        )
    return age


def _never_closes(tau_cut: Any) -> bool:
    return tau_cut is None or (
        isinstance(tau_cut, (int, float)) and np.isinf(tau_cut) and tau_cut > 0
    )
