"""Fragments synced by themselves: against plain Python lists, and what must hold."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spheroid_jax import partition
from spheroid_jax.delivery import (
    dropped,
    every,
    fragment_labels,
    quorum,
    round_robin,
    strided,
    unstack_layers,
)
from spheroid_jax.optim import cgad
from spheroid_jax.optim.recipes import build_outer, parse_recipe
from spheroid_jax.rounds import Engine
from spheroid_jax.rounds.partial import (
    PartialSync,
    Sync,
    init_partial,
    make_partial_round,
    simulate_partial,
)

Toy = Callable[..., Engine]

ROUNDS, WORKERS, STEPS, LAYERS, WIDTH = 12, 3, 2, 4, 2
NUMBERS = {
    "learning_rate": 0.5,
    "b1": 0.8,
    "b2": 0.9,
    "eps": 1e-3,
    "alpha": 0.2,
    "tau_cut": 6.0,
}
BEGUN = np.linspace(-3, 20, LAYERS * WIDTH + 1).astype(np.float32)


def model() -> Any:
    """Four layers of two numbers, and one number that is no layer's."""
    return {
        "layers": {"w": jnp.asarray(BEGUN[:-1]).reshape(LAYERS, WIDTH)},
        "table": jnp.asarray(BEGUN[-1:]),
    }


def flat(params: Any) -> jax.Array:
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])


def owner(fragments: int) -> np.ndarray:
    """The fragment of each of the nine numbers: layer i in i mod F, the rest in 0."""
    layers = np.repeat(np.arange(LAYERS) % fragments, WIDTH)
    return np.r_[layers, 0]


def labels(fragments: int) -> Any:
    apart = unstack_layers(model())
    return fragment_labels(apart, strided(LAYERS, fragments), rest="fragment_0")


# The oracle: NumPy in float64 and Python lists.


def sigma(age: float) -> float:
    gate = 0.5 * (1 + np.cos(np.pi * age / 6.0))
    return 0.0 if age >= 6.0 else gate * np.exp(-0.2 * age)


class Moments:
    """Adam, of one fragment or of all."""

    def __init__(self) -> None:
        self.m: Any = 0.0
        self.v: Any = 0.0
        self.t = 0

    def step(self, g: np.ndarray) -> np.ndarray:
        self.t += 1
        self.m = 0.8 * self.m + 0.2 * g
        self.v = 0.9 * self.v + 0.1 * g * g
        m, v = self.m / (1 - 0.8**self.t), self.v / (1 - 0.9**self.t)
        return 0.5 * m / (np.sqrt(v) + 1e-3)


class Parcel(NamedTuple):
    due: int
    delay: int
    synced: np.ndarray
    delta: np.ndarray


def in_lists(
    goals: np.ndarray,
    delays: np.ndarray,
    synced: np.ndarray,
    accepted: np.ndarray,
    *,
    mixing: float,
    aware: bool,
) -> tuple[np.ndarray, list[list[int]]]:
    """Global parameters after each round, and the fragments' ages after each."""
    fragments = synced.shape[1]
    own = owner(fragments)
    theta = BEGUN.astype(np.float64)
    anchor = theta.copy()
    models = [theta.copy() for _ in range(WORKERS)]
    fleet: list[Parcel] = []
    adams = [Moments() for _ in range(fragments if aware else 1)]
    ages = [0] * fragments
    path, aged = [], []
    for t in range(ROUNDS):
        for k in range(WORKERS):
            for goal in goals[t, 0, k]:
                models[k] = models[k] - 0.25 * (models[k] - goal)
        if synced[t].any() and accepted[t].any():
            delta = np.mean(
                [anchor - models[k] for k in range(WORKERS) if accepted[t, k]], axis=0
            )
            due = t + int(delays[t])
            fleet.append(Parcel(due, int(delays[t]), synced[t], delta))
        landed = [p for p in fleet if p.due == t]
        fleet = [p for p in fleet if p.due > t]
        delay = float(np.mean([p.delay for p in landed])) if landed else 0.0
        gradient, present = np.zeros(len(theta)), [False] * fragments
        for f in range(fragments):
            holding = [p.delta for p in landed if p.synced[f]]
            if holding:
                present[f] = True
                gradient[own == f] = np.mean(holding, axis=0)[own == f]
        theta = theta.copy()
        if aware:
            for f in range(fragments):
                if present[f]:
                    g = sigma(max(delay, ages[f])) * gradient[own == f]
                    theta[own == f] -= adams[f].step(g)
                ages[f] = 0 if present[f] else ages[f] + 1
        elif any(present):
            theta -= adams[0].step(gradient)
        for f in range(fragments):
            if present[f]:
                mine = own == f
                anchor[mine] = theta[mine]
                for k in range(WORKERS):
                    kept = mixing * models[k][mine]
                    models[k][mine] = kept + (1 - mixing) * theta[mine]
        path.append(theta)
        aged.append(list(ages))
    return np.stack(path), aged


