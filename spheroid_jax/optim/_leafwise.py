"""One step of an optimizer, written for a leaf and applied to a whole tree."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.experimental.shard_alike import shard_alike

from spheroid_jax.optim._trees import is_none


def map_updates(
    step: Callable[..., tuple[Any, ...]],
    updates: optax.Updates,
    *states: Any,
    weights: Sequence[Any] | None = None,
) -> tuple[Any, ...]:
    """Maps an optimizer's step over leaves and gathers what it returns into trees.

    Where an update is None the result is None and the states are what they were, so
    that the structure of the states never changes.

    Args:
      step: ``step(update, *states)``, or with weights ``step(update, weight,
        *states)``, for a leaf; returns the new update and the new states.
      updates: tree; None counts as a leaf.
      *states: trees with something of any structure at each leaf of ``updates``.
      weights: one for each leaf of ``updates``, in their order.

    Returns:
      The tree of new updates and those of new states.
    """
    treedef: Any
    leaves, treedef = jax.tree.flatten(updates, is_leaf=is_none)
    rows = list(zip(*(treedef.flatten_up_to(tree) for tree in states), strict=True))
    results = []
    for i, (leaf, row) in enumerate(zip(leaves, rows, strict=True)):
        weight = () if weights is None else (weights[i],)
        results.append((None, *row) if leaf is None else step(leaf, *weight, *row))
    return tuple(
        treedef.unflatten([result[i] for result in results])
        for i in range(1 + len(states))
    )


def zeros_alike(leaf: Any, dtype: Any) -> jax.Array:
    """Zeros shaped, and sharded, like a leaf."""
    zeros = jnp.zeros_like(leaf, dtype=dtype)
    if isinstance(leaf, jax.core.Tracer):
        # Under jit zeros depend on nothing, and the compiler would put all of them on
        # one device.
        zeros = shard_alike(leaf, zeros)[1]
    return zeros


def float32_zeros(params: optax.Params) -> optax.Updates:
    """Zeros shaped, and sharded, like the parameters."""
    return jax.tree.map(lambda leaf: zeros_alike(leaf, jnp.float32), params)


def no_updates() -> jax.Array:
    """A counter of updates at its start."""
    return jnp.zeros([], jnp.int32)
