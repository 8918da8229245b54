"""The whole run: a rate for each method without delay, then every delay with it."""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from ml_collections import ConfigDict

from spheroid_jax import delivery
from spheroid_jax.fields import ConfigError
from spheroid_jax.optim.recipes import Recipe
from spheroid_jax.reports.bound.report import method_label, write_report
from spheroid_jax.reports.tables import duration
from spheroid_jax.runs.bound.functions import FUNCTIONS, Smooth, typical_gradient
from spheroid_jax.runs.bound.inequality import ALPHAS, inequality
from spheroid_jax.runs.bound.program import (
    Program,
    build_program,
    family,
    recipe_of,
)
from spheroid_jax.runs.whole import Say, Whole, run_whole

Measures = dict[str, np.ndarray]  # by name, (J, S)


def _check(config: ConfigDict) -> None:
    if (longest := max(config.delay.tau_max)) >= config.train.rounds:
        raise ConfigError(
            f"delay.tau_max has {longest}, which is not below train.rounds="
            f"{config.train.rounds}: lower it or train longer"
        )


def _opening(config: ConfigDict, prepared: None) -> str:
    del prepared
    return (
        f"{len(config.functions)} functions x {len(config.methods)} methods x "
        f"{len(_delays(config))} delays x {config.seeds} seeds of "
        f"{config.train.rounds} rounds"
    )


def _work(config: ConfigDict, prepared: None, say: Say) -> dict[str, Any]:
    """Every method on every function at every delay."""
    del prepared
    rows, functions = [], {}
    for name in config.functions:
        function = FUNCTIONS[name]()
        scale = typical_gradient(function)
        functions[name] = {
            "formula": function.formula,
            "lipschitz": function.lipschitz,
            "noise": config.train.noise * scale,
        }
        rows += _function_rows(config, name, function, scale, say)
    alphas = tuple(sorted({*ALPHAS, float(config.outer.alpha)}))
    return {
        "seeds": config.seeds,
        "rounds": config.train.rounds,
        "alpha": config.outer.alpha,
        "tau_cut": config.outer.tau_cut,
        "last": config.eval.last,
        "methods": list(config.methods),
        "functions": functions,
        "inequality": inequality(alphas, config.outer.tau_cut),
        "rows": rows,
    }


def _function_rows(
    config: ConfigDict, name: str, function: Smooth, scale: float, say: Say
) -> list[dict[str, Any]]:
    """All methods on one function; those of a family share a compiled program."""
    programs: dict[str, Program] = {}
    rows = []
    for number, method in enumerate(config.methods, 1):
        began = time.perf_counter()
        recipe = recipe_of(method, _defaults(config))
        if family(method) not in programs:
            programs[family(method)] = build_program(
                function,
                family(method),
                recipe,
                deviation=config.train.noise * scale,
                max_delay=max(config.delay.tau_max),
                last=config.eval.last,
            )
        found = _method_rows(config, programs[family(method)], recipe)
        rows += [{"function": name, "method": method, **row} for row in found]
        rate, first = found[0]["learning_rate"], np.mean(found[0]["error"])
        spent = duration(time.perf_counter() - began)
        say(
            f"  {name} {number}/{len(config.methods)}  {method_label(method)}: best "
            f"rate without delay {rate:g}, error {first:.3g} ({spent})"
        )
    return rows


def _method_rows(
    config: ConfigDict, program: Program, recipe: Recipe
) -> list[dict[str, Any]]:
    rates = config.outer.learning_rates
    # One width for both calls, so that they are one program.
    width = max(len(rates), len(_delays(config)))
    keys = jax.vmap(jax.random.key)(_seeds(config))
    padded = jnp.asarray(np.resize(rates, width), jnp.float32)
    ages = _ages(config, [("fixed", 0)] * width)
    grid = _measured(program, recipe, padded, keys, ages)
    chosen = choose(rates, {k: v[: len(rates)] for k, v in grid.items()})
    delays = _delays(config)
    settings = delays + [delays[0]] * (width - len(delays))
    same = jnp.full(width, chosen, jnp.float32)
    measures = _measured(program, recipe, same, keys, _ages(config, settings))
    tried = [
        {"learning_rate": rate, "error": float(np.mean(errors))}
        for rate, errors in zip(rates, grid["error"], strict=False)
    ]
    rows: list[dict[str, Any]] = []
    for number, (kind, tau) in enumerate(delays):
        lost = diverged({name: values[number] for name, values in measures.items()})
        rows.append(
            {
                "kind": kind,
                "tau_max": tau,
                "learning_rate": chosen,
                "diverged": lost.tolist(),
                **{k: v[number].astype(float).tolist() for k, v in measures.items()},
            }
        )
    rows[0]["grid"] = tried
    return rows


def _measured(
    program: Program, recipe: Recipe, rates: Array, keys: Array, ages: Array
) -> Measures:
    numbers = {name: jnp.full_like(rates, x) for name, x in recipe.numbers.items()}
    found = program(numbers | {"learning_rate": rates}, keys, ages)
    return {k: np.asarray(v) for k, v in found._asdict().items()}


def choose(rates: tuple[float, ...], measures: Mapping[str, np.ndarray]) -> float:
    """The rate with the lowest mean error without delay.

    Args:
      rates: the grid.
      measures: by name, (rates, seeds).

    Returns:
      One of ``rates``; the lowest of them if every one diverges in some seed.
    """
    lost = diverged(measures).any(axis=1)
    errors = np.where(lost, np.inf, np.nan_to_num(measures["error"]).mean(axis=1))
    if lost.all():
        return float(min(rates))
    return float(rates[int(np.argmin(errors))])


def diverged(measures: Mapping[str, np.ndarray]) -> np.ndarray:
    """Which runs end not finite, or above where they began, in f."""
    bad = ~np.isfinite(measures["error"]) | ~np.isfinite(measures["value"])
    return bad | (np.nan_to_num(measures["value"]) > measures["start"])


def _delays(config: ConfigDict) -> list[tuple[str, int]]:
    """(kind of ages, tau_max), without delay first."""
    return [
        ("none", 0),
        *((kind, tau) for kind in config.delay.kinds for tau in config.delay.tau_max),
    ]


def _ages(config: ConfigDict, settings: list[tuple[str, int]]) -> Array:
    """Delays of every setting and seed, int32 (J, S, R, M); the first are shorter."""
    rounds, workers = config.train.rounds, config.train.replicas
    found = []
    for kind, tau in settings:
        if kind == "uniform":
            seeds = [
                delivery.uniform(_age_key(seed), rounds, workers, tau)
                for seed in _seeds(config).tolist()
            ]
        else:
            seeds = [delivery.fixed(rounds, workers, tau)] * config.seeds
        found.append(jnp.stack([delivery.ramp(ages) for ages in seeds]))
    return jnp.stack(found)


def _age_key(seed: int) -> Array:
    return jax.random.fold_in(jax.random.key(seed), 0xA6E)


def _seeds(config: ConfigDict) -> np.ndarray:
    wide = np.arange(config.seed, config.seed + config.seeds, dtype=np.uint64)
    return (wide % 2**32).astype(np.uint32)


def _defaults(config: ConfigDict) -> dict[str, float]:
    given = dict(config.outer)
    rates = given.pop("learning_rates")
    return {**given, "learning_rate": rates[0]}


run_bound = partial(run_whole, Whole(_check, _opening, _work, write_report))
