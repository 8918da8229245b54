"""Training over the virtual network: clock, delay queue and blocks together."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from spheroid_jax import partition
from spheroid_jax.delivery.clock import (
    Phase,
    Policy,
    Traffic,
    simulate_network,
)
from spheroid_jax.delivery.deliveries import deliveries
from spheroid_jax.delivery.profiles import Profile, make_fleet, preset
from spheroid_jax.optim import cgad
from spheroid_jax.rounds import Engine, RoundState, init_state, make_round
from spheroid_jax.rounds.delayed import Delivery, simulate

Toy = Callable[..., Engine]
BLOCKS, REPLICAS, ROUNDS, STEPS, ROOM = 2, 3, 6, 2, 4
NEVER = ROOM + 1
OUTERS = {
    "mean": optax.sgd(1.0),
    "nesterov": optax.sgd(0.7, momentum=0.9, nesterov=True),
    "cgad": cgad(0.05),
}


def begun() -> Any:
    w = np.array([[0.3, -4.0, 7.1], [2.2, 9.0, -1.3]], np.float32)
    return {"blocks": {"w": jnp.asarray(w)}, "interface": {"v": jnp.float32(3.3)}}


def windows(seed: int = 0) -> jax.Array:
    """Goals of every worker and step, (R, B, K, H, 1, 1)."""
    shape = (ROUNDS, BLOCKS, REPLICAS, STEPS)
    goals = np.random.default_rng(seed).integers(0, 9, shape).astype(np.uint8)
    return jnp.asarray(goals)[..., None, None]


def phases(seconds: Any) -> Phase:
    """Measured times (R, B, K); inf is lost."""
    array = np.asarray(seconds, np.float32)
    return Phase(jnp.asarray(array), jnp.asarray(np.isinf(array)))


@pytest.fixture(scope="module")
def run(toy: Toy) -> Callable[..., Any]:
    """``(outer, phases, policy, windows)`` to parameters by round, state and events."""
    programs: dict[str, Any] = {}

    def build(name: str) -> Any:
        engine = toy(
            partition=partition.blocks(BLOCKS),
            inner=optax.sgd(0.25, momentum=0.5),
            outer=OUTERS[name],
            replicas=REPLICAS,
        )
        fleet = make_fleet((Profile(),), BLOCKS, REPLICAS, seed=0)

        def whole(times: Phase, policy: Policy, windows: jax.Array) -> Any:
            key = jax.random.key(0)
            events = simulate_network(
                fleet, Traffic(1.0, 1.0, STEPS), policy, ROUNDS, key, phases=times
            )
            given = deliveries(events, NEVER)
            state, metrics, path = simulate(
                engine,
                Delivery("in_flight", ROOM, None),
                begun(),
                key,
                windows,
                given.delays,
                given.trained,
                lambda params: params,
                1,
            )
            return path, state, metrics, events

        return jax.jit(whole)

    def call(name: str, times: Phase, policy: Policy, goals: Any = None) -> Any:
        program = programs.setdefault(name, build(name))
        return program(times, as_numbers(policy), windows() if goals is None else goals)

    return call


def as_numbers(policy: Policy) -> Policy:
    """Arrays, so that another policy is no other program."""
    return Policy(
        jnp.float32(policy.deadline),
        jnp.bool_(policy.keep_late),
        jnp.int32(policy.max_age),
        jnp.int32(policy.quorum),
        jnp.float32(policy.grace),
    )


def same_bits(a: Any, b: Any) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def at(path: Any, round_: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[round_], path)


def drawn_times(seed: int = 3) -> np.ndarray:
    """Times around the deadline of 2 s, some lost."""
    rng = np.random.default_rng(seed)
    times = rng.uniform(0.5, 5.0, (ROUNDS, BLOCKS, REPLICAS))
    return np.where(rng.random(times.shape) < 0.1, np.inf, times)


@pytest.mark.parametrize("outer", OUTERS)
def test_dropping_after_an_infinite_deadline_is_lockstep_bit_for_bit(
    toy: Toy, run: Callable[..., Any], outer: str
) -> None:
    slow = phases(np.random.default_rng(0).uniform(0.1, 50, (ROUNDS, BLOCKS, REPLICAS)))
    ideal = phases(np.ones((ROUNDS, BLOCKS, REPLICAS)))
    path, state, _, events = run(outer, slow, Policy(np.inf))
    lockstep, last, _, _ = run(outer, ideal, Policy(np.inf))
    same_bits(path, lockstep)
    same_bits(state.outer, last.outer)
    assert_array_equal(events.arrived, True)
    # And the engine of lockstep runs, which has no queue, ends at the same place.
    engine = toy(
        partition=partition.blocks(BLOCKS),
        inner=optax.sgd(0.25, momentum=0.5),
        outer=OUTERS[outer],
        replicas=REPLICAS,
    )
    plain = init_state(engine, begun(), jax.random.key(0))
    step = jax.jit(make_round(engine))
    for goals in windows():
        plain, _ = step(plain, goals, jnp.ones((BLOCKS, REPLICAS), bool))
    for x, y in zip(
        jax.tree.leaves(plain.params), jax.tree.leaves(state.params), strict=True
    ):
        assert_allclose(x, y, rtol=1e-5)


@pytest.mark.parametrize("outer", OUTERS)
@pytest.mark.parametrize("late", [False, True])
def test_a_round_without_arrivals_leaves_the_block_bit_for_bit(
    run: Callable[..., Any], outer: str, late: bool
) -> None:
    times = drawn_times()
    times[3, 0] = np.inf  # at the latest here block 0 hears nothing
    path, _, _, events = run(outer, phases(times), Policy(2.0, late, ROOM))
    heard = np.any(np.asarray(events.arrived), axis=2)  # (R, B)
    heard = np.asarray(heard)
    assert not heard.all()
    assert heard.any()
    before = begun()
    for t in range(ROUNDS):
        after = at(path, t)
        for b in range(BLOCKS):
            old, new = before["blocks"]["w"][b], after["blocks"]["w"][b]
            same = np.asarray(old).tobytes() == np.asarray(new).tobytes()
            assert same == (not heard[t, b])
        if not heard[t].any():
            same_bits(before["interface"], after["interface"])
        before = after


def test_late_updates_arrive_with_their_age_and_are_the_ones_begun_then(
    run: Callable[..., Any],
) -> None:
    """One worker takes 4.5 s of rounds of 2 s: its update of round 0 lands in round 2.

    Everyone else is lost. Goals are reached a quarter at a time from momentum's
    arithmetic: from w to goal g, with sgd(0.25, momentum 0.5) and two steps of goals a
    and b: v1 = w - a, w1 = w - v1/4, v2 = (w1 - b) + v1/2, w2 = w1 - v2/4.
    """
    times = np.full((ROUNDS, BLOCKS, REPLICAS), np.inf)
    times[0, 1, 2] = 4.5
    path, _, metrics, events = run("mean", phases(times), Policy(2.0, True, ROOM))
    assert_array_equal(np.asarray(metrics["arrived"]), [0, 0, 1, 0, 0, 0])
    assert_array_equal(np.asarray(metrics["age"]), [0, 0, 2, 0, 0, 0])
    assert_array_equal(np.asarray(events.seconds), 2.0)
    a, b = (float(g) for g in np.asarray(windows())[0, 1, 2, :, 0, 0])
    w = np.asarray(begun()["blocks"]["w"][1], np.float64)
    v1 = w - a
    w1 = w - v1 / 4
    v2 = (w1 - b) + v1 / 2
    assert_allclose(path["blocks"]["w"][2, 1], w1 - v2 / 4, rtol=1e-6)
    same_bits(
        path["blocks"]["w"][:, 0],
        jnp.broadcast_to(begun()["blocks"]["w"][0], (ROUNDS, 3)),
    )


@pytest.mark.parametrize("late", [False, True])
def test_the_order_of_workers_does_not_matter(
    run: Callable[..., Any], late: bool
) -> None:
    order = np.array([2, 0, 1])
    policy = Policy(2.0, late, ROOM)
    path, _, _, events = run("cgad", phases(drawn_times()), policy)
    other, _, _, turned = run(
        "cgad", phases(drawn_times()[:, :, order]), policy, windows()[:, :, order]
    )
    assert_array_equal(turned.arrived, np.asarray(events.arrived)[:, :, order])
    for x, y in zip(jax.tree.leaves(path), jax.tree.leaves(other), strict=True):
        assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_three_blocks_of_64_replicas_are_one_compile(
    tiny: Engine, tiny_state: RoundState, tiny_windows: jax.Array
) -> None:
    """Another network, another policy: no other program."""
    blocks, replicas, rounds = 3, 64, 2
    engine = tiny._replace(replicas=replicas)
    params = tiny_state.params

    def whole(fleet: Any, policy: Policy, windows: jax.Array) -> Any:
        key = jax.random.key(0)
        events = simulate_network(fleet, Traffic(1e5, 1e5, 8), policy, rounds, key)
        given = deliveries(events, 2)
        state, _, _ = simulate(
            engine,
            Delivery("in_flight", 1, None),
            params,
            key,
            windows,
            given.delays,
            given.trained,
            lambda params: jnp.zeros(()),
            rounds,
        )
        return optax.tree.norm(state.params), events.arrived

    shape = (rounds, blocks, replicas, 1, 1, tiny_windows.shape[-1])
    data = jnp.zeros(shape, jnp.uint8)
    program = None
    norms = []
    for name, late in (("lockstep", False), ("wan", False), ("wan", True)):
        fleet = make_fleet(preset(name), blocks, replicas, seed=1)
        policy = as_numbers(Policy(1.0, late, 1))
        if program is None:
            program = jax.jit(whole).lower(fleet, policy, data).compile()
        norm, arrived = program(fleet, policy, data)
        assert np.isfinite(norm)
        norms.append((float(norm), int(np.sum(arrived))))
    assert norms[0][1] == rounds * blocks * replicas
    assert norms[1][1] < norms[2][1] < norms[0][1]
