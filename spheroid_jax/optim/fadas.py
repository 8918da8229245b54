"""FADAS: Adam's rule with a maximum, and a step that shrinks with the age."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from spheroid_jax.optim._arguments import Hyperparameter, at, check, check_adam
from spheroid_jax.optim._leafwise import float32_zeros, map_updates, no_updates
from spheroid_jax.optim.staleness import leaf_weights

__all__ = ["FadasState", "fadas"]


class FadasState(NamedTuple):
    """State of :func:`fadas`; the trees are shaped like the parameters.

    Attributes:
      count: () int32, updates so far.
      mu: float32, first moment.
      nu: float32, second moment.
      nu_max: float32, the largest second moment so far.
    """

    count: Any
    mu: optax.Updates
    nu: optax.Updates
    nu_max: optax.Updates


def fadas(
    learning_rate: Hyperparameter,
    b1: Hyperparameter = 0.9,
    b2: Hyperparameter = 0.999,
    eps: Hyperparameter = 1e-8,
    tau_c: Hyperparameter = 1.0,
    lr_scale: Hyperparameter | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""FADAS: AMSGrad whose step, not its gradient, is reduced by age.

    .. math::
      \begin{align*}
        m &\leftarrow \beta_1 m + (1 - \beta_1) \Delta \\
        v &\leftarrow \beta_2 v + (1 - \beta_2) \Delta^2 \\
        \hat v &\leftarrow \max(\hat v, v) \\
        u &= -\eta_\tau \, m / (\sqrt{\hat v} + \epsilon)
      \end{align*}

    .. math::
      \eta_\tau = \eta \ \text{ for } \tau \le \tau_c, \qquad
      \eta / \max(\tau, 1) \ \text{ beyond}

    The paper has no bias correction, and its theorem has
    :math:`\min(\eta, s / \tau)` beyond :math:`\tau_c`, with :math:`s = 1`. With the
    small learning rates of an adaptive method that minimum is :math:`\eta` at every
    age that occurs; the experiments of its authors divide by the age instead, and so
    does the default here. Moments are kept in float32, whatever the leaves are.

    Args:
      learning_rate: a number, an array or a schedule of the count of updates.
      b1: decay of the first moment, likewise.
      b2: decay of the second moment, likewise.
      eps: added to the root, likewise.
      tau_c: the largest age, in outer updates, that leaves the step alone, likewise.
      lr_scale: :math:`s` of the theorem's rule, likewise; None divides by the age.

    Returns:
      A transformation whose ``update`` takes ``age`` (0 by default), in outer updates:
      a number, a () array, or a tree of those that is a prefix of the updates'. For a
      mean over workers the paper takes the largest of their ages.

    Raises:
      ValueError: if a number is outside of its range, or, from ``update``, if the ages
        don't match the updates.

    Examples:
      >>> import jax, jax.numpy as jnp, optax
      >>> from spheroid_jax.optim.fadas import fadas
      >>> solver = fadas(learning_rate=0.1)
      >>> params = jnp.array([1.0, 2.0, 3.0])
      >>> state = solver.init(params)
      >>> for age in range(5):
      ...     grad = jax.grad(lambda x: jnp.sum(x**2))(params)
      ...     updates, state = solver.update(grad, state, params, age=age)
      ...     params = optax.apply_updates(params, updates)
      ...     print(f"Objective function: {jnp.sum(params**2):.3f}")
      Objective function: 10.505
      Objective function: 6.777
      Objective function: 5.118
      Objective function: 4.121
      Objective function: 3.442

    References:
      Wang et al., `FADAS: Towards Federated Adaptive Asynchronous Optimization
      <https://arxiv.org/abs/2407.18365>`_, 2024
    """
    check_adam(b1, b2, eps, 0.0)
    check("tau_c", tau_c, lambda x: x >= 0, "a number of outer updates >= 0")
    if lr_scale is not None:
        check("lr_scale", lr_scale, lambda x: x > 0, "> 0, or None")

    def init(params: optax.Params) -> FadasState:
        zeros = [float32_zeros(params) for _ in range(3)]
        return FadasState(no_updates(), *zeros)

    def update(
        updates: optax.Updates,
        state: FadasState,
        params: optax.Params | None = None,
        *,
        age: Any = 0,
        **extra: Any,
    ) -> tuple[optax.Updates, FadasState]:
        del params, extra
        rate, decay1, decay2, epsilon, threshold, scale = (
            at(value, state.count)
            for value in (learning_rate, b1, b2, eps, tau_c, lr_scale)
        )

        def rate_at(age: Any) -> jax.Array:
            check("age", age, lambda x: x >= 0, "a number of outer updates >= 0")
            age = jnp.asarray(age, jnp.float32)
            # Below age 1 a division would lengthen the step, and at 0 be infinite.
            divisor = jnp.where(age < 1.0, 1.0, age)
            late = (
                rate / divisor if scale is None else jnp.minimum(rate, scale / divisor)
            )
            return jnp.where(age <= threshold, rate, late)

        def step(
            g: jax.Array, rate: jax.Array, m: jax.Array, v: jax.Array, v_max: jax.Array
        ) -> tuple[jax.Array, ...]:
            g32 = g.astype(jnp.float32)
            m = decay1 * m + (1 - decay1) * g32
            v = decay2 * v + (1 - decay2) * g32**2
            v_max = jnp.maximum(v_max, v)
            u = -rate * (m / (jnp.sqrt(v_max) + epsilon))
            return u.astype(g.dtype), m, v, v_max

        stepped, mu, nu, nu_max = map_updates(
            step,
            updates,
            state.mu,
            state.nu,
            state.nu_max,
            weights=leaf_weights(rate_at, age, updates),
        )
        count = optax.safe_increment(state.count)
        return stepped, FadasState(count, mu, nu, nu_max)

    return optax.GradientTransformationExtraArgs(init, update)