@pytest.fixture(scope="module")
def program(toy: Toy) -> Callable[..., Any]:
    """``(goals, Sync)`` to the last state, metrics and the path."""

    @functools.cache
    def build(fragments: int, recipe: str, mixing: float) -> Any:
        names = labels(fragments)
        aware = recipe.startswith("pa_cgad")
        outer = build_outer(
            parse_recipe(recipe, NUMBERS), **({"fragments": names} if aware else {})
        )
        engine = toy(
            inner=optax.sgd(0.25), outer=outer.transformation, replicas=WORKERS
        )
        sync = PartialSync(
            names,
            tuple(sorted(set(jax.tree.leaves(names)))),
            2,
            outer.weigh,
            aware,
            mixing,
        )

        @jax.jit
        def run(goals: jax.Array, given: Sync) -> Any:
            windows = goals[..., None, None]
            key = jax.random.key(0)
            return simulate_partial(engine, sync, model(), key, windows, given, flat, 1)

        return run

    return build


def draw_goals(seed: int = 0) -> np.ndarray:
    shape = (ROUNDS, 1, WORKERS, STEPS)
    return np.random.default_rng(seed).integers(0, 9, shape).astype(np.uint8)


@functools.cache
def schedules(fragments: int) -> dict[str, Sync]:
    turns = round_robin(ROUNDS, fragments)
    all_of = every(ROUNDS, [1] * fragments, [0] * fragments)
    lost = dropped(jax.random.key(1), all_of, 0.6)
    few = quorum(jax.random.key(2), ROUNDS, WORKERS, 1.0, quorum=1, grace=0.2)
    nobody_at_times = few & (jnp.arange(ROUNDS) % 4 != 2)[:, None]
    everybody = jnp.ones((ROUNDS, WORKERS), bool)

    def delay(*pattern: int) -> jax.Array:
        return jnp.resize(jnp.asarray(pattern, jnp.int32), (ROUNDS,))

    return {
        "in turn": Sync(delay(0), turns, everybody),
        "in turn, late": Sync(delay(1), turns, everybody),
        "with losses": Sync(delay(0), lost, few),
        "with losses, late": Sync(delay(1), lost, nobody_at_times),
        # Two parcels in one round, whose fragments differ.
        "at odds": Sync(delay(1, 0, 2), turns | lost, few),
    }


@pytest.mark.parametrize(
    ("fragments", "recipe", "mixing"),
    [
        (2, "pa_cgad ages=fragment", 0.5),
        (3, "pa_cgad ages=fragment", 0.0),
        (2, "adam", 0.0),
        (3, "adam", 0.5),
    ],
)
def test_a_run_is_what_lists_give(
    program: Any, fragments: int, recipe: str, mixing: float
) -> None:
    run, goals = program(fragments, recipe, mixing), draw_goals()
    aware = recipe != "adam"
    for name, given in schedules(fragments).items():
        last, metrics, path = run(goals, given)
        expected, ages = in_lists(
            goals, *map(np.asarray, given), mixing=mixing, aware=aware
        )
        np.testing.assert_allclose(path, expected, rtol=1e-4, atol=1e-4, err_msg=name)
        if aware:
            np.testing.assert_array_equal(last.outer.ages, ages[-1])
        assert np.any(np.asarray(metrics["arrived"]))
    assert run._cache_size() == 1


def test_what_is_not_synced_keeps_every_bit(program: Any) -> None:
    goals = draw_goals()
    for name in ("in turn", "with losses"):
        given = schedules(2)[name]
        _, metrics, path = program(2, "pa_cgad ages=fragment", 0.5)(goals, given)
        path = np.stack([BEGUN, *path])
        synced = np.asarray(given.synced)
        np.testing.assert_array_equal(metrics["arrived"], synced.sum(1))
        for t, f in np.ndindex(*synced.shape):
            before, after = (path[i][owner(2) == f] for i in (t, t + 1))
            if synced[t, f]:
                assert np.all(before != after)
            else:
                np.testing.assert_array_equal(before, after)


