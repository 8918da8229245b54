"""The delay queue: a ring of sums on device, one slot for each round to come.

An update that needs ``delay`` rounds is added into the slot of the round in which it
arrives, already multiplied by its weight: ages are counted in rounds, so its age at
arrival is known when it is sent. The queue therefore holds ``max_delay + 1`` copies of
the parameters however many workers there are, and sending or receiving touches one.

Each round pushes first and pops then, once, in order: the slot of round t is the slot
of round t + capacity, so a round that isn't popped would arrive a whole turn later.

Inside a scan the ring is updated in place. Only pushing writes to it; popping marks the
slot as empty and leaves the old sums, since a program that reads a slot and clears it
afterwards is compiled with a copy of the whole ring.
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
        dtype where that is wider: sums in half precision lose what they add. A slot
        whose count is 0 is empty, whatever its sums still hold.
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
    count: int | Array = 1,
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
      count: how many updates the item is the sum of, at least 1.
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
    if not isinstance(count, jax.Array):
        checks.positive("count", count)
    waits, fits = _policy(jnp.asarray(delay, jnp.int32), most, overflow)
    valid = jnp.asarray(valid, bool)
    lands = valid & fits
    slot = _slot(queue, jnp.asarray(sent_at, jnp.int32) + waits)
    weight = jnp.asarray(weight, jnp.float32)
    count = jnp.asarray(count, jnp.int32)
    each_age = waits if age is None else jnp.asarray(age)

    begun = queue.count[slot] > 0

    def add(ring: Array, value: Array) -> Array:
        none = jnp.zeros((), ring.dtype)
        old = jax.lax.dynamic_index_in_dim(ring, slot, keepdims=False)
        new = jnp.where(begun, old, none)
        new = new + jnp.where(lands, value.astype(ring.dtype), none)
        return jax.lax.dynamic_update_index_in_dim(ring, new, slot, 0)

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
    """Sends K items, each with a delay of its own.

    The same as K calls of :func:`push` in their order, in one loop that needs no memory
    beside the items and the queue.

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
    checks.literal("delay", delay, queue.count.shape[0] - 1)

    def one_each(name: str, values: ArrayLike, dtype: Any) -> Array:
        array = jnp.asarray(values, dtype)
        if array.shape not in ((), number):
            raise ValueError(
                f"{name} must hold one value or one for each of the {number[0]} items, "
                f"got shape {array.shape}"
            )
        return jnp.broadcast_to(array, number)

    each = {
        "sent_at": one_each("sent_at", sent_at, jnp.int32),
        "delay": one_each("delay", delay, jnp.int32),
        "weight": one_each("weight", weight, jnp.float32),
        "valid": one_each("valid", valid, bool),
    }

    def send(queue: DelayQueue, one: tuple[Any, dict[str, Array]]) -> Any:
        item, how = one
        return push(queue, item, **how, overflow=overflow), None

    return jax.lax.scan(send, queue, (items, each))[0]


def pop_due(queue: DelayQueue, now: ArrayLike) -> tuple[DelayQueue, Arrivals]:
    """Takes what arrives in round ``now`` and empties its slot for later rounds.

    Args:
      queue: the queue.
      now: the current round, int; may be traced.

    Returns:
      The queue without them, and the arrivals.
    """
    slot = _slot(queue, jnp.asarray(now, jnp.int32))

    def take(ring: Array) -> Array:
        return jax.lax.dynamic_index_in_dim(ring, slot, keepdims=False)

    count = take(queue.count)

    def mean(ring: Array) -> Array:
        share = take(ring) / jnp.maximum(count, 1).astype(ring.dtype)
        return jnp.where(count > 0, share, jnp.zeros((), ring.dtype))

    arrivals = Arrivals(jax.tree.map(mean, queue.total), count, mean(queue.age))
    # The sums stay: `push` begins a slot without items anew (see above).
    rest = queue._replace(
        weight=queue.weight.at[slot].set(0),
        count=queue.count.at[slot].set(0),
        age=queue.age.at[slot].set(0),
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
