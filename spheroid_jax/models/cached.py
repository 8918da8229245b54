"""Transformer layers that keep keys and values, so that a position is computed once.

A cache has slots, one for each text that is being written. A call takes consecutive
positions of some texts: what it computes at a position equals what the whole sequence
at once would give there, since attention is causal.

Dimensions: N sequences of a call, S positions, T places, L layers, h heads of width w.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from spheroid_jax.models.transformer import (
    Params,
    TransformerLayer,
    TransformerShape,
    rotate,
)


class Cache(NamedTuple):
    """Keys, turned by their places, and values: (L, slots, T, h, w), compute dtype."""

    keys: Array
    values: Array


def init_cache(shape: TransformerShape, layers: int, slots: int, places: int) -> Cache:
    """An empty cache for ``slots`` texts of ``places`` positions."""
    size = (layers, slots, places, shape.heads, shape.width // shape.heads)
    # Two arrays: buffers that are donated must not be one.
    return Cache(*(jnp.zeros(size, shape.compute_dtype) for _ in range(2)))


def apply_layers_cached(
    layers: Params,
    shape: TransformerShape,
    h: Array,
    places: Array,
    cache: Cache,
    slots: Array,
) -> tuple[Array, Cache]:
    """Sends h (N, S, d) through the stacked layers; returns it and the new cache.

    Position (n, s) attends to what its slot holds at lower places than the first of
    this call, and to this call's positions up to itself; what the slot holds from the
    first place on is stale and is written over. Donate the cache: it is then changed
    in place.

    Args:
      layers: leaves (L, ...), as of ``apply_layers``.
      shape: of the layers.
      h: (N, S, d).
      places: int32 (N, S), consecutive in a row. A place of T or more is padding, which
        must be at the end of the row: nothing is written for it, and what comes back
        there means nothing.
      cache: L layers of it.
      slots: int32 (N,), different from each other. One out of range, negative ones
        too, marks a row of padding.
    """
    count, total = cache.keys.shape[1:3]
    real = (slots >= 0) & (slots < count)
    places = jnp.where(real[:, None], places, total)
    rows = jnp.clip(slots, 0, count - 1)
    visible = _visible(places, total)
    module = TransformerLayer(shape)

    def one(h: Array, layer: tuple[Params, Array]) -> tuple[Array, tuple[Array, Array]]:
        leaves, index = layer

        def attend(q: Array, k: Array, v: Array) -> tuple[Array, tuple[Array, Array]]:
            if shape.rotary:
                q, k = rotate(q, places), rotate(k, places)
            # A hidden value weighs nothing, but zero times one that isn't finite, such
            # as a text that broke has left, is NaN.
            v = jnp.where(places[:, :, None, None] < total, v, 0)
            old = Cache(cache.keys[index, rows], cache.values[index, rows])
            return _attention(q, Cache(k, v), old, places, visible), (k, v)

        return module.apply({"params": leaves}, h, attend, method="around")

    h, new = jax.lax.scan(
        one, h.astype(shape.compute_dtype), (layers, jnp.arange(cache.keys.shape[0]))
    )
    written = (slice(None), jnp.where(real, slots, count)[:, None], places)
    return h, Cache(
        *(
            old.at[written].set(fresh, mode="drop")
            for old, fresh in zip(cache, new, strict=True)
        )
    )


def _visible(places: Array, total: int) -> Array:
    """Which old places and new positions each position sees, bool (N, S, T + S)."""
    old = jnp.arange(total)[None, None] < places[:, :1, None]
    new = places[:, None] <= places[:, :, None]
    return jnp.concatenate([jnp.broadcast_to(old, (*places.shape, total)), new], -1)


def _attention(q: Array, new: Any, old: Any, places: Array, visible: Array) -> Array:
    seen = jnp.arange(old.values.shape[1])[None] < places[:, :1]
    values = jnp.where(seen[:, :, None, None], old.values, 0)
    return jax.nn.dot_product_attention(
        q,
        jnp.concatenate([old.keys, new.keys], axis=1),
        jnp.concatenate([values, new.values], axis=1),
        mask=visible[:, None],
        implementation="xla",
    )
