"""The clock of rounds, against an event list in plain Python, over random fleets."""

import dataclasses
import heapq
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.delivery import clock as clocks
from spheroid_jax.delivery.clock import (
    IDLE_SECONDS,
    Clock,
    Events,
    Network,
    Phase,
    Policy,
    Traffic,
    open_network,
    run_clock,
    simulate_network,
)
from spheroid_jax.delivery.deliveries import deliveries
from spheroid_jax.delivery.profiles import Fleet, Profile, make_fleet

ROUNDS, BLOCKS, REPLICAS = 12, 2, 3
SHAPE = (BLOCKS, REPLICAS)
FREE = Traffic(down=0.0, up=0.0, local_steps=1.0)
PERFECT = make_fleet([Profile()], BLOCKS, REPLICAS, 0)

# The oracle. All times are eighths of a second, so that float32 is exact.


@dataclasses.dataclass
class Job:
    """An update that somebody works on."""

    began: int
    opened: float
    took: float
    lost: bool

    @property
    def due(self) -> float:
        return math.inf if self.lost else self.opened + self.took


def closing(jobs: dict[tuple[int, int], Job], now: float, policy: Policy) -> float:
    """When a round that opened at ``now`` closes: walks arrivals one after another."""
    limit = now + float(policy.deadline)
    if all(job.lost for job in jobs.values()):
        return limit if math.isfinite(limit) else now + IDLE_SECONDS
    heap = [(job.due, block) for (block, _), job in jobs.items() if not job.lost]
    heapq.heapify(heap)
    busy, got = Counter(block for block, _ in jobs), Counter[int]()
    quorum, at, waited = int(policy.quorum), now, 0
    while heap and waited < len(jobs):
        if quorum and all(got[b] >= min(quorum, n) for b, n in busy.items()):
            break
        at, block = heapq.heappop(heap)
        got[block] += 1
        waited += 1
    whole = waited == len(jobs)
    if quorum and all(got[b] >= min(quorum, n) for b, n in busy.items()):
        close = at + float(policy.grace)
        # Nobody is waited for once all are here.
        close = min(close, max(job.due for job in jobs.values()))
    else:
        close = at if whole else math.inf
    if math.isinf(limit):
        return min(close, max([now, *(j.due for j in jobs.values() if not j.lost)]))
    return min(close, limit)


