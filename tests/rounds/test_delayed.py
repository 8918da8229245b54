"""Delayed rounds: against plain Python lists, and what delays must not change."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spheroid_jax import partition
from spheroid_jax.delivery import (
    fixed,
    from_trace,
    history,
    per_worker,
    started,
    uniform,
)
from spheroid_jax.objectives import Batch
from spheroid_jax.optim import cgad
from spheroid_jax.optim.recipes import Outer, build_outer, parse_recipe
from spheroid_jax.rounds import Engine, RoundState, make_round
from spheroid_jax.rounds.delayed import (
    PROTOCOLS,
    Delivery,
    init_delayed,
    make_delayed_round,
    simulate,
)

Toy = Callable[..., Engine]

ROUNDS, STEPS, MOST = 12, 2, 4
DEFAULTS = {
    "learning_rate": 0.5,
    "momentum": 0.9,
    "b1": 0.8,
    "b2": 0.9,
    "eps": 1e-3,
    "alpha": 0.2,
    "tau_cut": 6.0,
}
RECIPES = ("sgd", "nesterov", "cgad gate=pre", "cgad gate=post")
BEGUN = np.array([-3.0, 0.5, 20.0], np.float32)
POISON = 66
# Two in the default suite, for the time that each program takes to compile.
SLOWER = ("nesterov", "cgad gate=post")


ONE_SLOW = ("snapshot", pytest.param("in_flight", marks=pytest.mark.slow))


def some_slow(recipes: Iterable[str]) -> list[Any]:
    return [
        pytest.param(r, marks=pytest.mark.slow) if r in SLOWER else r for r in recipes
    ]


def same_bits(a: Any, b: Any) -> None:
    """Equal to the bit, signs of zeros included."""

    def raw(x: Any) -> np.ndarray:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        return np.asarray(x).view(np.uint8 if x.dtype == bool else np.uint32)

    jax.tree.map(lambda x, y: np.testing.assert_array_equal(raw(x), raw(y)), a, b)


# The oracle: plain NumPy in float64, Python lists, no vectorised workers.


def sigma(age: float) -> float:
    """CGAD's weight (arXiv 2605.09126, equation 1), with the numbers of DEFAULTS."""
    gate = 0.5 * (1 + np.cos(np.pi * age / DEFAULTS["tau_cut"]))
    return 0.0 if age >= DEFAULTS["tau_cut"] else gate * np.exp(-0.2 * age)


def one(age: float) -> float:
    return 1.0


class PlainSgd:
    def __call__(self, theta: np.ndarray, g: np.ndarray, age: float) -> np.ndarray:
        return theta - 0.5 * g


class PlainNesterov:
    def __init__(self) -> None:
        self.v: Any = 0.0

    def __call__(self, theta: np.ndarray, g: np.ndarray, age: float) -> np.ndarray:
        self.v = g + 0.9 * self.v
        return theta - 0.5 * (g + 0.9 * self.v)


class PlainAdam:
    def __init__(self, gate: Callable[[float], float] = one) -> None:
        self.m: Any = 0.0
        self.v: Any = 0.0
        self.t, self.gate = 0, gate

    def __call__(self, theta: np.ndarray, g: np.ndarray, age: float) -> np.ndarray:
        self.t += 1
        self.m = 0.8 * self.m + 0.2 * g
        self.v = 0.9 * self.v + 0.1 * g * g
        m, v = self.m / (1 - 0.8**self.t), self.v / (1 - 0.9**self.t)
        return theta - 0.5 * self.gate(age) * m / (np.sqrt(v) + 1e-3)


ORACLES: dict[str, tuple[Callable[[float], float], Callable[[], Any]]] = {
    "sgd": (one, PlainSgd),
    "nesterov": (one, PlainNesterov),
    "cgad gate=pre": (sigma, PlainAdam),
    "cgad gate=post": (one, lambda: PlainAdam(sigma)),
}


class Flying(NamedTuple):
    due: int
    delta: np.ndarray
    weight: float
    age: int
    block: int


class Oracle(NamedTuple):
    path: np.ndarray
    arrived: list[int]
    age: list[float]
    loss: list[float]