def test_ages_grow_until_a_fragment_is_synced(toy: Toy) -> None:
    """Three fragments in turn, then rounds in which nothing arrives at all."""
    names = labels(3)
    outer = build_outer(parse_recipe("pa_cgad ages=fragment", NUMBERS), fragments=names)
    engine = toy(outer=outer.transformation, replicas=WORKERS)
    order = tuple(sorted(set(jax.tree.leaves(names))))
    sync = PartialSync(names, order, 1)
    step = jax.jit(make_partial_round(engine, sync))
    state = init_partial(engine, sync, model(), jax.random.key(0))
    windows = jnp.asarray(draw_goals()[0], jnp.uint8)[..., None, None]
    turns = np.r_[np.eye(3, dtype=bool), np.zeros((2, 3), bool)]
    seen = []
    for t, synced in enumerate(turns):
        given = Sync(jnp.int32(0), jnp.asarray(synced), jnp.ones(WORKERS, bool))
        before, (state, metrics) = state, step(state, windows, given)
        seen.append(state.outer.ages.tolist())
        assert int(metrics["arrived"]) == (t < 3)
        moved = np.asarray(flat(state.params) != flat(before.params))
        np.testing.assert_array_equal(moved, np.isin(owner(3), np.flatnonzero(synced)))
    assert seen == [[0, 1, 1], [1, 0, 2], [2, 1, 0], [3, 2, 1], [4, 3, 2]]
    np.testing.assert_array_equal(state.outer.counts, [1, 1, 1])


def test_all_of_it_in_every_round_is_cgad(program: Any, toy: Toy) -> None:
    """By hand: lockstep rounds in NumPy, ``cgad`` in optax."""
    given = Sync(
        jnp.zeros(ROUNDS, jnp.int32),
        jnp.ones((ROUNDS, 2), bool),
        jnp.ones((ROUNDS, WORKERS), bool),
    )
    goals = draw_goals()
    _, _, path = program(2, "pa_cgad ages=fragment", 0.0)(goals, given)
    optimizer = cgad(0.5, 0.8, 0.9, 1e-3, alpha=0.2, tau_cut=6.0)
    update = jax.jit(lambda g, s: optimizer.update(g, s, age=0))
    theta = jnp.asarray(BEGUN)
    state = optimizer.init(theta)
    for t in range(ROUNDS):
        sent, returned = np.asarray(theta), []
        for k in range(WORKERS):
            w = sent
            for goal in goals[t, 0, k]:
                w = w - np.float32(0.25) * (w - np.float32(goal))
            returned.append(w)
        gradient = jnp.asarray(sent - np.mean(returned, axis=0))
        updates, state = update(gradient, state)
        theta = optax.apply_updates(theta, updates)
        np.testing.assert_allclose(path[t], theta, rtol=1e-4, atol=1e-4)


def test_a_worker_that_is_not_accepted_may_send_anything(toy: Toy) -> None:
    """And is well again where it takes over all of the model."""

    def poisoned(params: Any, batch: Any, key: jax.Array) -> Any:
        loss, metrics = toy().objective(params, batch, key)
        return jnp.where(metrics["goal"] == 66, jnp.nan, 1.0) * loss, metrics

    names = labels(2)
    outer = build_outer(parse_recipe("pa_cgad ages=fragment", NUMBERS), fragments=names)
    engine = toy(objective=poisoned, outer=outer.transformation, replicas=WORKERS)
    sync = PartialSync(names, ("fragment_0", "fragment_1"), 0, outer.weigh)
    step = jax.jit(make_partial_round(engine, sync))
    goals = draw_goals()[0]
    goals[0, 1] = 66
    state, _ = step(
        init_partial(engine, sync, model(), jax.random.key(0)),
        jnp.asarray(goals)[..., None, None],
        Sync(jnp.int32(0), jnp.ones(2, bool), jnp.asarray([True, False, True])),
    )
    assert np.all(np.isfinite(flat(state.params)))
    assert np.all(np.isfinite(flat(state.models)))


def test_low_precision_workers_send_nothing_when_they_learn_nothing(toy: Toy) -> None:
    """The model they took over was rounded; that is no change of theirs."""
    names = labels(2)
    engine = toy(
        partition=partition.everything(jnp.bfloat16),
        inner=optax.sgd(0.0),
        replicas=WORKERS,
    )
    sync = PartialSync(names, ("fragment_0", "fragment_1"), 0, aware=False)
    begun = jax.tree.map(lambda leaf: leaf * jnp.float32(1.2345678), model())
    state = init_partial(engine, sync, begun, jax.random.key(0))
    everything = Sync(jnp.int32(0), jnp.ones(2, bool), jnp.ones(WORKERS, bool))
    windows = jnp.asarray(draw_goals()[0])[..., None, None]
    step = jax.jit(make_partial_round(engine, sync))
    for _ in range(2):
        state, metrics = step(state, windows, everything)
        assert int(metrics["arrived"]) == 2
    np.testing.assert_array_equal(flat(state.params), flat(unstack_layers(begun)))
