"""Rounds whose pseudo-gradients are old when they are applied.

Two protocols. In ``snapshot`` a worker starts from the model of some rounds ago, and
what it sends is applied in the round it is sent in; in ``in_flight`` it starts from the
model of its round, and what it sends is applied some rounds later. Both are the
controlled delay of CGAD (arXiv 2605.09126): the same algorithm, with the data shifted.

Age is counted in rounds. A round in which nothing arrives leaves parameters and outer
optimizer as they are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from spheroid_jax.delivery import (
    delay_queue,
    history,
    pop_due,
    push_many,
    record,
    snapshots,
)
from spheroid_jax.objectives import Metrics
from spheroid_jax.partition import Params, Parts, difference, masked_mean
from spheroid_jax.rounds.outer_step import Engine, step_outer
from spheroid_jax.rounds.round import init_state, train_workers
from spheroid_jax.rounds.scan import scan_rounds

PROTOCOLS = ("snapshot", "in_flight")


class Delivery(NamedTuple):
    """How old pseudo-gradients come to be, and what age does to their weight.

    Attributes:
      protocol: ``snapshot`` or ``in_flight``.
      max_delay: largest delay there is room for, in rounds. Memory is
        ``max_delay + 1`` copies of the parameters.
      weigh: ages (float32) to weights, applied to each worker's pseudo-gradient
        before the mean; None for one.
    """

    protocol: str
    max_delay: int
    weigh: Callable[[Array], Array] | None = None


class DelayedState(NamedTuple):
    """All that a delayed run is between two rounds.

    Attributes:
      params: the assembled model.
      outer: state of the outer optimizer.
      workers: optimizer states of the workers, leaves (B, K, ...).
      pending: earlier models (``snapshot``), or a queue for each block of what is on
        its way (``in_flight``).
      round: rounds done, int32 scalar.
      key: the run's random key; round r uses ``fold_in(key, r)``.
    """

    params: Params
    outer: optax.OptState
    workers: optax.OptState
    pending: Any
    round: Array
    key: Array


class Arrived(NamedTuple):
    """What a round hands to the outer optimizer.

    Attributes:
      by_block: mean weighted pseudo-gradients, leaves (B, ...).
      workers: how many workers' are in it, int32 (B,).
      age: their mean age in rounds, float32 (B,).
    """

    by_block: Parts
    workers: Array
    age: Array


DelayedRound = Callable[
    [DelayedState, Array, Array, Array], tuple[DelayedState, Metrics]
]


def init_delayed(
    engine: Engine, delivery: Delivery, params: Params, key: Array
) -> DelayedState:
    """State before the first round."""
    fresh = init_state(engine, params, key)
    if delivery.protocol == "snapshot":
        pending = history(params, delivery.max_delay)
    else:
        part = jax.tree.map(lambda leaf: leaf[0], engine.partition.take(params))
        empty = delay_queue(part, delivery.max_delay)
        count = engine.partition.count
        pending = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), empty)
    return DelayedState(params, fresh.outer, fresh.workers, pending, fresh.round, key)


def make_delayed_round(engine: Engine, delivery: Delivery) -> DelayedRound:
    """The round as a pure function, not yet compiled.

    It maps ``(state, windows (B, K, H, N, T+1), delays int32 (B, K), active bool
    (B, K))`` to the next state and metrics: ``loss`` in training (mean over active
    workers), ``arrived`` (how many), ``age`` (their mean), ``update_norm``. A worker
    that isn't active does nothing.
    """
    if delivery.protocol not in PROTOCOLS:
        raise ValueError(
            f"protocol={delivery.protocol!r} is unknown: use {' or '.join(PROTOCOLS)}"
        )
    exchange = _snapshot if delivery.protocol == "snapshot" else _in_flight

    def run_round(
        state: DelayedState, windows: Array, delays: Array, active: Array
    ) -> tuple[DelayedState, Metrics]:
        workers, pending, arrived, metrics = exchange(
            engine, delivery, state, windows, delays, active
        )
        present = arrived.workers > 0
        gradient = engine.partition.put(arrived.by_block, present)
        params, outer_state, norm = step_outer(
            engine, gradient, state.outer, state.params, present, arrived.age
        )
        count = jnp.sum(arrived.workers)
        age = jnp.sum(arrived.age * arrived.workers) / jnp.maximum(count, 1)
        report = {
            "loss": masked_mean(metrics["loss"].ravel(), active.ravel()),
            "arrived": count,
            "age": age,
            "update_norm": norm,
        }
        following = DelayedState(
            params, outer_state, workers, pending, state.round + 1, state.key
        )
        return following, report

    return run_round


def _snapshot(
    engine: Engine,
    delivery: Delivery,
    state: DelayedState,
    windows: Array,
    delays: Array,
    active: Array,
) -> tuple[Any, Any, Arrived, Metrics]:
    """Workers start from ``theta_{t - delay}`` and are heard at once."""
    # Recorded first and read after: a program that reads the ring and then writes to
    # it may be compiled with a copy of the whole ring.
    pending = record(state.pending, state.params, state.round)
    models = snapshots(pending, (state.round - delays).reshape(-1))
    models = jax.tree.map(
        lambda leaf: leaf.reshape(*delays.shape, *leaf.shape[1:]), models
    )
    sent = own_parts(engine, models)
    key = jax.random.fold_in(state.key, state.round)
    returned, workers, metrics = train_workers(
        engine, sent, state.workers, windows, key, own=True
    )
    workers = select(active, workers, state.workers)
    ages = delays.astype(jnp.float32)
    delta = jax.tree.map(difference, sent, returned)
    by_block = jax.vmap(_weighted_mean)(delta, _weights(delivery, ages), active)
    arrived = Arrived(
        by_block,
        jnp.sum(active, axis=1, dtype=jnp.int32),
        jax.vmap(masked_mean)(ages, active),
    )
    return workers, pending, arrived, metrics


def _in_flight(
    engine: Engine,
    delivery: Delivery,
    state: DelayedState,
    windows: Array,
    delays: Array,
    active: Array,
) -> tuple[Any, Any, Arrived, Metrics]:
    """Workers start from ``theta_t`` and are heard ``delay`` rounds later."""
    sent = engine.partition.take(state.params)
    key = jax.random.fold_in(state.key, state.round)
    returned, workers, metrics = train_workers(
        engine, sent, state.workers, windows, key
    )
    workers = select(active, workers, state.workers)
    delta = jax.tree.map(lambda s, r: difference(s[:, None], r), sent, returned)
    weights = _weights(delivery, delays.astype(jnp.float32))

    def exchange(
        queue: Any, items: Any, delay: Array, weight: Array, valid: Array
    ) -> Any:
        queue = push_many(
            queue, items, state.round, delay=delay, weight=weight, valid=valid
        )
        return pop_due(queue, state.round)

    pending, due = jax.vmap(exchange)(state.pending, delta, delays, weights, active)
    return workers, pending, Arrived(due.mean, due.count, due.age), metrics


def own_parts(engine: Engine, models: Params) -> Parts:
    """The part of each worker out of its own model: leaves (B, K, ...) in and out."""
    blocks = jnp.arange(engine.partition.count)

    def one(model: Params, block: Array) -> Any:
        return jax.tree.map(lambda leaf: leaf[block], engine.partition.take(model))

    return jax.vmap(jax.vmap(one, in_axes=(0, None)))(models, blocks)


def select(mask: Array, new: Any, old: Any) -> Any:
    """``new`` where ``mask`` (leading axes of every leaf) is true, else ``old``."""

    def one(a: Array, b: Array) -> Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim)), a, b)

    return jax.tree.map(one, new, old)


def _weights(delivery: Delivery, ages: Array) -> Array:
    return jnp.ones_like(ages) if delivery.weigh is None else delivery.weigh(ages)


def _weighted_mean(values: Any, weights: Array, mask: Array) -> Any:
    """``sum(weight * value) / count`` over the leading axis, where ``mask`` is true.

    Divided by the count and not by the weights: a gate that is divided out again by
    equal ages would be none.
    """

    def weigh(leaf: Array) -> Array:
        return leaf * weights.reshape(-1, *(1,) * (leaf.ndim - 1)).astype(leaf.dtype)

    return masked_mean(jax.tree.map(weigh, values), mask)


def _check_delays(delays: Array, most: int) -> None:
    # NumPy's, since inside a jitted function JAX would trace a constant's as well.
    known = np.asarray(delays)
    least, largest = int(known.min()), int(known.max())
    if least < 0 or largest > most:
        wrong = least if least < 0 else largest
        raise ValueError(
            f"delays has {wrong}, outside [0, max_delay={most}]: raise max_delay of "
            "the Delivery, or mend the schedule"
        )


def simulate(
    engine: Engine,
    delivery: Delivery,
    params: Params,
    key: Array,
    windows: Array,
    delays: Array,
    active: Array,
    evaluate: Callable[[Params], Any],
    every: int,
) -> tuple[DelayedState, Metrics, Any]:
    """A whole run as one scan over rounds, evaluated after each ``every`` of them.

    Args:
      engine: partition, objective, optimizers and replicas.
      delivery: protocol, room and weights.
      params: where to begin.
      key: randomness of the run.
      windows: uint8 (R, B, K, H, N, T+1).
      delays: rounds, int32 (R, B, K).
      active: bool (R, B, K).
      evaluate: parameters to a loss, scalar, or to a tree of numbers.
      every: rounds between evaluations; divides R.

    Returns:
      The last state, the metrics of each round (leading axis R), and the losses after
      rounds ``every``, ``2 every``, ... (R / every,).

    Raises:
      ValueError: if a delay whose value is known lies outside [0, max_delay]. One that
        is traced must not: ``in_flight`` drops it, and ``snapshot`` takes a later
        model for it.
    """
    run_round = make_delayed_round(engine, delivery)
    if not isinstance(delays, jax.core.Tracer):
        _check_delays(delays, delivery.max_delay)

    def one(state: DelayedState, given: tuple[Array, Array, Array]) -> Any:
        return run_round(state, *given)

    state = init_delayed(engine, delivery, params, key)
    return scan_rounds(
        one,
        lambda state: evaluate(state.params),
        state,
        (windows, delays, active),
        every,
    )
