"""One run over a virtual network: clock, queue and training in one program."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from ml_collections import ConfigDict

from spheroid_jax import partition
from spheroid_jax.delivery.clock import Events, simulate_network
from spheroid_jax.delivery.deliveries import deliveries
from spheroid_jax.evaluation import chain_evaluator
from spheroid_jax.optim.recipes import Recipe, build_outer
from spheroid_jax.rounds import Engine
from spheroid_jax.rounds.delayed import Delivery, simulate
from spheroid_jax.runs.grid.family import OneRun, Run
from spheroid_jax.runs.methods import (
    block_denoiser,
    denoising_objective,
    grid_levels,
    inner_of,
)
from spheroid_jax.runs.network.arrivals import Network, traffic_of


def build_run(config: ConfigDict, recipe: Recipe, max_delay: int) -> OneRun:
    """One run of a recipe, whose numbers and whose network are arguments.

    What arrives when does not depend on what is learnt, so a first scan runs the clock
    and a second one trains; both are in one program.
    """
    model, train = block_denoiser(config), config.train
    grid = jnp.asarray(grid_levels(config), jnp.float32)
    judge = chain_evaluator(model, grid, config.eval.batch)
    traffic = traffic_of(config)

    def one(
        numbers: Mapping[str, Array],
        params: Any,
        key: Array,
        windows: Array,
        validation: Array,
        network: Network,
    ) -> Run:
        outer = build_outer(Recipe(recipe.name, numbers, recipe.choices))
        engine = Engine(
            partition.blocks(config.model.blocks),
            denoising_objective(config, model),
            inner_of(train, train.learning_rate),
            outer.transformation,
            train.replicas,
        )
        events = simulate_network(
            network.fleet,
            traffic,
            network.policy,
            train.rounds,
            network.key,
            phases=network.phases,
        )
        # What never arrives is older than the queue has room for, which refuses it.
        given = deliveries(events, never=max_delay + 1)
        round_key, eval_key = jax.random.split(key)
        _, metrics, results = simulate(
            engine,
            Delivery("in_flight", max_delay, outer.weigh),
            params,
            round_key,
            windows,
            given.delays,
            given.trained,
            lambda params: judge(params, validation, eval_key),
            config.eval.every,
        )
        return Run(
            results["ce_chain"],
            metrics | _account(events, max_delay),
            {"ensemble": results["ce_ensemble"]},
        )

    return one


def _account(events: Events, max_delay: int) -> dict[str, Array]:
    """What is kept of the clock, leading axis R."""
    of_age = jax.nn.one_hot(events.age, max_delay + 1, dtype=jnp.int32)
    by_age = of_age * events.arrived[..., None].astype(jnp.int32)
    timely = events.arrived & (events.age == 0)
    return {
        "seconds": events.seconds,
        "time": events.time,
        "online": events.online,
        "sent": jnp.sum(events.started, axis=(1, 2), dtype=jnp.int32),
        "received": jnp.sum(events.arrived, axis=(1, 2), dtype=jnp.int32),
        "timely": jnp.sum(timely, axis=2, dtype=jnp.int32),  # (R, B)
        "by_age": jnp.sum(by_age, axis=(1, 2)),  # (R, D + 1)
        "busy_seconds": events.busy_seconds,
        "useful_seconds": events.useful_seconds,
    }
