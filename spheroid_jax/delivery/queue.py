"""The delay queue: a ring of sums on device, one slot for each round to come.

An update that needs ``delay`` rounds is added into the slot of the round in which it
arrives, already multiplied by its weight: ages are counted in rounds, so its age at
arrival is known when it is sent. The queue therefore holds ``max_delay + 1`` copies of
the parameters however many workers there are, and sending or receiving touches one.

Each round pushes first and pops then, once, in order: the slot of round t is the slot
of round t + capacity, so a round that isn't popped would arrive a whole turn later.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from spheroid_jax.delivery import checks

Overflow = Literal["drop", "clip"]


class DelayQueue(NamedTuple):
    """Sums of what is on its way, by slot of arrival (round of arrival mod capacity).

    Attributes:
      total: tree, leaves (capacity, ...): sum of weight x item. Float32, or the items'
        dtype where that is wider: sums in half precision lose what they add.
      weight: float32 (capacity,): sum of weights.
      count: int32 (capacity,): how many items.
      age: float32 (capacity,): sum of the items' ages, in rounds.
      dropped: int32 scalar: items that the overflow policy has refused so far.
    """

    total: Any
    weight: Array
    count: Array  # type: ignore[assignment]  # in place of tuple.count
    age: Array
    dropped: Array


class Arrivals(NamedTuple):
    """What arrives in one round.

    Attributes:
      mean: tree like an item, in the dtype of the sums: sum of weight x item, over the
        number of items; exactly zero when nothing arrives.
      count: int32 scalar: how many items arrive.
      age: float32 scalar: their mean age in rounds; 0 when nothing arrives.
    """

    mean: Any
    count: Array  # type: ignore[assignment]  # in place of tuple.count
    age: Array


def delay_queue(like: Any, max_delay: int) -> DelayQueue:
    """Returns an empty queue.

    Args:
      like: tree of arrays, or of ``jax.ShapeDtypeStruct``, in the shapes of an item.
      max_delay: longest delay in rounds; the queue has ``max_delay + 1`` slots.

    Raises:
      ValueError: if ``max_delay`` isn't a whole number >= 0.
    """
    checks.whole("max_delay", max_delay)
    capacity = int(max_delay) + 1
    return DelayQueue(
        total=jax.tree.map(
            lambda leaf: jnp.zeros((capacity, *jnp.shape(leaf)), _sum_dtype(leaf)), like
        ),
        weight=jnp.zeros(capacity, jnp.float32),
        count=jnp.zeros(capacity, jnp.int32),
        age=jnp.zeros(capacity, jnp.float32),
        dropped=jnp.zeros((), jnp.int32),
    )


def push(
    queue: DelayQueue,
    item: Any,
    sent_at: ArrayLike,
    *,
    delay: ArrayLike,
    weight: ArrayLike = 1.0,
    count: ArrayLike = 1,
    age: ArrayLike | None = None,
    valid: ArrayLike = True,
    overflow: Overflow = "drop",
) -> DelayQueue:
    """Sends one item, which arrives in round ``sent_at + delay``.

    Args:
      queue: the queue.
      item: tree of the queue's structure and shapes.
      sent_at: the current round, int.
      delay: rounds until the item arrives, int; 0 arrives in this round.
      weight: multiplies the item.
      count: how many updates the item is the sum of.
      age: age in rounds of each of them at arrival; by default the delay, after
        clipping where that applies.
      valid: false sends nothing: the item may then hold anything, NaN included.
      overflow: for a JAX delay outside [0, max_delay]: ``drop`` refuses the item and
        counts it in ``dropped``, ``clip`` takes the nearest delay that the queue has.

    Raises:
      ValueError: if a Python or NumPy delay lies outside [0, max_delay] (whatever the
        policy, since it is a constant of the program), if the delay isn't whole, or if
        the item doesn't match the queue.
    """
    _check_item(queue, item, ())
    most = queue.count.shape[0] - 1
    checks.literal("delay", delay, most)
    waits, fits = _policy(jnp.asarray(delay, jnp.int32), most, overflow)
    valid = jnp.asarray(valid, bool)
    lands = valid & fits
    slot = _slot(queue, jnp.asarray(sent_at, jnp.int32) + waits)
    weight = jnp.asarray(weight, jnp.float32)
    count = jnp.asarray(count, jnp.int32)
    each_age = waits if age is None else jnp.asarray(age)

    def add(ring: Array, value: Array) -> Array:
        kept = jnp.where(lands, value.astype(ring.dtype), jnp.zeros((), ring.dtype))
        old = jax.lax.dynamic_index_in_dim(ring, slot, keepdims=False)
        return jax.lax.dynamic_update_index_in_dim(ring, old + kept, slot, 0)

    return DelayQueue(
        total=jax.tree.map(
            lambda ring, leaf: add(ring, _weighted(leaf, weight, ring.dtype)),
            queue.total,
            item,
        ),
        weight=add(queue.weight, weight),
        count=add(queue.count, count),
        age=add(queue.age, each_age.astype(jnp.float32) * count.astype(jnp.float32)),
        dropped=queue.dropped + jnp.where(valid & ~fits, count, 0),
    )


def push_many(
    queue: DelayQueue,
    items: Any,
    sent_at: ArrayLike,
    *,
    delay: ArrayLike,
    weight: ArrayLike = 1.0,
    valid: ArrayLike = True,
    overflow: Overflow = "drop",
) -> DelayQueue:
    """Sends K items at once, each with a delay of its own.

    The items are scattered into their slots: what it needs beside the queue is one
    weighted copy of the items at most, whatever the capacity. On a GPU, items of one
    slot are added in no fixed order, so that sums may differ in the last bit.

    Args:
      queue: the queue.
      items: tree of the queue's structure, leaves (K, ...).
      sent_at: the current round, int, or (K,).
      delay: int (K,), rounds until each item arrives, or one for all.
      weight: (K,), multiplies each item, or one for all.
      valid: bool (K,): items that aren't are not sent and may hold anything, NaN
        included.
      overflow: see :func:`push`.

    Raises:
      ValueError: see :func:`push`.
    """
    leaves = jax.tree.leaves(items)
    if not leaves:
        raise ValueError("items is an empty tree: the number of items is unknown")
    number = jnp.shape(leaves[0])[:1]
    _check_item(queue, items, number)
    most = queue.count.shape[0] - 1
    checks.literal("delay", delay, most)

    def one_each(name: str, values: ArrayLike, dtype: Any) -> Array:
        array = jnp.asarray(values, dtype)
        if array.shape not in ((), number):
            raise ValueError(
                f"{name} must hold one value or one for each of the {number[0]} items, "
                f"got shape {array.shape}"
            )
        return jnp.broadcast_to(array, number)

    waits, fits = _policy(one_each("delay", delay, jnp.int32), most, overflow)
    valid = one_each("valid", valid, bool)
    weight = one_each("weight", weight, jnp.float32)
    slots = _slot(queue, one_each("sent_at", sent_at, jnp.int32) + waits)
    # One past the last slot is outside, and what is scattered there is let go.
    slots = jnp.where(valid & fits, slots, most + 1)

    def scatter(ring: Array, values: Array) -> Array:
        return ring.at[slots].add(values.astype(ring.dtype), mode="drop")

    def weighted(ring: Array, leaf: Array) -> Array:
        along = weight.reshape(number + (1,) * (ring.ndim - 1))
        return scatter(ring, _weighted(leaf, along, ring.dtype))

    return DelayQueue(
        total=jax.tree.map(weighted, queue.total, items),
        weight=scatter(queue.weight, weight),
        count=scatter(queue.count, jnp.ones(number, jnp.int32)),
        age=scatter(queue.age, waits),
        dropped=queue.dropped + jnp.sum(valid & ~fits, dtype=jnp.int32),
    )


def pop_due(queue: DelayQueue, now: ArrayLike) -> tuple[DelayQueue, Arrivals]:
    """Takes what arrives in round ``now`` and clears its slot for later rounds.

    Args:
      queue: the queue.
      now: the current round, int; may be traced.

    Returns:
      The queue without them, and the arrivals.
    """
    slot = _slot(queue, jnp.asarray(now, jnp.int32))

    def take(ring: Array) -> Array:
        return jax.lax.dynamic_index_in_dim(ring, slot, keepdims=False)

    def clear(ring: Array) -> Array:
        empty = jnp.zeros(ring.shape[1:], ring.dtype)
        return jax.lax.dynamic_update_index_in_dim(ring, empty, slot, 0)

    count = take(queue.count)

    def mean(ring: Array) -> Array:
        share = take(ring) / jnp.maximum(count, 1).astype(ring.dtype)
        return jnp.where(count > 0, share, jnp.zeros((), ring.dtype))

    arrivals = Arrivals(jax.tree.map(mean, queue.total), count, mean(queue.age))
    rest = queue._replace(
        total=jax.tree.map(clear, queue.total),
        weight=clear(queue.weight),
        count=clear(queue.count),
        age=clear(queue.age),
    )
    return rest, arrivals


def _sum_dtype(leaf: Any) -> Any:
    return jnp.promote_types(jnp.result_type(leaf), jnp.float32)


def _slot(queue: DelayQueue, due: Array) -> Array:
    return due % queue.count.shape[0]


def _weighted(leaf: ArrayLike, weight: Array, dtype: Any) -> Array:
    return jnp.asarray(leaf).astype(dtype) * weight.astype(dtype)


def _policy(delay: Array, most: int, overflow: str) -> tuple[Array, Array]:
    """The delay that the queue can keep, and whether the item is accepted."""
    if overflow not in ("drop", "clip"):
        raise ValueError(f"overflow must be 'drop' or 'clip', got {overflow!r}")
    kept = jnp.clip(delay, 0, most)
    return kept, (kept == delay) | (overflow == "clip")


def _check_item(queue: DelayQueue, item: Any, leading: tuple[int, ...]) -> None:
    expected: Any = jax.tree.structure(queue.total)
    got: Any = jax.tree.structure(item)
    if expected != got:
        raise ValueError(f"item must have the queue's structure {expected}, got {got}")
    rings = jax.tree_util.tree_leaves_with_path(queue.total)
    for (path, ring), leaf in zip(rings, jax.tree.leaves(item), strict=True):
        shape = (*leading, *ring.shape[1:])
        if np.shape(leaf) != shape:
            raise ValueError(
                f"item{jax.tree_util.keystr(path)} must have shape {shape}, "
                f"got {np.shape(leaf)}"
            )
