"""One update of Adam and its moments, in float32 at least."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from spheroid_jax.optim._leafwise import zeros_alike


def moments(
    params: optax.Params, mu_dtype: jax.typing.DTypeLike | None
) -> tuple[optax.Updates, optax.Updates]:
    """First and second moments of zero, in float32 at least.

    In bfloat16 a second moment with a decay of 0.999 never decays, since each step
    rounds back; in float16 the square of a small gradient is 0. Moments are sharded as
    the parameters are.
    """

    def zeros(leaf: Any, dtype: Any = None) -> jax.Array:
        return zeros_alike(leaf, dtype or jnp.promote_types(leaf.dtype, jnp.float32))

    return (
        jax.tree.map(lambda p: zeros(p, mu_dtype), params),
        jax.tree.map(zeros, params),
    )


def adam_step(
    gradients: Sequence[Any],
    mus: Sequence[Any],
    nus: Sequence[Any],
    count: jax.Array,
    weights: Sequence[Any],
    *,
    b1: Any,
    b2: Any,
    eps: Any,
    eps_root: Any,
    rate: Any,
    gate: str,
    arrived: jax.Array | None = None,
) -> list[tuple[Any, Any, Any]]:
    """Adam with a weight before the moments, after them, or both.

    The arithmetic is that of ``optax.adam``, operation by operation and compiled in the
    same pieces: with weights of 1 the results on float32 are the same bits.

    Args:
      gradients: leaves of any floating dtype; None leaves its moments alone.
      mus: first moments of the leaves.
      nus: second moments of the leaves.
      count: updates so far, this one included; int32, shape ().
      weights: one for each leaf; float32, shape ().
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root.
      eps_root: added inside the root.
      rate: the learning rate, or None for a step without it and without its minus.
      gate: ``pre``, ``post`` or ``both``.
      arrived: where False the step is zero and the moments stay as they are; bool,
        shape (), or None for True.

    Returns:
      For each leaf the step, in the dtype of the gradient, and both moments, in the
      dtypes they came in.
    """
    present = [i for i, gradient in enumerate(gradients) if gradient is not None]
    wide = [_widen(gradients[i]) for i in present]
    weighed = [weights[i] for i in present]
    old_mu, old_nu = [mus[i] for i in present], [nus[i] for i in present]
    mu, nu = [], []
    for g, w, m, v in zip(wide, weighed, old_mu, old_nu, strict=True):
        # The weight goes into the coefficients: no work for each element, and the
        # compiler contracts the sums as it contracts Adam's.
        entering = w if gate != "post" else 1
        mu.append((1 - b1) * entering * g + b1 * m)
        nu.append((1 - b2) * entering**2 * _square(g) + b2 * v)
    if arrived is not None:
        # Selected before the step is computed from them: computed from moments that
        # aren't stored, it would cost a copy of the old ones in a donated update.
        mu = optax.tree.where(arrived, mu, old_mu)
        nu = optax.tree.where(arrived, nu, old_nu)
        # 0 if nothing ever arrived; 0 / 0 would alarm jax_debug_nans before it's
        # selected away.
        count = jnp.maximum(count, 1)
    mu_hat = optax.tree.bias_correction(mu, b1, count)
    nu_hat = optax.tree.bias_correction(nu, b2, count)
    results = [(None, mu, nu) for mu, nu in zip(mus, nus, strict=True)]
    for n, i in enumerate(present):
        step = mu_hat[n] / (jnp.sqrt(nu_hat[n] + eps_root) + eps)
        if gate != "pre":
            step = weighed[n] * step
        if rate is not None:
            step = -1 * rate * step
        if arrived is not None:
            step = jnp.where(arrived, step, jnp.zeros_like(step))
        results[i] = (
            step.astype(gradients[i].dtype),
            mu[n].astype(mus[i].dtype),
            nu[n].astype(nus[i].dtype),
        )
    return results


def _widen(leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))


def _square(leaf: jax.Array) -> jax.Array:
    return leaf**2 if jnp.isrealobj(leaf) else leaf.real**2 + leaf.imag**2
