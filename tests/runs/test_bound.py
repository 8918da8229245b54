"""Runs of kind bound: functions, measurement, programs and the whole run."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from spheroid_jax.config import BOUND_FUNCTIONS, BOUND_METHODS, bound
from spheroid_jax.fields import ConfigError
from spheroid_jax.objectives import Batch
from spheroid_jax.runs.bound import experiment
from spheroid_jax.runs.bound.functions import FUNCTIONS, Smooth
from spheroid_jax.runs.bound.inequality import inequality
from spheroid_jax.runs.bound.program import (
    RECIPES,
    Measured,
    build_program,
    family,
    measure,
    noisy,
    recipe_of,
)
from spheroid_jax.validation import problems

ROUNDS, TAU = 12, 3
DEFAULTS = {
    "learning_rate": 0.1,
    "momentum": 0.9,
    "b1": 0.9,
    "b2": 0.999,
    "eps": 1e-8,
    "alpha": 0.2,
    "tau_cut": 32.0,
}
CURVATURE = np.array([1.0, 0.25])
BOWL = Smooth(
    lambda x: 0.5 * jnp.sum(jnp.asarray(CURVATURE, jnp.float32) * jnp.square(x)),
    lambda key: jnp.array([2.0, -1.0]),
    1.0,
    "a bowl",
)


# Functions.


@pytest.mark.parametrize("name", ["ripples", "saddle"])
def test_the_lipschitz_constant_holds_and_is_not_far_off(name: str) -> None:
    function = FUNCTIONS[name]()
    points = 3.0 * jax.random.normal(jax.random.key(1), (400, 10))
    hessians = jax.jit(jax.vmap(jax.hessian(function.value)))(points)
    curvatures = np.linalg.eigvalsh(np.asarray(hessians))
    assert function.lipschitz is not None
    assert np.abs(curvatures).max() <= function.lipschitz + 1e-4
    assert np.abs(curvatures).max() > 0.6 * function.lipschitz
    assert curvatures.min() < -0.1, "it isn't convex"


def test_the_saddle_has_its_curvatures_and_its_minima() -> None:
    value = FUNCTIONS["saddle"]().value
    hessian = jax.jit(jax.hessian(value))(jnp.zeros(10))
    curvatures = np.linalg.eigvalsh(np.asarray(hessian))
    np.testing.assert_allclose(
        np.sort(curvatures), np.sort(-2 * np.logspace(-1, 0, 10)), rtol=1e-4
    )
    # All minima, at y = +-sqrt(2), have the value sum of lam (1 - 1.5 log 3).
    lowest = float(np.logspace(-1, 0, 10).sum() * (1 - 1.5 * np.log(3.0)))

    @jax.jit
    def descend(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 300, lambda _, x: x - 0.5 * jax.grad(value)(x), x)

    x = descend(jnp.full(10, 0.1))
    assert float(value(x)) == pytest.approx(lowest, rel=1e-3)


def test_the_network_is_what_its_formula_says() -> None:
    function = FUNCTIONS["network"]()
    assert function.start(jax.random.key(0)).shape == (3 * 8 + 8 + 8,)
    assert float(function.value(jnp.zeros(40))) > 0.1
    assert "40 parameters" in function.formula


def test_noise_adds_to_the_gradient_and_to_nothing_else() -> None:
    x, key = jnp.array([1.0, 2.0]), jax.random.key(3)
    batch = Batch(jnp.zeros((1, 2), jnp.uint8), jnp.int32(0))

    def slope(deviation: float) -> np.ndarray:
        objective = noisy(BOWL.value, deviation)
        return np.asarray(jax.grad(lambda p: objective(p, batch, key)[0])(x))

    exact = CURVATURE * np.array([1.0, 2.0])
    np.testing.assert_allclose(slope(0.0), exact, rtol=1e-6)
    unit = np.asarray(jax.random.normal(key, (2,)))
    np.testing.assert_allclose(slope(0.5) - exact, 0.5 * unit, rtol=1e-5)


# Measurement.


def test_measures_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    path = rng.normal(size=(9, 2)).astype(np.float32)
    delays = np.minimum(rng.integers(0, 4, (8, 2)), np.arange(8)[:, None])
    weights = rng.uniform(size=(8, 2)).astype(np.float32)
    given = jnp.asarray(path), jnp.asarray(delays), jnp.asarray(weights)
    found = jax.jit(lambda p, d, w: measure(BOWL, p, d, w, 0.25))(*given)
    squares, biases, blind = [], [], []
    for t in range(8):
        for worker in range(2):
            gap = CURVATURE * (path[t] - path[t - delays[t, worker]])
            blind.append(gap @ gap)
            biases.append(weights[t, worker] ** 2 * (gap @ gap))
    for t in (7, 8):  # a quarter of eight rounds
        squares.append(np.sum((CURVATURE * path[t]) ** 2))
    steps = [np.linalg.norm(path[t + 1] - path[t]) for t in range(8)]
    values = [0.5 * np.sum(CURVATURE * path[t] ** 2) for t in range(9)]
    expected = Measured(
        error=np.mean(squares),
        sup=np.max(squares),
        bias=np.mean(biases),
        bias_blind=np.mean(blind),
        bias_sup=np.sqrt(np.max(biases)),
        step=np.max(steps),
        weight=weights.mean(),
        value=np.mean(values[-2:]),
        start=values[0],
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# Programs, against loops in NumPy.


@pytest.fixture(scope="module")
def programs() -> dict[str, Any]:
    return {
        family(method): build_program(
            BOWL,
            family(method),
            recipe_of(method, DEFAULTS),
            deviation=0.0,
            max_delay=TAU,
            last=0.5,
        )
        for method in ("nesterov", "heavy_ball", "cgad")
    }


def run(programs: dict[str, Any], method: str, delays: np.ndarray) -> dict[str, float]:
    recipe = recipe_of(method, DEFAULTS)
    numbers = {name: jnp.array([x]) for name, x in recipe.numbers.items()}
    keys = jax.random.split(jax.random.key(0), 1)
    ages = jnp.asarray(delays, jnp.int32)[None, None, :, None]
    found = programs[family(method)](numbers, keys, ages)
    return {name: float(value[0, 0]) for name, value in found._asdict().items()}


def sigma(method: str, age: int) -> float:
    gate = 0.5 * (1 + np.cos(np.pi * age / 32)) if method == "cgad" else 1.0
    decay = np.exp(-0.2 * age) if method in ("cgad", "adam_decay") else 1.0
    return float(gate * decay)


def by_hand(method: str, delays: np.ndarray) -> float:
    """The late mean squared gradient of a run without noise."""
    path = [np.array([2.0, -1.0])]
    m, v = np.zeros(2), np.zeros(2)
    for t, age in enumerate(delays):
        g = sigma(method, age) * CURVATURE * path[t - age]
        if method in ("adam", "adam_decay", "cgad"):
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            mean, square = m / (1 - 0.9 ** (t + 1)), v / (1 - 0.999 ** (t + 1))
            update = mean / (np.sqrt(square) + 1e-8)
        else:
            m = 0.9 * m + g
            update = {"sgd": g, "heavy_ball": m, "nesterov": g + 0.9 * m}[method]
        path.append(path[t] - 0.1 * update)
    return float(np.mean([np.sum((CURVATURE * x) ** 2) for x in path[-6:]]))


FIXED = np.minimum(TAU, np.arange(ROUNDS))
VARYING = np.minimum([0, 3, 1, 2, 0, 3, 3, 1, 0, 2, 3, 1], np.arange(ROUNDS))


@pytest.mark.parametrize("method", BOUND_METHODS)
@pytest.mark.parametrize("delays", [FIXED, VARYING], ids=["fixed", "varying"])
def test_every_method_is_its_recursion(
    programs: dict[str, Any], method: str, delays: np.ndarray
) -> None:
    found = run(programs, method, delays)
    assert found["error"] == pytest.approx(by_hand(method, delays), rel=2e-3)
    weights = [sigma(method, age) for age in delays]
    assert found["weight"] == pytest.approx(np.mean(weights), rel=1e-5)
    assert found["start"] == pytest.approx(0.5 * (4 + 0.25))


def test_without_delay_the_adam_family_is_one(programs: dict[str, Any]) -> None:
    fresh = np.zeros(ROUNDS, int)
    runs = [run(programs, m, fresh) for m in ("adam", "adam_decay", "cgad")]
    assert runs[0] == runs[1] == runs[2]
    assert runs[0]["bias"] == 0.0


def test_there_is_a_recipe_for_every_method_and_a_function_for_every_name() -> None:
    assert tuple(RECIPES) == BOUND_METHODS
    assert tuple(FUNCTIONS) == BOUND_FUNCTIONS


# The inequality.


def test_the_largest_products_are_the_known_ones() -> None:
    rows = {row["alpha"]: row for row in inequality((0.1, 0.2, 0.4), 32.0)}
    for alpha, largest, place in (
        (0.1, 3.09, 7.3),
        (0.2, 1.74, 4.5),
        (0.4, 0.906, 2.4),
    ):
        assert rows[alpha]["gated"] == pytest.approx(largest, abs=0.005)
        assert rows[alpha]["gated_at"] == pytest.approx(place, abs=0.05)
        assert rows[alpha]["bound"] == pytest.approx(np.exp(-1) / alpha)
        assert rows[alpha]["decay"] == pytest.approx(rows[alpha]["bound"], rel=1e-6)
        assert rows[alpha]["decay_at"] == pytest.approx(1 / alpha, rel=0.01)


# Choices.


def test_the_rate_is_the_best_of_those_that_never_diverge() -> None:
    measures = {
        "error": np.array([[4.0, 4.0], [2.0, 3.0], [0.1, 0.1], [np.nan, 1.0]]),
        "value": np.array([[0.5, 0.5], [0.5, 0.5], [0.5, 1.5], [0.5, 0.5]]),
        "start": np.ones((4, 2)),
    }
    assert experiment.diverged(measures).tolist() == [
        *([False, False], [False, False], [False, True], [True, False]),
    ]
    rates = (0.1, 0.2, 0.3, 0.4)
    assert experiment.choose(rates, measures) == 0.2
    hopeless = {k: v[2:] for k, v in measures.items()}
    assert experiment.choose(rates[2:], hopeless) == 0.3


def test_ages_begin_as_a_ramp_and_stay_in_their_range() -> None:
    config = tiny()
    fixed, uniform = np.asarray(
        experiment._ages(config, [("fixed", 4), ("uniform", 4)])
    )
    assert fixed.shape == uniform.shape == (2, 40, 1)
    assert fixed[1, :, 0].tolist() == [0, 1, 2, 3, *[4] * 36]
    assert set(uniform.ravel().tolist()) == {0, 1, 2, 3, 4}
    assert np.all(uniform[:, :, 0] <= np.arange(40)[None])
    assert not np.array_equal(uniform[0], uniform[1]), "seeds have their own ages"


# The whole run.


def tiny() -> ConfigDict:
    config = bound()
    config.seeds, config.train.rounds = 2, 40
    config.methods, config.functions = ("sgd", "adam", "cgad"), ("ripples",)
    config.delay.tau_max = (1, 2, 4)
    config.outer.learning_rates = (0.01, 0.03)
    return config


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    workdir = tmp_path_factory.mktemp("bound") / "run"
    lines: list[str] = []
    summary = experiment.run_bound(
        tiny(), workdir, resume=False, command="again", say=lines.append
    )
    assert any("3/3  CGAD: best rate without delay" in line for line in lines)
    return workdir, summary


def test_every_method_meets_every_delay(
    finished: tuple[Path, dict[str, Any]],
) -> None:
    workdir, summary = finished
    assert {path.name for path in workdir.iterdir()} == {
        *("config.json", "summary.json", "report.md", "bound.png"),
    }
    places = [(r["method"], r["kind"], r["tau_max"]) for r in summary["rows"]]
    delays = [("none", 0), *((k, t) for k in ("fixed", "uniform") for t in (1, 2, 4))]
    assert places == [(m, *d) for m in ("sgd", "adam", "cgad") for d in delays]
    assert all(len(row["error"]) == 2 for row in summary["rows"])
    first = {r["method"]: r for r in summary["rows"] if r["tau_max"] == 0}
    assert first["adam"]["error"] == first["cgad"]["error"]
    for row in first.values():
        best = min(row["grid"], key=lambda point: point["error"])
        assert row["learning_rate"] == best["learning_rate"]
        assert np.mean(row["error"]) == pytest.approx(best["error"])
    assert json.loads((workdir / "summary.json").read_text())["rows"] == summary["rows"]


def test_a_finished_run_is_not_run_again(
    finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    workdir, summary = finished

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("it was run again")

    monkeypatch.setattr(experiment, "build_program", never)
    lines: list[str] = []
    again = experiment.run_bound(
        tiny(), workdir, resume=True, command="again", say=lines.append
    )
    assert again["rows"] == summary["rows"]
    assert lines == [f"bound in {workdir} finished before, not run again"]


def test_a_delay_as_long_as_the_run_claims_no_directory(tmp_path: Path) -> None:
    config = tiny()
    config.train.rounds = 4
    with pytest.raises(ConfigError, match=r"tau_max has 4.*train\.rounds=4: lower"):
        experiment.run_bound(config, tmp_path / "run", resume=False, command="")
    assert not (tmp_path / "run").exists()


def test_what_makes_no_sense_is_refused() -> None:
    config = tiny()
    assert problems(config, 1) == []
    config.methods = ("sgd", "cgad")
    assert problems(config, 1) == [
        "methods=('sgd', 'cgad') must have 'adam' among them: add it"
    ]
    config = tiny()
    config.outer.alpha = 0.0
    assert problems(config, 1) == ["outer.alpha=0.0 must be above 0"]
    config = tiny()
    config.sweep = ConfigDict({"axis": "outer.alpha", "cells": ("outer.alpha=0.1",)})
    (line,) = problems(config, 1)
    assert "sweep.axis=outer.alpha is for no run of kind=bound" in line
