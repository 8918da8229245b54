"""One update of Adam's moments, leaf by leaf, in float32 at least."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.experimental.shard_alike import shard_alike


def moments(
    params: optax.Params, mu_dtype: jax.typing.DTypeLike | None
) -> tuple[optax.Updates, optax.Updates]:
    """First and second moments of zero, in float32 at least.

    In bfloat16 a second moment with a decay of 0.999 never decays, since each step
    rounds back; in float16 the square of a small gradient is 0. Moments are sharded as
    the parameters are.
    """

    def zeros(leaf: Any, dtype: Any = None) -> jax.Array:
        wide = jnp.promote_types(leaf.dtype, jnp.float32)
        moment = jnp.zeros_like(leaf, dtype=dtype or wide)
        if isinstance(leaf, jax.core.Tracer):
            # Under jit zeros depend on nothing, and the compiler would put the whole
            # moment on one device.
            moment = shard_alike(leaf, moment)[1]
        return moment

    return (
        jax.tree.map(lambda p: zeros(p, mu_dtype), params),
        jax.tree.map(zeros, params),
    )


def adam_leaf(
    gradient: jax.Array,
    mu: jax.Array,
    nu: jax.Array,
    count: jax.Array,
    weight: jax.Array,
    *,
    b1: Any,
    b2: Any,
    eps: Any,
    eps_root: Any,
    gate: str,
    arrived: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One leaf of Adam with the weight before the moments, after them, or both.

    The arithmetic is that of ``optax.scale_by_adam``, operation by operation: with a
    weight of 1 the results are the same bits.

    Args:
      gradient: any floating dtype.
      mu: first moment.
      nu: second moment.
      count: updates of this leaf, this one included; int32, shape ().
      weight: float32, shape ().
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root.
      eps_root: added inside the root.
      gate: ``pre``, ``post`` or ``both``.
      arrived: where False the step is zero and the moments stay as they are; bool,
        shape (), or None for True.

    Returns:
      The step in float32 at least, and both moments in the dtypes they came in.
    """
    wide = gradient.astype(jnp.promote_types(gradient.dtype, jnp.float32))
    if gate != "post":
        wide = weight * wide
    new_mu = optax.tree.update_moment(wide, mu, b1, 1)
    new_nu = optax.tree.update_moment_per_elem_norm(wide, nu, b2, 2)
    if arrived is not None:
        # Selected before the step is computed from them: computed from moments that
        # aren't stored, it would cost a copy of the old ones in a donated update.
        new_mu = jnp.where(arrived, new_mu, mu)
        new_nu = jnp.where(arrived, new_nu, nu)
        count = jnp.maximum(count, 1)  # 0 if nothing ever arrived
    mu_hat = optax.tree.bias_correction(new_mu, b1, count)
    nu_hat = optax.tree.bias_correction(new_nu, b2, count)
    step = mu_hat / (jnp.sqrt(nu_hat + eps_root) + eps)
    if gate != "pre":
        step = weight * step
    if arrived is not None:
        step = jnp.where(arrived, step, jnp.zeros_like(step))
    return step, new_mu.astype(mu.dtype), new_nu.astype(nu.dtype)
