"""Rounds that sync fragments of the model by themselves, late or irregularly.

As in Streaming DiLoCo (arXiv 2501.18512) workers keep a model of their own and train on
while fragments of it are sent, averaged and taken over. A fragment's pseudo-gradient is
what workers changed in it since they last took it over; it is applied some rounds after
it was sent, with its delay and its fragment's age known to the outer optimizer.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from spheroid_jax.delivery import (
    DelayQueue,
    delay_queue,
    pop_due,
    push,
    restack_layers,
    unstack_layers,
)
from spheroid_jax.objectives import Metrics
from spheroid_jax.partition import Params, difference, masked_mean
from spheroid_jax.rounds.delayed import select
from spheroid_jax.rounds.round import Engine, train_workers
from spheroid_jax.rounds.scan import scan_rounds


class PartialSync(NamedTuple):
    """How fragments are synced.

    Attributes:
      labels: label of each leaf of the unstacked parameters.
      names: the labels, in the order of schedules.
      max_delay: largest delay, in rounds.
      weigh: delays (float32) to weights of pseudo-gradients; None for one.
      aware: whether the outer optimizer takes ``synced``. One that doesn't gets a
        gradient of zero for what isn't synced, and is not called in a round in which
        nothing arrives.
      mixing: share of its own that a worker keeps when it takes a fragment over.
    """

    labels: Any
    names: tuple[str, ...]
    max_delay: int
    weigh: Callable[[Array], Array] | None = None
    aware: bool = True
    mixing: float = 0.0


class PartialState(NamedTuple):
    """All that a run is between two rounds.

    Attributes:
      params: the global model, its layers unstacked.
      outer: state of the outer optimizer.
      models: the workers' models, leaves (1, M, ...).
      workers: their optimizer states, leaves (1, M, ...).
      anchor: of each fragment, what was last taken over; like ``params``.
      queue: pseudo-gradients on their way.
      round: rounds done, int32 scalar.
      key: the run's random key.
    """

    params: Params
    outer: optax.OptState
    models: Params
    workers: optax.OptState
    anchor: Params
    queue: DelayQueue
    round: Array
    key: Array


class Sync(NamedTuple):
    """What one round does, or, with a leading axis, what each round does.

    Attributes:
      delay: rounds, int32 scalar.
      synced: which fragments are sent, bool (F,).
      accepted: whose are averaged, bool (M,).
    """

    delay: Array
    synced: Array
    accepted: Array


PartialRound = Callable[
    [PartialState, Array, Sync], tuple[PartialState, dict[str, Array]]
]


def init_partial(
    engine: Engine, sync: PartialSync, params: Params, key: Array
) -> PartialState:
    """State before the first round."""
    models = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (1, engine.replicas, *leaf.shape)),
        jax.tree.map(lambda leaf: leaf[0], engine.partition.take(params)),
    )
    workers = jax.vmap(jax.vmap(engine.inner.init))(models)
    apart = unstack_layers(params)
    like = {"delta": apart, "synced": jnp.zeros(len(sync.names))}
    queue = delay_queue(like, sync.max_delay)
    outer = engine.outer.init(apart)
    return PartialState(apart, outer, models, workers, apart, queue, jnp.int32(0), key)


def make_partial_round(engine: Engine, sync: PartialSync) -> PartialRound:
    """The round as a pure function, not yet compiled.

    It maps ``(state, windows (1, M, H, N, T+1), Sync)`` to the next state and metrics:
    ``loss`` in training, ``arrived`` (fragments), ``age`` (delay of what arrived).
    """
    outer = optax.with_extra_args_support(engine.outer)

    def run_round(
        state: PartialState, windows: Array, given: Sync
    ) -> tuple[PartialState, Metrics]:
        key = jax.random.fold_in(state.key, state.round)
        models, workers, metrics = train_workers(
            engine, state.models, state.workers, windows, key, own=True
        )
        queue, arrived = _exchange(sync, state, models, given)
        # Several rounds' updates may arrive at once, and not all hold all fragments.
        share = arrived.mean["synced"]
        present = share > 0
        gradient = by_fragment(
            sync,
            lambda leaf, f: jnp.where(
                present[f], leaf / jnp.where(present[f], share[f], 1.0), 0.0
            ),
            arrived.mean["delta"],
        )
        updates, outer_state = outer.update(
            gradient, state.outer, state.params, age=arrived.age, synced=present
        )
        params = optax.apply_updates(state.params, updates)
        if not sync.aware:
            params, outer_state = select(
                jnp.any(present), (params, outer_state), (state.params, state.outer)
            )
        following = PartialState(
            params,
            outer_state,
            _take_over(sync, params, models, present),
            workers,
            by_fragment(
                sync,
                lambda new, f, old: jnp.where(present[f], new, old),
                params,
                state.anchor,
            ),
            queue,
            state.round + 1,
            state.key,
        )
        report = {
            "loss": jnp.mean(metrics["loss"]),
            "arrived": jnp.sum(present, dtype=jnp.int32),
            "age": arrived.age,
        }
        return following, report

    return run_round


def _exchange(
    sync: PartialSync, state: PartialState, models: Params, given: Sync
) -> tuple[DelayQueue, Any]:
    """Sends the synced fragments' pseudo-gradients, and receives what is due."""
    anchor = restack_layers(state.anchor)

    def change(a: Array, m: Array) -> Array:
        # In the workers' precision, as they took it over: what was lost in rounding
        # the anchor is no change of theirs.
        return difference(a[None].astype(m.dtype), m[0])

    delta = masked_mean(jax.tree.map(change, anchor, models), given.accepted)
    sent = by_fragment(
        sync,
        lambda leaf, f: jnp.where(given.synced[f], leaf, jnp.zeros_like(leaf)),
        unstack_layers(delta),
    )
    flags = given.synced.astype(jnp.float32)
    age = given.delay.astype(jnp.float32)
    if sync.weigh is not None:
        # Weighted here and not by the queue, which would weigh the flags as well.
        weight = sync.weigh(age)
        sent = jax.tree.map(lambda leaf: leaf * weight.astype(leaf.dtype), sent)
    queue = push(
        state.queue,
        {"delta": sent, "synced": flags},
        state.round,
        delay=given.delay,
        valid=jnp.any(given.synced) & jnp.any(given.accepted),
    )
    return pop_due(queue, state.round)


