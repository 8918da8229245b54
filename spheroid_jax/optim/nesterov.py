"""Nesterov's momentum under delay: what CGAD is compared with.

Every transformation here keeps its momentum in float32, whatever the leaves are, works
in float32 and rounds once, to the leaf's dtype, at the end. Momentum is in the *sum*
convention, as in ``optax.sgd`` and torch: in a steady state it multiplies the step by
``1 / (1 - momentum)``.

Half-precision leaves under ``optax.inject_hyperparams``: pass
``hyperparam_dtype=jnp.float32``, or a momentum of 0.9 becomes bfloat16's 0.8984.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from spheroid_jax.optim._arguments import Hyperparameter, at, check, concrete
from spheroid_jax.optim._leafwise import float32_zeros, map_updates, no_updates
from spheroid_jax.optim.staleness import (
    leaf_weights,
    polynomial_weight,
    staleness_weight,
)

__all__ = [
    "DelayedNesterovState",
    "StalenessNesterovState",
    "delayed_nesterov",
    "polynomial_nesterov",
    "staleness_nesterov",
]


class DelayedNesterovState(NamedTuple):
    """State of :func:`delayed_nesterov`; the trees are shaped like the parameters.

    Attributes:
      count: () int32, updates so far.
      buffer: float32, sum of the updates since the last momentum step.
      trace: float32, momentum.
    """

    count: Any
    buffer: optax.Updates
    trace: optax.Updates


class StalenessNesterovState(NamedTuple):
    """State of :func:`staleness_nesterov`.

    Attributes:
      count: () int32, updates so far.
      trace: float32, momentum, shaped like the parameters.
    """

    count: Any
    trace: optax.Updates


def delayed_nesterov(
    learning_rate: Hyperparameter,
    momentum: Hyperparameter = 0.9,
    period: int = 4,
    activation: Hyperparameter = 0.0,
) -> optax.GradientTransformationExtraArgs:
    r"""Delayed Nesterov: momentum moves once a period, gradients at once.

    With :math:`N` the period, :math:`c` the activation, :math:`\eta` the learning rate
    and :math:`\beta` the momentum, the :math:`t`-th arrival :math:`\Delta_t` does

    .. math::
      \begin{align*}
        D &\leftarrow D + \Delta_t \\
        t + 1 \equiv 0 \pmod N: \quad
        m &\leftarrow \beta m + D / N, \quad D \leftarrow 0, \\
        u &= -\eta \left((1 - cN + c) \beta m + \Delta_t / N\right) \\
        \text{otherwise}: \quad
        u &= -\eta \left(c \beta m + \Delta_t / N\right)
      \end{align*}

    A period of 1 is ``optax.sgd(learning_rate, momentum, nesterov=True)``. With
    :math:`c = 0` a period of :math:`N` arrivals adds up to *one* Nesterov step on their
    mean. The learning rate is that of the whole period; where a paper quotes one for
    each arrival, multiply it by :math:`N`.

    Args:
      learning_rate: a number, an array or a schedule of the count of arrivals.
      momentum: likewise.
      period: arrivals between two steps of the momentum; usually the number of workers.
      activation: share of the momentum that every arrival applies, in [0, 1 / period];
        a number, an array or a schedule. Only numbers are checked.

    Returns:
      A transformation whose ``update`` accepts ``age`` and ignores it: this rule knows
      no ages.

    Raises:
      ValueError: if ``period`` or ``activation`` is a number outside of its range.

    Examples:
      >>> import jax, jax.numpy as jnp, optax
      >>> from spheroid_jax.optim.nesterov import delayed_nesterov
      >>> solver = delayed_nesterov(learning_rate=0.1, period=2)
      >>> params = jnp.array([1.0, 2.0, 3.0])
      >>> state = solver.init(params)
      >>> for _ in range(5):
      ...     grad = jax.grad(lambda x: jnp.sum(x**2))(params)
      ...     updates, state = solver.update(grad, state, params)
      ...     params = optax.apply_updates(params, updates)
      ...     print(f"Objective function: {jnp.sum(params**2):.3f}")
      Objective function: 11.340
      Objective function: 5.716
      Objective function: 4.630
      Objective function: 0.906
      Objective function: 0.734

    References:
      Liu et al., `Asynchronous Local-SGD Training for Language Modeling
      <https://arxiv.org/abs/2401.09135>`_, 2024, Algorithm 3
    """
    check("momentum", momentum, lambda x: (x >= 0) & (x < 1), "in [0, 1)")
    check("period", period, lambda x: (x >= 1) & (x % 1 == 0), "a whole number >= 1")
    if (n := concrete(period)) is not None:
        check(
            "activation", activation, lambda x: (x >= 0) & (x <= 1 / n), "in [0, 1/N]"
        )

    def init(params: optax.Params) -> DelayedNesterovState:
        return DelayedNesterovState(
            no_updates(), float32_zeros(params), float32_zeros(params)
        )

    def update(
        updates: optax.Updates,
        state: DelayedNesterovState,
        params: optax.Params | None = None,
        **extra: Any,
    ) -> tuple[optax.Updates, DelayedNesterovState]:
        del params, extra
        rate, beta, c = (
            at(value, state.count) for value in (learning_rate, momentum, activation)
        )
        # An injected period is a float; counting is done in integers.
        n = jnp.asarray(period).astype(jnp.int32)
        ends = (state.count + 1) % n == 0
        share = jnp.where(ends, 1 - c * n + c, c)

        def step(g: jax.Array, d: jax.Array, m: jax.Array) -> tuple[jax.Array, ...]:
            g32 = g.astype(jnp.float32)
            d = d + g32
            m = jnp.where(ends, beta * m + d / n, m)
            u = -rate * (g32 / n + share * beta * m)
            return u.astype(g.dtype), jnp.where(ends, 0.0, d), m

        stepped, buffer, trace = map_updates(step, updates, state.buffer, state.trace)
        count = optax.safe_increment(state.count)
        return stepped, DelayedNesterovState(count, buffer, trace)

    return optax.GradientTransformationExtraArgs(init, update)


def staleness_nesterov(
    learning_rate: Hyperparameter,
    momentum: Hyperparameter = 0.9,
    alpha: Hyperparameter = 0.2,
    mode: Literal["input", "momentum", "both"] = "input",
    weight: Literal["exponential", "polynomial"] = "exponential",
) -> optax.GradientTransformationExtraArgs:
    r"""Nesterov's rule discounted by the age of what arrives.

    .. math::
      \begin{align*}
        m &\leftarrow \mu_\tau m + s_\tau \Delta \\
        u &= -\eta \left(s_\tau \Delta + \mu_\tau m\right)
      \end{align*}

    with :math:`w(\tau) = e^{-\alpha \tau}` (``exponential``) or
    :math:`(1 + \tau)^{-\alpha}` (``polynomial``) and

    =============  =====================  =====================
    mode           :math:`s_\tau`         :math:`\mu_\tau`
    =============  =====================  =====================
    ``input``      :math:`w(\tau)`        :math:`\mu`
    ``momentum``   1                      :math:`\mu w(\tau)`
    ``both``       :math:`w(\tau)`        :math:`\mu w(\tau)`
    =============  =====================  =====================

    "Staleness-discounted momentum" is a baseline of CGAD whose definition isn't public;
    ``input`` and ``momentum`` are our two readings of the name. At age 0 every mode is
    ``optax.sgd(learning_rate, momentum, nesterov=True)``.

    Args:
      learning_rate: a number, an array or a schedule of the count of updates.
      momentum: likewise.
      alpha: likewise; decay for each outer update of age, or the exponent.
      mode: what the age discounts.
      weight: how.

    Returns:
      A transformation whose ``update`` takes ``age`` (0 by default), in outer updates:
      a number, a () array, or a tree of those that is a prefix of the updates'.

    Raises:
      ValueError: if ``mode`` or ``weight`` is unknown.

    Examples:
      >>> import jax, jax.numpy as jnp, optax
      >>> from spheroid_jax.optim.nesterov import staleness_nesterov
      >>> solver = staleness_nesterov(learning_rate=0.02)
      >>> params = jnp.array([1.0, 2.0, 3.0])
      >>> state = solver.init(params)
      >>> for age in range(5):
      ...     grad = jax.grad(lambda x: jnp.sum(x**2))(params)
      ...     updates, state = solver.update(grad, state, params, age=age)
      ...     params = optax.apply_updates(params, updates)
      ...     print(f"Objective function: {jnp.sum(params**2):.3f}")
      Objective function: 11.953
      Objective function: 9.740
      Objective function: 7.624
      Objective function: 5.748
      Objective function: 4.173

    References:
      `Cosine-Gated Adam-Decay <https://arxiv.org/abs/2605.09126>`_, 2026
    """
    if mode not in ("input", "momentum", "both"):
        raise ValueError(f"mode must be input, momentum or both, got {mode!r}")
    if weight not in ("exponential", "polynomial"):
        raise ValueError(f"weight must be exponential or polynomial, got {weight!r}")

    check("momentum", momentum, lambda x: (x >= 0) & (x < 1), "in [0, 1)")
    check("alpha", alpha, lambda x: x >= 0, ">= 0")

    def init(params: optax.Params) -> StalenessNesterovState:
        return StalenessNesterovState(no_updates(), float32_zeros(params))

    def update(
        updates: optax.Updates,
        state: StalenessNesterovState,
        params: optax.Params | None = None,
        *,
        age: Any = 0,
        **extra: Any,
    ) -> tuple[optax.Updates, StalenessNesterovState]:
        del params, extra
        rate, mu, decay = (
            at(value, state.count) for value in (learning_rate, momentum, alpha)
        )

        def weigh(age: Any) -> jax.Array:
            if weight == "polynomial":
                return polynomial_weight(age, decay)
            return staleness_weight(age, decay, None)

        def step(g: jax.Array, w: jax.Array, m: jax.Array) -> tuple[jax.Array, ...]:
            scaled = g.astype(jnp.float32) * (w if mode != "momentum" else 1.0)
            kept = mu * (w if mode != "input" else 1.0)
            m = kept * m + scaled
            return (-rate * (scaled + kept * m)).astype(g.dtype), m

        weights = leaf_weights(weigh, age, updates)
        stepped, trace = map_updates(step, updates, state.trace, weights=weights)
        count = optax.safe_increment(state.count)
        return stepped, StalenessNesterovState(count, trace)

    return optax.GradientTransformationExtraArgs(init, update)


def polynomial_nesterov(
    learning_rate: Hyperparameter,
    momentum: Hyperparameter = 0.9,
    exponent: Hyperparameter = 0.5,
) -> optax.GradientTransformationExtraArgs:
    r"""Nesterov's rule on pseudo-gradients weighted by a power of their age.

    .. math::
      \begin{align*}
        g &= (1 + \tau)^{-p} \Delta \\
        m &\leftarrow \mu m + g \\
        u &= -\eta \left(g + \mu m\right)
      \end{align*}

    This is :func:`staleness_nesterov` with ``mode="input"`` and
    ``weight="polynomial"``.

    Args:
      learning_rate: a number, an array or a schedule of the count of updates.
      momentum: likewise.
      exponent: likewise; :math:`p`.

    Returns:
      A transformation whose ``update`` takes ``age`` (0 by default), in outer updates:
      a number, a () array, or a tree of those that is a prefix of the updates'.

    Examples:
      >>> import jax, jax.numpy as jnp, optax
      >>> from spheroid_jax.optim.nesterov import polynomial_nesterov
      >>> solver = polynomial_nesterov(learning_rate=0.02)
      >>> params = jnp.array([1.0, 2.0, 3.0])
      >>> state = solver.init(params)
      >>> for age in range(5):
      ...     grad = jax.grad(lambda x: jnp.sum(x**2))(params)
      ...     updates, state = solver.update(grad, state, params, age=age)
      ...     params = optax.apply_updates(params, updates)
      ...     print(f"Objective function: {jnp.sum(params**2):.3f}")
      Objective function: 11.953
      Objective function: 9.924
      Objective function: 7.973
      Objective function: 6.190
      Objective function: 4.632

    References:
      Xie et al., `Asynchronous Federated Optimization
      <https://arxiv.org/abs/1903.03934>`_, 2019, section 5.2; Liu et al.,
      `Asynchronous Local-SGD Training for Language Modeling
      <https://arxiv.org/abs/2401.09135>`_, 2024
    """
    return staleness_nesterov(
        learning_rate, momentum, exponent, mode="input", weight="polynomial"
    )
