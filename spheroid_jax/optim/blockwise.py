"""One outer optimizer for each block, as blocks are trained each by itself."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike

STACKED = "blocks"


def by_block(
    inner: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Steps every block by itself, and only those that something arrived for.

    Blocks are trained by different workers, so they differ in when something arrives
    and in how old it is. Each has its own state here, counts included: a block that
    nothing arrived for keeps parameters and state bit for bit, and its bias correction
    doesn't run ahead. With arrivals everywhere, of one age, the result is that of
    ``inner`` on the whole tree, if ``inner`` works element by element; one that looks
    at a norm looks at one block's.

    Parameters are a mapping; leaves under ``"blocks"`` have a leading axis B, and
    everything else is shared by all blocks. The shared rest is stepped when something
    arrived for any block, at the mean age of those blocks.

    >>> outer = by_block(optax.sgd(0.1, momentum=0.9))
    >>> params = {"blocks": jnp.ones((2, 3)), "interface": jnp.ones(3)}
    >>> state = outer.init(params)
    >>> updates, state = outer.update(
    ...     params, state, params, present=jnp.array([True, False])
    ... )
    >>> optax.apply_updates(params, updates)["blocks"][:, 0].tolist()
    [0.8999999761581421, 1.0]

    Args:
      inner: any transformation; ``age`` goes to those that take it.

    Returns:
      A transformation whose ``update`` takes ``present``, bool (B,), by default all
      true, and ``age`` in rounds, scalar or (B,); other keywords go to ``inner``.
    """
    wrapped = optax.with_extra_args_support(inner)

    def init(params: Any) -> optax.OptState:
        blocks, shared = _split(params)
        return {STACKED: jax.vmap(inner.init)(blocks), "shared": inner.init(shared)}

    def update(
        updates: Any,
        state: Any,
        params: Any = None,
        *,
        present: ArrayLike | None = None,
        age: ArrayLike | None = None,
        **extra: Any,
    ) -> tuple[Any, optax.OptState]:
        blocks, shared = _split(updates)
        own = (None, None) if params is None else _split(params)
        count = len(jax.tree.leaves(blocks)[0])
        there = jnp.ones(count, bool) if present is None else jnp.asarray(present)
        ages = None if age is None else jnp.broadcast_to(jnp.asarray(age), (count,))

        def one(
            updates: Any, state: Any, params: Any, there: Array, age: Array | None
        ) -> Any:
            more = extra if age is None else {**extra, "age": age}
            new, after = wrapped.update(updates, state, params, **more)
            new = jax.tree.map(lambda u: jnp.where(there, u, jnp.zeros_like(u)), new)
            return new, jax.tree.map(lambda a, b: jnp.where(there, a, b), after, state)

        new_blocks, block_state = jax.vmap(one)(
            blocks, state[STACKED], own[0], there, ages
        )
        new_shared, shared_state = one(
            shared, state["shared"], own[1], jnp.any(there), _mean(ages, there)
        )
        return (
            {STACKED: new_blocks, **new_shared},
            {STACKED: block_state, "shared": shared_state},
        )

    return optax.GradientTransformationExtraArgs(init, update)


def _split(tree: Any) -> tuple[Any, dict[str, Any]]:
    """What is stacked over blocks, and the rest."""
    if STACKED not in tree:
        raise ValueError(
            f"by_block needs a mapping with {STACKED!r}, got {sorted(tree)}: "
            "use the inner transformation alone"
        )
    return tree[STACKED], {name: v for name, v in tree.items() if name != STACKED}


def _mean(ages: Array | None, there: Array) -> Array | None:
    if ages is None:
        return None
    total = jnp.sum(jnp.where(there, ages, jnp.zeros_like(ages)))
    return total / jnp.maximum(jnp.sum(there), 1)