def _take_over(
    sync: PartialSync, params: Params, models: Params, present: Array
) -> Params:
    """Workers' models, with the fragments that arrived taken over."""

    def one(own: Params) -> Params:
        def mixed(new: Array, f: int, old: Array) -> Array:
            # Where all is taken over a worker's own, which may be NaN, is not added.
            kept = sync.mixing * old if sync.mixing else jnp.zeros_like(old)
            taken = (kept + (1.0 - sync.mixing) * new).astype(old.dtype)
            return jnp.where(present[f], taken, old)

        return restack_layers(by_fragment(sync, mixed, params, unstack_layers(own)))

    return jax.vmap(jax.vmap(one))(models)


def by_fragment(
    sync: PartialSync, function: Callable[..., Array], tree: Params, *rest: Params
) -> Params:
    """Maps ``function(leaf, index of its fragment, *leaves of rest)`` over trees."""
    index = {name: i for i, name in enumerate(sync.names)}
    return jax.tree.map(
        lambda label, leaf, *others: function(leaf, index[label], *others),
        sync.labels,
        tree,
        *rest,
    )


def simulate_partial(
    engine: Engine,
    sync: PartialSync,
    params: Params,
    key: Array,
    windows: Array,
    given: Sync,
    evaluate: Callable[[Params], Array],
    every: int,
) -> tuple[PartialState, Metrics, Array]:
    """A whole run as one scan; see :func:`spheroid_jax.rounds.delayed.simulate`.

    ``given`` has leading axis R (rounds) on every leaf.
    """
    run_round = make_partial_round(engine, sync)

    def one(state: PartialState, inputs: tuple[Array, Sync]) -> Any:
        return run_round(state, *inputs)

    def judge(state: PartialState) -> Array:
        return evaluate(restack_layers(state.params))

    state = init_partial(engine, sync, params, key)
    return scan_rounds(one, judge, state, (windows, given), every)