def oracle(
    seconds: np.ndarray,
    lost: np.ndarray,
    present: np.ndarray,
    policy: Policy,
    join: np.ndarray | None = None,
    leave: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """All events of a run; arguments are (R, B, K), of join and leave (B, K)."""
    join = np.zeros(SHAPE) if join is None else join
    leave = np.full(SHAPE, math.inf) if leave is None else leave
    jobs: dict[tuple[int, int], Job] = {}
    rows: list[dict[str, Any]] = []
    now = 0.0
    for r in range(len(seconds)):
        row: dict[str, Any] = {
            name: np.zeros(SHAPE, kind)
            for name, kind in (
                *(("started", bool), ("arrived", bool), ("lost", bool)),
                ("age", int),
            )
        }
        here = 0
        for worker in np.ndindex(SHAPE):
            if not (present[r][worker] and join[worker] <= now < leave[worker]):
                jobs.pop(worker, None)
                continue
            here += 1
            if worker not in jobs:
                took = float(seconds[r][worker])
                gone = bool(lost[r][worker]) or now + took > leave[worker]
                jobs[worker] = Job(r, now, took, gone)
                row["started"][worker], row["lost"][worker] = True, gone
        close = closing(jobs, now, policy)
        working = useful = 0.0
        for worker, job in list(jobs.items()):
            working += min(job.opened + job.took, close) - now
            if job.due <= close:
                row["arrived"][worker] = True
                row["age"][worker] = r - job.began
                useful += job.took
                del jobs[worker]
            elif (
                job.lost
                or not policy.keep_late
                or r + 1 - job.began > int(policy.max_age)
            ):
                del jobs[worker]
        rows.append(
            row
            | {
                "seconds": close - now,
                "time": close,
                "online": here,
                "busy_seconds": working,
                "useful_seconds": useful,
            }
        )
        now = close
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def same(found: Events, expected: dict[str, np.ndarray]) -> None:
    for name, values in expected.items():
        np.testing.assert_array_equal(
            np.asarray(getattr(found, name)), values.astype(np.float32), err_msg=name
        )


@jax.jit
def clock_alone(phases: Phase, present: jax.Array, policy: Policy) -> Events:
    """Rounds of :func:`run_clock`, whoever is there being given."""

    def one(clock: Clock, x: tuple[Phase, jax.Array]) -> tuple[Clock, Events]:
        return run_clock(clock, x[0], x[1], policy)

    begin = open_network(PERFECT, jax.random.key(0)).clock
    return jax.lax.scan(one, begin, (phases, present))[1]


KEY = jax.random.key(5)


@jax.jit
def network(fleet: Fleet, phases: Phase, policy: Policy) -> Events:
    found: Events = simulate_network(fleet, FREE, policy, ROUNDS, KEY, phases=phases)
    return found


def typed(policy: Policy) -> Policy:
    """Numbers whose types never change, so that nothing is compiled again."""
    return Policy(
        np.float32(policy.deadline),
        np.bool_(policy.keep_late),
        np.int32(policy.max_age),
        np.int32(policy.quorum),
        np.float32(policy.grace),
    )


POLICIES = {
    "drop": Policy(4.0),
    "gate": Policy(2.0, keep_late=True, max_age=3),
    "short gate": Policy(1.0, keep_late=True, max_age=1),
    "no patience": Policy(2.0, keep_late=True, max_age=0),
    "quorum": Policy(6.0, quorum=2, grace=0.5),
    "quorum of all": Policy(6.0, quorum=3, grace=1.0),
    "quorum and gate": Policy(5.0, keep_late=True, max_age=4, quorum=1, grace=0.25),
    "endless": Policy(math.inf),
    "endless quorum": Policy(math.inf, keep_late=True, max_age=9, quorum=2, grace=0.5),
    "at once": Policy(0.0),
}


@pytest.mark.parametrize("name", POLICIES)
def test_the_clock_is_the_event_list(name: str) -> None:
    policy = typed(POLICIES[name])
    for seed in range(40):
        rng = np.random.default_rng(seed)
        seconds = rng.integers(0, 40, (ROUNDS, *SHAPE)) / 8
        lost = rng.random(seconds.shape) < rng.choice([0.0, 0.2, 0.7])
        present = rng.random(seconds.shape) < rng.choice([1.0, 0.8, 0.3])
        phases = Phase(jnp.asarray(seconds, jnp.float32), jnp.asarray(lost))
        found = clock_alone(phases, jnp.asarray(present), policy)
        same(found, oracle(seconds, lost, present, policy))


@pytest.mark.parametrize("name", ["drop", "gate", "quorum", "endless quorum"])
def test_workers_join_and_leave_for_good(name: str) -> None:
    policy = typed(POLICIES[name])
    for seed in range(15):
        rng = np.random.default_rng(seed)
        seconds = rng.integers(1, 40, (ROUNDS, *SHAPE)) / 8
        lost = rng.random(seconds.shape) < 0.2
        join = rng.integers(0, 80, SHAPE) / 8
        leave = join + rng.integers(1, 200, SHAPE) / 8
        leave[rng.random(SHAPE) < 0.5] = math.inf
        fleet = PERFECT._replace(
            join_seconds=jnp.asarray(join, jnp.float32),
            leave_seconds=jnp.asarray(leave, jnp.float32),
        )
        phases = Phase(jnp.asarray(seconds, jnp.float32), jnp.asarray(lost))
        everyone = np.ones_like(lost)
        same(
            network(fleet, phases, policy),
            oracle(seconds, lost, everyone, policy, join, leave),
        )


def test_one_program_serves_all_policies() -> None:
    phases = Phase(jnp.ones((ROUNDS, *SHAPE)), jnp.zeros((ROUNDS, *SHAPE), bool))
    for policy in POLICIES.values():
        network(PERFECT, phases, typed(policy))
        clock_alone(phases, jnp.ones((ROUNDS, *SHAPE), bool), typed(policy))
    assert network._cache_size() == clock_alone._cache_size() == 1


def test_without_a_quorum_the_shortcut_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    seconds = jnp.asarray(rng.exponential(2.0, (ROUNDS, *SHAPE)), jnp.float32)
    phases = Phase(seconds, jnp.asarray(rng.random(seconds.shape) < 0.1))
    policy = typed(POLICIES["gate"])
    quick = jax.jit(
        lambda phases, policy: simulate_network(
            PERFECT, FREE, policy, ROUNDS, KEY, phases=phases, quorums=False
        )
    )(phases, policy)
    jax.tree.map(np.testing.assert_array_equal, quick, network(PERFECT, phases, policy))


# What each number of a policy does.


def run(seconds: Any, policy: Policy, lost: Any = False) -> Events:
    """The same phases in every round, all present."""
    every = jnp.broadcast_to(jnp.asarray(seconds, jnp.float32), (ROUNDS, *SHAPE))
    gone = jnp.broadcast_to(jnp.asarray(lost), (ROUNDS, *SHAPE))
    return network(PERFECT, Phase(every, gone), typed(policy))


SLOW = np.array([[1.0, 1.0, 5.0], [1.0, 2.0, 2.0]])  # one needs five seconds


def test_a_late_worker_is_dropped_or_heard_later() -> None:
    dropped = run(SLOW, Policy(2.0))
    assert not dropped.arrived[:, 0, 2].any()
    assert dropped.started[:, 0, 2].all(), "it begins again every round"
    heard = run(SLOW, Policy(2.0, keep_late=True, max_age=2))
    assert np.flatnonzero(heard.arrived[:, 0, 2]).tolist() == [2, 5, 8, 11]
    assert heard.age[heard.arrived[:, 0, 2], 0, 2].tolist() == [2] * 4
    assert np.flatnonzero(heard.started[:, 0, 2]).tolist() == [0, 3, 6, 9]
    np.testing.assert_allclose(heard.seconds[:3], [2.0, 2.0, 2.0])
    np.testing.assert_array_equal(heard.arrived[:, 1], True)


def test_max_age_makes_a_late_worker_give_up() -> None:
    found = run(SLOW, Policy(2.0, keep_late=True, max_age=1))
    assert not found.arrived[:, 0, 2].any()
    assert np.flatnonzero(found.started[:, 0, 2]).tolist() == [0, 2, 4, 6, 8, 10]
    assert int(found.age.max()) == 0


def test_a_quorum_closes_after_its_grace_and_the_deadline_before_it() -> None:
    assert run(SLOW, Policy(9.0, quorum=2, grace=0.0)).seconds[0] == 2.0
    assert run(SLOW, Policy(9.0, quorum=2, grace=0.5)).seconds[0] == 2.5
    assert run(SLOW, Policy(9.0, quorum=1, grace=0.5)).seconds[0] == 1.5
    assert run(SLOW, Policy(1.25, quorum=2, grace=0.5)).seconds[0] == 1.25
    # All have come before the grace is over, or before the deadline.
    assert run(SLOW, Policy(9.0, quorum=2, grace=8.0)).seconds[0] == 5.0
    assert run(SLOW, Policy(9.0)).seconds[0] == 5.0
    assert run(SLOW, Policy(9.0, quorum=99)).seconds[0] == 5.0


def test_the_lost_hold_a_round_until_its_deadline_and_no_longer() -> None:
    lost = np.zeros(SHAPE, bool)
    lost[1, 0] = True
    assert run(SLOW, Policy(30.0), lost).seconds[0] == 30.0
    # Its block has two others.
    assert run(SLOW, Policy(30.0, quorum=2, grace=0.5), lost).seconds[0] == 2.5
    assert run(SLOW, Policy(30.0, quorum=3, grace=0.5), lost).seconds[0] == 30.0
    # Without a deadline nobody knows how long to wait: until the last of the others.
    endless = run(SLOW, Policy(math.inf), lost)
    np.testing.assert_array_equal(endless.seconds, 5.0)
    np.testing.assert_array_equal(endless.arrived, ~lost[None] & endless.started)
    assert not endless.arrived[:, 1, 0].any()


def test_a_round_in_which_nobody_works_takes_its_deadline() -> None:
    away = PERFECT._replace(join_seconds=jnp.full(SHAPE, 7.0))
    phases = Phase(jnp.full((ROUNDS, *SHAPE), 0.5), jnp.zeros((ROUNDS, *SHAPE), bool))
    found = network(away, phases, typed(Policy(3.0)))
    np.testing.assert_array_equal(found.seconds, [3.0] * 3 + [0.5] * (ROUNDS - 3))
    np.testing.assert_array_equal(found.online, [0] * 3 + [6] * (ROUNDS - 3))
    found = network(away, phases, typed(Policy(math.inf)))
    np.testing.assert_array_equal(found.seconds[:7], IDLE_SECONDS)
    assert found.seconds[7] == 0.5
    assert not found.arrived[:7].any()


def test_a_blocks_absence_is_not_waited_for() -> None:
    present = np.ones((ROUNDS, *SHAPE), bool)
    present[:, 1] = False
    phases = Phase(jnp.ones(present.shape), jnp.zeros(present.shape, bool))
    policy = typed(Policy(9.0, quorum=2, grace=0.5))
    found = clock_alone(phases, jnp.asarray(present), policy)
    np.testing.assert_array_equal(found.seconds, 1.0)
    assert not found.started[:, 1].any()


def test_who_leaves_in_between_loses_the_update_and_gets_no_work() -> None:
    present = np.ones((ROUNDS, *SHAPE), bool)
    present[1, 0, 2] = False  # in the second round of the slow one's five seconds
    phases = Phase(
        jnp.broadcast_to(jnp.asarray(SLOW, jnp.float32), present.shape),
        jnp.zeros(present.shape, bool),
    )
    policy = typed(Policy(2.0, keep_late=True, max_age=3))
    found = clock_alone(phases, jnp.asarray(present), policy)
    assert np.flatnonzero(found.started[:, 0, 2]).tolist() == [0, 2, 5, 8, 11]
    assert np.flatnonzero(found.arrived[:, 0, 2]).tolist() == [4, 7, 10]


def test_permuting_workers_permutes_events() -> None:
    rng = np.random.default_rng(3)
    seconds = rng.integers(1, 40, (ROUNDS, *SHAPE)) / 8
    lost = rng.random(seconds.shape) < 0.2
    join = rng.integers(0, 40, SHAPE) / 8
    order = np.array([[2, 0, 1], [1, 2, 0]])

    def shuffled(x: np.ndarray) -> jax.Array:
        index = np.broadcast_to(order, x.shape)
        return jnp.asarray(np.take_along_axis(x, index, axis=-1))

    def fleet(join: Any) -> Fleet:
        return PERFECT._replace(join_seconds=jnp.asarray(join, jnp.float32))

    for policy in POLICIES.values():
        before = network(
            fleet(join),
            Phase(jnp.asarray(seconds, jnp.float32), jnp.asarray(lost)),
            typed(policy),
        )
        after = network(
            fleet(shuffled(join)),
            Phase(shuffled(seconds.astype(np.float32)), shuffled(lost)),
            typed(policy),
        )
        for name, value in before._asdict().items():
            expected = shuffled(np.asarray(value)) if value.ndim == 3 else value
            np.testing.assert_array_equal(getattr(after, name), expected, err_msg=name)


# Draws.


def test_a_phase_is_the_sum_of_its_parts() -> None:
    """BlockTrain's arrival time, every part told apart by its size."""
    profile = Profile(step_seconds=2.0, latency_seconds=0.25, down=100.0, up=50.0)
    fleet = make_fleet([profile], 1, 4, 0)
    traffic = Traffic(down=1000.0, up=2000.0, local_steps=3.0)
    phase = clocks.draw_phase(fleet, traffic, jax.random.key(0))
    np.testing.assert_allclose(phase.seconds, 3 * 2.0 + 0.25 + 10.0 + 40.0, rtol=1e-6)
    assert not phase.lost.any()


def test_draws_have_their_distributions() -> None:
    profile = Profile(
        step_seconds=2.0, step_spread=0.5, jitter_seconds=3.0, dropout=0.3
    )
    many = make_fleet([profile], 2, 20_000, 0)
    phase = clocks.draw_phase(many, FREE, jax.random.key(1))
    calm = many._replace(jitter_seconds=jnp.zeros_like(many.dropout))
    steps = np.log(clocks.draw_phase(calm, FREE, jax.random.key(1)).seconds)
    assert np.median(steps) == pytest.approx(math.log(2.0), abs=0.02)
    assert np.std(steps) == pytest.approx(0.5, rel=0.02)
    jitter = np.asarray(phase.seconds) - np.exp(steps)
    assert jitter.mean() == pytest.approx(3.0, rel=0.03)
    assert np.std(jitter) == pytest.approx(3.0, rel=0.05)
    assert np.mean(phase.lost) == pytest.approx(0.3, abs=0.01)


def test_sessions_keep_their_share_and_their_length() -> None:
    profile = Profile(session_seconds=30.0, away_seconds=60.0)
    fleet = make_fleet([profile], 1, 20_000, 0)
    clock = open_network(fleet, jax.random.key(0)).clock
    assert np.mean(clock.online) == pytest.approx(1 / 3, abs=0.015)
    later = clocks.come_and_go(fleet, clock, jnp.float32(6.0), jax.random.key(1))
    stay = np.mean(np.asarray(later)[np.asarray(clock.online)])
    back = np.mean(np.asarray(later)[~np.asarray(clock.online)])
    assert stay == pytest.approx(math.exp(-6 / 30), abs=0.015)
    assert back == pytest.approx(1 - math.exp(-6 / 60), abs=0.015)
    forever = clocks.come_and_go(PERFECT, open_network(PERFECT, KEY).clock, 1e9, KEY)
    assert forever.all()


def test_a_run_of_rounds_is_the_scan() -> None:
    profile = Profile(step_spread=0.4, dropout=0.1, session_seconds=9, away_seconds=3)
    fleet = make_fleet([profile], BLOCKS, REPLICAS, 1)
    policy = typed(Policy(0.06, keep_late=True, max_age=2))
    whole = simulate_network(fleet, FREE, policy, 5, KEY)
    key, start = jax.random.split(KEY)
    state: Network = open_network(fleet, start)
    for r in range(5):
        state, events = clocks.network_round(state, fleet, FREE, policy, key)
        jax.tree.map(
            lambda a, b, r=r: np.testing.assert_allclose(a[r], b, rtol=1e-6),
            whole,
            events,
        )
    assert int(state.clock.round) == 5


# Deliveries.


@pytest.mark.parametrize("name", ["drop", "gate", "quorum and gate", "endless"])
def test_deliveries_turn_arrivals_back_into_beginnings(name: str) -> None:
    policy, never = typed(POLICIES[name]), 99
    invert: Callable[[Events], clocks.Deliveries] = jax.jit(
        lambda events: deliveries(events, never)
    )
    for seed in range(10):
        rng = np.random.default_rng(seed)
        seconds = rng.integers(1, 60, (ROUNDS, *SHAPE)) / 8
        lost = rng.random(seconds.shape) < 0.2
        present = rng.random(seconds.shape) < 0.8
        phases = Phase(jnp.asarray(seconds, jnp.float32), jnp.asarray(lost))
        events = clock_alone(phases, jnp.asarray(present), policy)
        found = invert(events)
        delays, trained = np.asarray(found.delays), np.asarray(found.trained)
        on_the_way = delays != never
        assert np.all(trained[on_the_way]), "what arrives was begun and isn't lost"
        assert not np.any(trained & np.asarray(events.lost))
        assert delays[on_the_way].max(initial=0) <= max(int(policy.max_age), 0)
        arrivals = Counter(
            (r + delays[r, b, k], b, k, delays[r, b, k])
            for r, b, k in zip(*np.nonzero(on_the_way), strict=True)
        )
        age = np.asarray(events.age)
        expected = Counter(
            (r, b, k, age[r, b, k])
            for r, b, k in zip(*np.nonzero(np.asarray(events.arrived)), strict=True)
        )
        assert arrivals == expected
        assert all(r < ROUNDS for r, *_ in arrivals)
