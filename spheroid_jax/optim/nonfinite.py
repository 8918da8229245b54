"""What to do with pseudo-gradients that aren't finite: leave them out, and count them.

One NaN in a moment never leaves it. ``optax.clip_by_global_norm`` doesn't help: one NaN
makes every leaf NaN, one Inf makes every other leaf zero. So screening comes first.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from spheroid_jax.optim._arguments import check

__all__ = ["SkipNonfiniteState", "finite_mean", "skip_nonfinite"]


class SkipNonfiniteState(NamedTuple):
    """State of :func:`skip_nonfinite`.

    Attributes:
      inner: state of the wrapped transformation.
      skipped: () int32, updates skipped so far.
      last_finite: () bool, whether the last update was accepted.
    """

    inner: optax.OptState
    skipped: jax.Array
    last_finite: jax.Array


def skip_nonfinite(
    inner: optax.GradientTransformation, max_norm: float | jax.Array | None = None
) -> optax.GradientTransformationExtraArgs:
    r"""Skips an update that isn't finite, and leaves the inner state alone.

    .. math::
      (u, s) \leftarrow \begin{cases}
        \mathrm{inner}(\mathrm{clip}(\Delta), s) &
          \text{if } \Delta \text{ and the result are finite} \\
        (0, s) & \text{otherwise}
      \end{cases}

    The choice is a selection, never a product with zero, and it is made for the whole
    tree: one bad leaf skips that update, of all leaves. The result is looked at too,
    so that an age of NaN does no harm either.

    Args:
      inner: an outer optimizer; extra arguments such as ``age`` reach it.
      max_norm: if given, the global norm that accepted updates are clipped to before
        ``inner`` sees them. Screening comes before clipping, and the norm itself
        can't overflow.

    Returns:
      The wrapped transformation. The update isn't an error: read ``state.skipped`` and
      ``state.last_finite``.

    Raises:
      ValueError: if ``max_norm`` is a number that isn't positive.

    Examples:
      >>> import jax, jax.numpy as jnp, optax
      >>> from spheroid_jax.optim.nonfinite import skip_nonfinite
      >>> solver = skip_nonfinite(optax.adam(0.1))
      >>> params = jnp.array([1.0, 2.0, 3.0])
      >>> state = solver.init(params)
      >>> for step in range(5):
      ...     grad = jax.grad(lambda x: jnp.sum(x**2))(params)
      ...     grad = grad.at[0].set(jnp.nan) if step == 2 else grad
      ...     updates, state = solver.update(grad, state, params)
      ...     params = optax.apply_updates(params, updates)
      ...     print(f"Objective function: {jnp.sum(params**2):.3f}")
      Objective function: 12.830
      Objective function: 11.722
      Objective function: 11.722
      Objective function: 10.676
      Objective function: 9.694
      >>> int(state.skipped)
      1

    References:
      None; ``optax.apply_if_finite`` is a relative that lets the bad update through
      after a number of them in a row.
    """
    if max_norm is not None:
        check("max_norm", max_norm, lambda x: x > 0, "> 0, or None")
    wrapped = optax.with_extra_args_support(inner)

    def init(params: optax.Params) -> SkipNonfiniteState:
        return SkipNonfiniteState(
            wrapped.init(params), jnp.zeros([], jnp.int32), jnp.ones([], jnp.bool_)
        )

    def update(
        updates: optax.Updates,
        state: SkipNonfiniteState,
        params: optax.Params | None = None,
        **extra: Any,
    ) -> tuple[optax.Updates, SkipNonfiniteState]:
        finite = _all_finite(updates)
        # What isn't taken is still computed: on zeros, so that it raises no alarm under
        # `jax_debug_nans`.
        screened = _select(finite, updates, optax.tree.zeros_like(updates))
        if max_norm is not None:
            screened = _clip(screened, max_norm)
        stepped, moved = wrapped.update(screened, state.inner, params, **extra)
        accepted = finite & _all_finite(stepped)
        skipped = jnp.where(
            accepted, state.skipped, optax.safe_increment(state.skipped)
        )
        return (
            _select(accepted, stepped, optax.tree.zeros_like(stepped)),
            SkipNonfiniteState(
                _select(accepted, moved, state.inner), skipped, accepted
            ),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def finite_mean(
    stacked: optax.Updates, accepted: jax.Array | None = None
) -> tuple[optax.Updates, jax.Array]:
    """The mean over those workers whose whole pseudo-gradient is finite.

    Args:
      stacked: tree of leaves (K, ...), a pseudo-gradient for each of K workers.
      accepted: (K,) bool, workers that take part at all; all of them by default.

    Returns:
      The mean, with the leaves' dtypes, summed in float32 or wider; zeros if nobody is
      left. And (K,) bool: whose pseudo-gradient is in it.

    Raises:
      ValueError: if there are no leaves, or they disagree about K.

    Examples:
      >>> import jax.numpy as jnp
      >>> from spheroid_jax.optim.nonfinite import finite_mean
      >>> mean, kept = finite_mean({"w": jnp.array([1.0, jnp.nan, 4.0, 7.0])})
      >>> float(mean["w"]), kept.tolist()
      (4.0, [True, False, True, True])
    """
    leaves = jax.tree.leaves(stacked)
    sizes = {jnp.shape(leaf)[:1] for leaf in leaves}
    if accepted is not None:
        sizes.add(jnp.shape(accepted))
    if len(sizes) != 1 or () in sizes:
        raise ValueError(
            "stacked must have leaves (K, ...), and accepted be (K,), with one K; got "
            f"leading axes {sorted(sizes)}"
        )
    (workers,) = sizes.pop()
    kept = jnp.ones(workers, bool) if accepted is None else jnp.asarray(accepted, bool)
    for leaf in leaves:
        kept &= jnp.isfinite(leaf).reshape(workers, -1).all(axis=1)
    count = jnp.maximum(kept.sum(), 1)

    def mean(leaf: jax.Array) -> jax.Array:
        shape = (workers,) + (1,) * (leaf.ndim - 1)
        wide = jnp.promote_types(leaf.dtype, jnp.float32)
        total = jnp.where(kept.reshape(shape), leaf, 0).sum(axis=0, dtype=wide)
        return (total / count).astype(leaf.dtype)

    return jax.tree.map(mean, stacked), kept


def _all_finite(tree: Any) -> jax.Array:
    finite = jnp.ones([], jnp.bool_)
    for leaf in jax.tree.leaves(tree):
        finite &= jnp.isfinite(leaf).all()
    return finite


def _select(condition: jax.Array, yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def _clip(updates: optax.Updates, max_norm: Any) -> optax.Updates:
    """Clips by the global norm, which is computed relative to the largest element."""
    leaves = [leaf.astype(jnp.float32) for leaf in jax.tree.leaves(updates)]
    largest = jnp.zeros([])
    for leaf in leaves:
        largest = jnp.maximum(largest, jnp.max(jnp.abs(leaf), initial=0.0))
    unit = jnp.where(largest > 0, largest, 1.0)
    norm = unit * jnp.sqrt(sum(jnp.sum((leaf / unit) ** 2) for leaf in leaves))
    factor = jnp.where(norm > max_norm, max_norm / norm, 1.0)
    return jax.tree.map(
        lambda u: (factor * u.astype(jnp.float32)).astype(u.dtype), updates
    )
