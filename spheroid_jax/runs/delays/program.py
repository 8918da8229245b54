"""One delayed run of a method: rounds, workers and steps in one program."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from ml_collections import ConfigDict

from spheroid_jax import partition
from spheroid_jax.delivery import fragment_labels, strided, unstack_layers
from spheroid_jax.evaluation import reference_evaluator
from spheroid_jax.models import Llama, LlamaShape
from spheroid_jax.objectives import next_byte
from spheroid_jax.optim.quantized import adamw_8bit
from spheroid_jax.optim.recipes import Recipe, build_outer
from spheroid_jax.rounds import Engine
from spheroid_jax.rounds.delayed import Delivery, simulate
from spheroid_jax.rounds.partial import PartialSync, simulate_partial
from spheroid_jax.runs.delays.schedules import in_parts
from spheroid_jax.runs.grid.family import OneRun, Run
from spheroid_jax.runs.methods import inner_of


def build_model(config: ConfigDict) -> Llama:
    """The decoder of a configuration."""
    m = config.model
    return Llama(
        LlamaShape(
            width=m.width,
            layers=m.layers,
            heads=m.heads,
            kv_heads=m.kv_heads,
            mlp_width=m.mlp_width,
            compute_dtype=m.compute_dtype,
            remat=m.remat,
        )
    )


def build_run(config: ConfigDict, recipe: Recipe, max_delay: int) -> OneRun:
    """One run of a recipe, whose numbers are arguments."""

    def one(
        numbers: Mapping[str, Array],
        params: Any,
        key: Array,
        windows: Array,
        validation: Array,
        schedule: Any,
    ) -> Run:
        traced = Recipe(recipe.name, numbers, recipe.choices)
        return _run(
            config, traced, max_delay, params, key, windows, validation, schedule
        )

    return one


def _run(
    config: ConfigDict,
    recipe: Recipe,
    max_delay: int,
    params: Any,
    key: Array,
    windows: Array,
    validation: Array,
    schedule: Any,
) -> Run:
    model = build_model(config)
    round_key, eval_key = jax.random.split(key)
    judge = reference_evaluator(model, config.eval.batch)

    def evaluate(params: Any) -> Array:
        return judge(params, validation, eval_key)["ce"]

    def engine(outer: optax.GradientTransformation) -> Engine:
        train = config.train
        low = train.precision == "bf16_8bit"
        return Engine(
            partition.everything(jnp.bfloat16 if low else None),
            next_byte(model),
            inner_of(train, train.learning_rate, adamw_8bit if low else optax.adamw),
            outer,
            train.replicas,
            train.keep_inner,
        )

    every = config.eval.every
    if in_parts(config):
        fragments = config.sync.fragments
        labels = fragment_labels(
            unstack_layers(params),
            strided(config.model.layers, fragments),
            rest="fragment_0",
        )
        outer = build_outer(recipe, fragments=labels)
        sync = PartialSync(
            labels,
            tuple(sorted(set(jax.tree.leaves(labels)))),
            max_delay,
            outer.weigh,
            aware=recipe.name == "pa_cgad",
            mixing=config.sync.mixing,
        )
        _, metrics, losses = simulate_partial(
            engine(outer.transformation),
            sync,
            params,
            round_key,
            windows,
            schedule,
            evaluate,
            every,
        )
    else:
        delays, active = schedule
        outer = build_outer(recipe)
        _, metrics, losses = simulate(
            engine(outer.transformation),
            Delivery(config.delay.protocol, max_delay, outer.weigh),
            params,
            round_key,
            windows,
            delays,
            active,
            evaluate,
            every,
        )
    return Run(losses, metrics, {})
