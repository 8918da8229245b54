"""All runs of one method on one function, and what is measured of them, compiled."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from spheroid_jax.objectives import Batch, Metrics, Objective
from spheroid_jax.optim.recipes import Outer, Recipe, build_outer, parse_recipe
from spheroid_jax.partition import everything
from spheroid_jax.rounds import Engine
from spheroid_jax.rounds.delayed import Delivery, simulate
from spheroid_jax.runs.bound.functions import Smooth

# Recipes by method. Those of one optimizer differ in numbers alone, so that they share
# a compiled program: SGD has no momentum, age-blind Adam a weight of one at every age.
RECIPES: Mapping[str, str] = {
    "sgd": "nesterov momentum=0",
    "heavy_ball": "nesterov",
    "nesterov": "nesterov",
    "adam": "cgad gate=pre alpha=0 tau_cut=inf",
    "adam_decay": "cgad gate=pre tau_cut=inf",
    "cgad": "cgad gate=pre",
}


_AT_ONCE = 128  # rounds whose gradients are computed together


class Measured(NamedTuple):
    """What a run leaves behind, each a float32 scalar; "late" is its last part.

    Attributes:
      error: late mean of ``|grad f(theta_t)|^2``.
      sup: the largest of the same.
      bias: mean over all rounds of ``(sigma |grad f(theta_t) - grad f(theta_s)|)^2``,
        where ``s = t - age`` and sigma is the method's weight of that age, or one.
      bias_blind: the same without sigma.
      bias_sup: the largest ``sigma |grad f(theta_t) - grad f(theta_s)|``.
      step: the largest ``|theta_{t+1} - theta_t|``.
      weight: mean sigma over all rounds.
      value: late mean of f.
      start: f where the run began.
    """

    error: Array
    sup: Array
    bias: Array
    bias_blind: Array
    bias_sup: Array
    step: Array
    weight: Array
    value: Array
    start: Array


Program = Callable[[Mapping[str, Array], Array, Array], Measured]


def recipe_of(method: str, defaults: Mapping[str, float]) -> Recipe:
    """The outer optimizer of a method, with what it takes from ``defaults``."""
    return parse_recipe(RECIPES[method], defaults)


def family(method: str) -> str:
    """What methods that share a compiled program have in common."""
    return method if method == "heavy_ball" else RECIPES[method].split()[0]


def outer_of(family: str, recipe: Recipe) -> Outer:
    """The outer optimizer itself; the numbers of ``recipe`` may be traced."""
    if family == "heavy_ball":
        n = recipe.numbers
        heavy = optax.sgd(n["learning_rate"], momentum=n["momentum"])
        return Outer(None, optax.with_extra_args_support(heavy))
    return build_outer(recipe)


def noisy(value: Callable[[Array], Array], deviation: float) -> Objective:
    """An objective whose gradient is that of ``value`` plus white noise.

    The noise is a random slope: linear in the parameters, it leaves curvature alone.

    Args:
      value: the function.
      deviation: standard deviation of a coordinate of the noise.
    """

    def objective(params: Array, batch: Batch, key: Array) -> tuple[Array, Metrics]:
        del batch
        slope = deviation * jax.random.normal(key, params.shape)
        return value(params) + jnp.vdot(slope, params), {}

    return objective


def build_program(
    function: Smooth,
    family: str,
    recipe: Recipe,
    *,
    deviation: float,
    max_delay: int,
    last: float,
) -> Program:
    """Compiles, on its first call, all runs of a family of methods on one function.

    A worker takes one step of size one, so that what it sends is its noisy gradient.

    Args:
      function: what to minimise.
      family: see :func:`family`.
      recipe: only its choices are compiled in.
      deviation: standard deviation of a coordinate of the gradient noise.
      max_delay: rounds there is room for.
      last: the share of a run, at its end, that is "late".

    Returns:
      ``(numbers of the recipe, leaves (J,); keys (S,); delays int32 (J, S, R, M))`` to
      ``Measured`` with leaves (J, S): J settings, S seeds, R rounds, M workers.
    """

    def one(numbers: Mapping[str, Array], key: Array, delays: Array) -> Measured:
        outer = outer_of(family, Recipe(recipe.name, numbers, recipe.choices))
        start_key, noise_key = jax.random.split(key)
        start = function.start(start_key)
        rounds, workers = delays.shape
        engine = Engine(
            everything(),
            noisy(function.value, deviation),
            optax.sgd(1.0),
            outer.transformation,
            workers,
        )
        # The objective reads no windows; the engine counts local steps by them.
        windows = jnp.zeros((rounds, 1, workers, 1, 1, 2), jnp.uint8)
        _, _, path = simulate(
            engine,
            Delivery("snapshot", max_delay, outer.weigh),
            start,
            noise_key,
            windows,
            delays[:, None],
            jnp.ones((rounds, 1, workers), bool),
            evaluate=lambda params: params,
            every=1,
        )
        path = jnp.concatenate([start[None], path])
        ages = delays.astype(jnp.float32)
        weights = jnp.ones_like(ages) if outer.weigh is None else outer.weigh(ages)
        return measure(function, path, delays, weights, last)

    seeds = jax.vmap(one, in_axes=(None, 0, 0))
    return jax.jit(jax.vmap(seeds, in_axes=(0, None, 0)))


def measure(
    function: Smooth, path: Array, delays: Array, weights: Array, last: float
) -> Measured:
    """Measures one run.

    Args:
      function: what was minimised.
      path: parameters before each round and after the last, (R + 1, D).
      delays: ages in rounds, none beyond the round itself, int32 (R, M).
      weights: sigma of each, (R, M).
      last: the share of a run, at its end, that is "late".
    """
    rounds = delays.shape[0]
    late = max(1, round(last * rounds))
    # All at once, a network's activations at every round would take gigabytes.
    values, gradients = jax.lax.map(
        jax.value_and_grad(function.value), path, batch_size=_AT_ONCE
    )
    squares = jnp.sum(jnp.square(gradients), axis=1)[-late:]
    versions = jnp.arange(rounds)[:, None] - delays
    gaps = gradients[:-1, None] - gradients[versions]
    drift = jnp.sum(jnp.square(gaps), axis=2)
    weighted = jnp.square(weights) * drift
    steps = jnp.sum(jnp.square(jnp.diff(path, axis=0)), axis=1)
    return Measured(
        error=jnp.mean(squares),
        sup=jnp.max(squares),
        bias=jnp.mean(weighted),
        bias_blind=jnp.mean(drift),
        bias_sup=jnp.sqrt(jnp.max(weighted)),
        step=jnp.sqrt(jnp.max(steps)),
        weight=jnp.mean(weights),
        value=jnp.mean(values[-late:]),
        start=values[0],
    )