def in_lists(
    protocol: str,
    recipe: str,
    goals: np.ndarray,
    delays: np.ndarray,
    active: np.ndarray,
    *,
    begun: np.ndarray = BEGUN,
    blocks: int = 1,
    shared: int | None = None,
    keep_inner: bool = True,
) -> Oracle:
    """A run of :func:`pull`, whose parameters are B rows and a shared tail.

    A worker of block b holds row b and the tail. Arrays are (R, B, K, ...).
    """
    weigh, optimizer = ORACLES[recipe]
    # A block is stepped by itself, when something arrives for it, and the tail too.
    steps = [optimizer() for _ in range(blocks)]
    step_tail = optimizer()
    tail = len(begun) if shared is None else shared
    rows = (len(begun) - tail) // blocks
    held = [
        np.r_[b * rows : (b + 1) * rows, len(begun) - tail : len(begun)]
        for b in range(blocks)
    ]
    thetas = [begun.astype(np.float64)]
    flight: list[Flying] = []
    velocity: dict[tuple[int, int], Any] = {}
    arrived, ages, losses = [], [], []
    for t in range(len(goals)):
        seen = []
        for b, k in np.ndindex(*delays.shape[1:]):
            if not active[t, b, k]:
                continue
            delay = int(delays[t, b, k])
            old = protocol == "snapshot"
            sent = thetas[max(0, t - delay) if old else t][held[b]]
            w, v = sent, velocity.get((b, k), 0.0) if keep_inner else 0.0
            for goal in goals[t, b, k]:
                seen.append(np.sum((w - goal) ** 2) / 2)
                v = (w - goal) + 0.5 * v
                w = w - 0.25 * v
            velocity[b, k] = v
            due = t if old else t + delay
            flight.append(Flying(due, sent - w, weigh(delay), delay, b))
        landed = [f for f in flight if f.due == t]
        flight = [f for f in flight if f.due > t]
        theta = thetas[-1]
        if landed:
            theta, means, ages_here = theta.copy(), [], []
            for b in range(blocks):
                ours = [f for f in landed if f.block == b]
                if not ours:
                    continue
                mean = sum(f.weight * f.delta for f in ours) / len(ours)
                age, row = np.mean([f.age for f in ours]), held[b][:rows]
                if rows:
                    theta[row] = steps[b](theta[row], mean[:rows], age)
                means.append(mean[rows:])
                ages_here.append(age)
            theta[len(theta) - tail :] = step_tail(
                theta[len(theta) - tail :], np.mean(means, axis=0), np.mean(ages_here)
            )
        thetas.append(theta)
        arrived.append(len(landed))
        ages.append(float(np.mean([f.age for f in landed])) if landed else 0.0)
        losses.append(float(np.mean(seen)) if seen else 0.0)
    return Oracle(np.stack(thetas[1:]), arrived, ages, losses)


# The simulator, one compiled program for each protocol and optimizer.


def outer_of(recipe: str, **changes: float) -> Outer:
    return build_outer(parse_recipe(recipe, DEFAULTS | changes))


def flat(params: Any) -> jax.Array:
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])


def as_windows(goals: Any) -> jax.Array:
    return jnp.asarray(goals, jnp.uint8)[..., None, None]


@pytest.fixture(scope="module")
def program(toy: Toy) -> Callable[..., Any]:
    """``(goals, delays, active)`` to the last state, metrics and the path."""

    @functools.cache
    def build(protocol: str, recipe: str, replicas: int = 3, keep: bool = True) -> Any:
        outer = outer_of(recipe)
        engine = toy(
            inner=optax.sgd(0.25, momentum=0.5),
            outer=outer.transformation,
            replicas=replicas,
            keep_inner=keep,
        )
        delivery = Delivery(protocol, MOST, outer.weigh)

        @jax.jit
        def run(goals: jax.Array, delays: jax.Array, active: jax.Array) -> Any:
            params = {"v": jnp.asarray(BEGUN[0]), "w": jnp.asarray(BEGUN[1:])}
            windows = goals[..., None, None]
            key = jax.random.key(0)
            return simulate(
                engine, delivery, params, key, windows, delays, active, flat, 1
            )

        return run

    return build


def draw_goals(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 9, shape).astype(np.uint8)


@functools.cache
def schedules(workers: int) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Delays and active workers, (R, 1, M) each."""
    trace = [[0, 3, 1], [4, 4, 4], [2, 0, 0], [1, 1, 4], [0, 2, 3]]
    kinds = {
        "fixed": fixed(ROUNDS, workers, 3),
        "uniform": uniform(jax.random.key(4), ROUNDS, workers, MOST),
        "per_worker": per_worker(ROUNDS, np.array([2, 0, 4][:workers])),
        "trace": from_trace(np.array(trace), ROUNDS, workers),
    }
    every = {
        f"{kind}, {start}": started(delays, start)
        for kind, delays in kinds.items()
        for start in ("ramp", "skip")
    }
    absent = jax.random.bernoulli(jax.random.key(5), 0.4, (ROUNDS, workers))
    every["with absences"] = (every["uniform, ramp"][0], absent)
    return {name: (d[:, None], a[:, None]) for name, (d, a) in every.items()}


@pytest.mark.parametrize(
    ("recipe", "workers"),
    [
        ("sgd", 3),
        ("cgad gate=pre", 3),
        *(pytest.param(r, 3, marks=pytest.mark.slow) for r in SLOWER),
        pytest.param("nesterov", 1, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_run_is_what_lists_of_versions_and_of_updates_give(
    program: Any, protocol: str, recipe: str, workers: int
) -> None:
    run = program(protocol, recipe, workers)
    goals = draw_goals(ROUNDS, 1, workers, STEPS)
    for name, (delays, active) in schedules(workers).items():
        _, metrics, path = run(goals, delays, active)
        expected = in_lists(
            protocol, recipe, goals, np.asarray(delays), np.asarray(active)
        )
        np.testing.assert_allclose(
            path, expected.path, rtol=1e-4, atol=1e-4, err_msg=name
        )
        np.testing.assert_array_equal(metrics["arrived"], expected.arrived)
        np.testing.assert_allclose(metrics["age"], expected.age, rtol=1e-6)
        np.testing.assert_allclose(metrics["loss"], expected.loss, rtol=1e-3)
        moved = np.diff(np.stack([BEGUN, *expected.path]), axis=0)
        np.testing.assert_allclose(
            metrics["update_norm"], np.linalg.norm(moved, axis=1), rtol=1e-3, atol=1e-4
        )
    # Another schedule is another argument.
    assert run._cache_size() == 1


@pytest.mark.parametrize("protocol", ONE_SLOW)
def test_worker_optimizers_that_begin_anew_in_each_round(
    program: Any, protocol: str
) -> None:
    goals = draw_goals(ROUNDS, 1, 3, STEPS)
    delays, active = schedules(3)["with absences"]
    _, _, path = program(protocol, "sgd", 3, False)(goals, delays, active)
    arrays = goals, np.asarray(delays), np.asarray(active)
    expected = in_lists(protocol, "sgd", *arrays, keep_inner=False)
    np.testing.assert_allclose(path, expected.path, rtol=1e-4, atol=1e-4)
    kept = in_lists(protocol, "sgd", *arrays)
    assert np.abs(kept.path - expected.path).max() > 0.1


class TestProtocols:
    @pytest.mark.parametrize("recipe", ["sgd", *some_slow(SLOWER)])
    def test_without_delay_both_are_lockstep(
        self, program: Any, toy: Toy, recipe: str
    ) -> None:
        """To rounding: each program fuses its own products and sums."""
        goals = draw_goals(ROUNDS, 1, 3, STEPS)
        nothing = jnp.zeros((ROUNDS, 1, 3), jnp.int32)
        everybody = jnp.ones((ROUNDS, 1, 3), bool)
        engine = toy(
            inner=optax.sgd(0.25, momentum=0.5),
            outer=outer_of(recipe).transformation,
            replicas=3,
        )
        lockstep = jax.jit(make_round(engine))
        params = {"v": jnp.asarray(BEGUN[0]), "w": jnp.asarray(BEGUN[1:])}
        begun = init_delayed(engine, Delivery("snapshot", 0), params, jax.random.key(0))
        state = RoundState(
            params, begun.outer, begun.workers, begun.round, jax.random.key(0)
        )
        path = []
        for t in range(ROUNDS):
            state, _ = lockstep(state, as_windows(goals[t]), everybody[t])
            path.append(flat(state.params))
        for protocol in PROTOCOLS:
            last, _, got = program(protocol, recipe)(goals, nothing, everybody)
            np.testing.assert_allclose(got, np.stack(path), rtol=2e-6, atol=2e-6)
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
                (last.outer, last.workers),
                (state.outer, state.workers),
            )

    @pytest.mark.parametrize("recipe", some_slow(RECIPES))
    def test_snapshots_are_updates_in_flight_with_the_data_shifted(
        self, program: Any, recipe: str
    ) -> None:
        """A worker that starts late, from an old model, or early and is heard late."""
        tau = 3
        goals = draw_goals(ROUNDS, 1, 3, STEPS)
        delays = fixed(ROUNDS, 3, tau)[:, None]
        _, active = started(delays[:, 0], "skip")
        _, _, late = program("snapshot", recipe)(goals, delays, active[:, None])
        # The bytes of the last rounds are on their way when the run ends.
        shifted = np.concatenate([goals[tau:], 0 * goals[:tau]])
        _, _, early = program("in_flight", recipe)(
            shifted, delays, jnp.ones_like(active[:, None])
        )
        np.testing.assert_allclose(late, early, rtol=2e-6, atol=2e-6)
        np.testing.assert_array_equal(late[:tau], np.stack([BEGUN] * tau))
        assert np.all(np.any(np.diff(late[tau - 1 :], axis=0) != 0, axis=1))

    def test_one_that_does_not_exist(self, toy: Toy) -> None:
        with pytest.raises(
            ValueError, match=r"'carrier_pigeon'.*snapshot or in_flight"
        ):
            make_delayed_round(toy(), Delivery("carrier_pigeon", 2))

    @pytest.mark.parametrize("wrong", [-1, 2])
    def test_a_delay_without_room(self, toy: Toy, wrong: int) -> None:
        delays = fixed(ROUNDS, 2, 0)[:, None].at[3, 0, 1].set(wrong)
        with pytest.raises(ValueError, match=rf"delays has {wrong}, .*max_delay=1\]"):
            simulate(
                toy(),
                Delivery("snapshot", 1),
                {"w": jnp.zeros(2)},
                jax.random.key(0),
                as_windows(draw_goals(ROUNDS, 1, 2, STEPS)),
                delays,
                jnp.ones((ROUNDS, 1, 2), bool),
                lambda params: params["w"][0],
                ROUNDS,
            )

    def test_rounds_that_are_no_whole_number_of_stretches(self, toy: Toy) -> None:
        for every in (5, 0):
            with pytest.raises(ValueError, match=f"every={every} must divide the 12"):
                simulate(
                    toy(),
                    Delivery("snapshot", 1),
                    {"w": jnp.zeros(2)},
                    jax.random.key(0),
                    as_windows(draw_goals(ROUNDS, 1, 2, STEPS)),
                    fixed(ROUNDS, 2, 0)[:, None],
                    jnp.ones((ROUNDS, 1, 2), bool),
                    lambda params: params["w"][0],
                    every,
                )


@pytest.mark.parametrize("protocol", PROTOCOLS)
class TestWhoCounts:
    @pytest.mark.parametrize("recipe", ["nesterov", "cgad gate=pre"])
    def test_a_round_in_which_nothing_arrives_changes_nothing(
        self, program: Any, toy: Toy, protocol: str, recipe: str
    ) -> None:
        """Not even by momentum, of which there is some after six rounds."""
        outer = outer_of(recipe)
        engine = toy(inner=optax.sgd(0.25), outer=outer.transformation, replicas=3)
        delivery = Delivery(protocol, MOST, outer.weigh)
        step = jax.jit(make_delayed_round(engine, delivery))
        params = {"w": jnp.asarray(BEGUN)}
        state = init_delayed(engine, delivery, params, jax.random.key(0))
        windows = as_windows(draw_goals(6, 1, 3, STEPS))
        none, everybody = jnp.zeros((1, 3), jnp.int32), jnp.ones((1, 3), bool)
        for t in range(6):
            state, _ = step(state, windows[t], none, everybody)
        after, metrics = step(state, windows[0], none, ~everybody)
        same_bits(after.params, state.params)
        same_bits(after.outer, state.outer)
        assert int(after.round) == 7
        assert int(metrics["arrived"]) == 0
        assert float(metrics["update_norm"]) == 0.0
        moved, _ = step(after, windows[0], none, everybody)
        assert np.all(moved.params["w"] != after.params["w"])

    def test_equal_updates_of_any_ages_are_one_such_update(
        self, toy: Toy, protocol: str
    ) -> None:
        """One of age 0 and ten of age 1: no version counts twice."""

        def slope(params: Any, batch: Batch, key: jax.Array) -> Any:
            return 3.0 * jnp.sum(params["w"]), {}

        engine = toy(objective=slope, replicas=11)  # each sends 2 x 0.5 x 3 = 3
        delivery = Delivery(protocol, 1)
        delays = np.minimum(1, np.arange(11))[None, None].repeat(4, 0)
        state, metrics, path = jax.jit(
            lambda windows, delays: simulate(
                engine,
                delivery,
                {"w": jnp.zeros(2)},
                jax.random.key(0),
                windows,
                delays,
                jnp.ones((4, 1, 11), bool),
                flat,
                1,
            )
        )(as_windows(draw_goals(4, 1, 11, 2)), delays)
        del state
        np.testing.assert_array_equal(
            path, [[-3.0] * 2, [-6.0] * 2, [-9.0] * 2, [-12.0] * 2]
        )
        assert int(metrics["arrived"][-1]) == 11

    def test_workers_that_are_not_active_may_hold_anything(
        self, toy: Toy, protocol: str
    ) -> None:
        def poisoned(params: Any, batch: Batch, key: jax.Array) -> Any:
            loss, metrics = toy().objective(params, batch, key)
            return jnp.where(metrics["goal"] == POISON, jnp.nan, 1.0) * loss, metrics

        outer = outer_of("cgad gate=pre")
        engine = toy(
            objective=poisoned,
            inner=optax.sgd(0.25, momentum=0.5),
            outer=outer.transformation,
            replicas=3,
        )
        delivery = Delivery(protocol, MOST, outer.weigh)
        delays, active = schedules(3)["with absences"]

        @jax.jit
        def run(windows: jax.Array) -> Any:
            return simulate(
                engine,
                delivery,
                {"w": jnp.asarray(BEGUN)},
                jax.random.key(0),
                windows,
                delays,
                active,
                flat,
                1,
            )

        goals = draw_goals(ROUNDS, 1, 3, STEPS)
        clean = run(as_windows(goals))
        poison = np.where(np.asarray(active)[..., None], goals, POISON)
        assert np.any(poison == POISON)
        same_bits(run(as_windows(poison)), clean)
        assert np.all(np.isfinite(clean[2]))


@pytest.mark.parametrize("protocol", ONE_SLOW)
def test_a_run_that_stops_goes_on_where_it_was(toy: Toy, protocol: str) -> None:
    """Written as plain arrays and read again: moments, ages, counters, what flies."""
    outer = outer_of("cgad gate=both")
    engine = toy(
        inner=optax.sgd(0.25, momentum=0.5), outer=outer.transformation, replicas=3
    )
    delivery = Delivery(protocol, MOST, outer.weigh)
    step = jax.jit(make_delayed_round(engine, delivery))
    delays, active = schedules(3)["per_worker, ramp"]
    windows = as_windows(draw_goals(ROUNDS, 1, 3, STEPS))

    def begin() -> Any:
        params = {"w": jnp.asarray(BEGUN)}
        return init_delayed(engine, delivery, params, jax.random.key(0))

    def go_on(state: Any, first: int, last: int) -> list[Any]:
        states = [state]
        for t in range(first, last):
            states.append(step(states[-1], windows[t], delays[t], active[t])[0])
        return states

    through = go_on(begin(), 0, ROUNDS)
    # The first round already moves: a counter from zero makes no weight zero.
    assert np.all(through[1].params["w"] != through[0].params["w"])
    half = through[5]
    stored = [
        np.asarray(leaf).copy()
        for leaf in jax.tree.leaves(half._replace(key=jax.random.key_data(half.key)))
    ]
    read = jax.tree.unflatten(jax.tree.structure(half), map(jnp.asarray, stored))
    read = read._replace(key=jax.random.wrap_key_data(read.key))
    resumed = go_on(read, 5, ROUNDS)
    same_bits(resumed[-1], through[-1])
    assert np.all(resumed[1].params["w"] != resumed[0].params["w"])


class TestCgad:
    """What its weights do in a run."""

    @staticmethod
    def path(
        toy: Toy, protocol: str, outer: Outer, delays: Any, active: Any
    ) -> np.ndarray:
        engine = toy(inner=optax.sgd(0.25), outer=outer.transformation, replicas=3)
        _, _, path = jax.jit(
            lambda windows, delays, active: simulate(
                engine,
                Delivery(protocol, MOST, outer.weigh),
                {"w": jnp.asarray(BEGUN)},
                jax.random.key(0),
                windows,
                delays,
                active,
                flat,
                1,
            )
        )(as_windows(draw_goals(ROUNDS, 1, 3, STEPS)), delays, active)
        return np.asarray(path)

    @pytest.mark.parametrize("protocol", ONE_SLOW)
    def test_with_equal_ages_weights_of_workers_are_the_optimizers_own(
        self, toy: Toy, protocol: str
    ) -> None:
        delays = fixed(ROUNDS, 3, 2)
        if protocol == "snapshot":  # ages that differ from round to round
            delays = uniform(jax.random.key(1), ROUNDS, 3, MOST, "round")
        delays = delays[:, None]
        active = jnp.ones_like(delays, bool)
        by_worker = self.path(toy, protocol, outer_of("cgad gate=pre"), delays, active)
        own = Outer(None, cgad(0.5, 0.8, 0.9, 1e-3, alpha=0.2, tau_cut=6.0))
        by_mean = self.path(toy, protocol, own, delays, active)
        np.testing.assert_allclose(by_worker, by_mean, rtol=1e-5, atol=1e-5)
        blind = self.path(toy, protocol, outer_of("adam"), delays, active)
        assert np.abs(blind - by_mean).max() > 1e-4

    def test_a_constant_age_is_adam_with_a_larger_epsilon(self, toy: Toy) -> None:
        delays, active = started(fixed(ROUNDS, 3, 2), "skip")
        arrays = delays[:, None], active[:, None]
        gated = self.path(toy, "snapshot", outer_of("cgad gate=pre", eps=0.5), *arrays)
        adam = outer_of("adam", eps=0.5 / sigma(2))
        np.testing.assert_allclose(
            gated, self.path(toy, "snapshot", adam, *arrays), rtol=1e-5, atol=1e-5
        )
        same = self.path(toy, "snapshot", outer_of("adam", eps=0.5), *arrays)
        assert np.abs(gated - same).max() > 0.01


@pytest.mark.parametrize("protocol", ONE_SLOW)
def test_blocks_average_alone_and_share_the_interface(toy: Toy, protocol: str) -> None:
    """BlockTrain with two blocks, two replicas each, and a delay for each worker."""
    outer = outer_of("cgad gate=pre")
    engine = toy(
        partition=partition.blocks(2),
        inner=optax.sgd(0.25, momentum=0.5),
        outer=outer.transformation,
        replicas=2,
    )
    begun = np.array([-3.0, 0.5, 20.0, 4.0, 1.0, -7.0, 2.5], np.float32)
    delays = per_worker(ROUNDS, np.array([0, 3, 1, 4])).reshape(ROUNDS, 2, 2)
    active = jax.random.bernoulli(jax.random.key(2), 0.5, (ROUNDS, 2, 2))
    goals = draw_goals(ROUNDS, 2, 2, STEPS)

    @jax.jit
    def run(windows: jax.Array, delays: jax.Array, active: jax.Array) -> Any:
        params = {
            "blocks": {"w": jnp.asarray(begun[:4]).reshape(2, 2)},
            "interface": {"v": jnp.asarray(begun[4:])},
        }
        return simulate(
            engine,
            Delivery(protocol, MOST, outer.weigh),
            params,
            jax.random.key(0),
            windows,
            delays,
            active,
            flat,
            1,
        )

    for present in (active, jnp.ones_like(active)):
        _, metrics, path = run(as_windows(goals), delays, present)
        expected = in_lists(
            protocol,
            "cgad gate=pre",
            goals,
            np.asarray(delays),
            np.asarray(present),
            begun=begun,
            blocks=2,
            shared=3,
        )
        np.testing.assert_allclose(path, expected.path, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(metrics["arrived"], expected.arrived)
        np.testing.assert_allclose(metrics["age"], expected.age, rtol=1e-6)


@pytest.mark.parametrize("protocol", ONE_SLOW)
def test_seeds_and_delays_are_axes_of_one_program(toy: Toy, protocol: str) -> None:
    def noisy(params: Any, batch: Batch, key: jax.Array) -> Any:
        loss, metrics = toy().objective(params, batch, key)
        return loss + jnp.sum(params["w"]) * jax.random.normal(key), metrics

    outer = outer_of("cgad gate=pre")
    engine = toy(objective=noisy, outer=outer.transformation, replicas=3)

    def run(seed: jax.Array, windows: jax.Array, delays: jax.Array) -> Any:
        return simulate(
            engine,
            Delivery(protocol, MOST, outer.weigh),
            {"w": jnp.asarray(BEGUN)},
            jax.random.key(seed),
            windows,
            delays,
            jnp.ones(delays.shape, bool),
            flat,
            1,
        )[1:]

    alone: Any = jax.jit(run)
    seeds = jnp.arange(2)
    windows = as_windows(draw_goals(2, ROUNDS, 1, 3, STEPS))
    delays = jnp.stack([schedules(3)[k][0] for k in ("fixed, ramp", "trace, ramp")])
    together: Any = jax.jit(
        jax.vmap(jax.vmap(run, in_axes=(0, 0, None)), in_axes=(None, None, 0))
    )
    metrics, path = together(seeds, windows, delays)
    for j, s in np.ndindex(2, 2):
        expected, line = alone(seeds[s], windows[s], delays[j])
        np.testing.assert_allclose(path[j, s], line, rtol=2e-5, atol=2e-5)
        np.testing.assert_array_equal(metrics["age"][j, s], expected["age"])
    assert np.abs(path[0, 0] - path[0, 1]).max() > 0.1
    assert np.abs(path[0, 0] - path[1, 0]).max() > 0.1
    together(seeds, windows, delays[::-1])
    assert together._cache_size() == 1
    assert alone._cache_size() == 1


def test_low_precision_workers_send_nothing_when_they_learn_nothing(toy: Toy) -> None:
    """Parameters that bfloat16 rounds: what is sent and returned is rounded alike."""
    for protocol in PROTOCOLS:
        engine = toy(partition=partition.everything(jnp.bfloat16), inner=optax.sgd(0.0))
        params = {"w": jnp.asarray([1.2345678, -9.876543], jnp.float32)}
        delivery = Delivery(protocol, 1)
        state = init_delayed(engine, delivery, params, jax.random.key(0))
        after, metrics = jax.jit(make_delayed_round(engine, delivery))(
            state,
            as_windows(draw_goals(1, 2, STEPS)),
            jnp.zeros((1, 2), jnp.int32),
            jnp.ones((1, 2), bool),
        )
        assert int(metrics["arrived"]) == 2
        same_bits(after.params, params)


def test_there_is_room_for_the_oldest_version_and_no_more() -> None:
    ring = history({"w": jnp.zeros(5)}, MOST)
    assert ring.snapshots["w"].shape == (MOST + 1, 5)
