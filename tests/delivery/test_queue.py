"""The delay queue against a list of parcels, each with the round in which it is due."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spheroid_jax.delivery import delay_queue, pop_due, push, push_many

ROUNDS, QUIET, WORKERS = 24, 6, 3
WEIGHTS = (0.25, 0.5, 1.0, 2.0)


class Event(NamedTuple):
    """One worker's update of one round."""

    value: int
    delay: int
    weight: float
    valid: bool


NOTHING = Event(0, 0, 1.0, False)

# Delays outside the queue are as likely as those inside; most rounds are crowded, and
# the rest of the run is quiet, so that everything arrives within it.
events = st.builds(
    Event,
    st.integers(-4, 4),
    st.integers(-2, 8),
    st.sampled_from(WEIGHTS),
    st.booleans(),
)
runs = st.lists(st.lists(events, max_size=WORKERS), min_size=1, max_size=ROUNDS)


def packed(run: list[list[Event]]) -> dict[str, np.ndarray]:
    """The run as arrays (rounds, workers); what isn't valid holds NaN."""
    rounds = run + [[]] * (ROUNDS + QUIET - len(run))
    rows = [[*row, *[NOTHING] * (WORKERS - len(row))] for row in rounds]
    valid = np.array([[e.valid for e in row] for row in rows])
    value = np.array([[e.value for e in row] for row in rows], np.float32)
    return {
        "value": np.where(valid, value, np.nan).astype(np.float32),
        "delay": np.array([[e.delay for e in row] for row in rows], np.int32),
        "weight": np.array([[e.weight for e in row] for row in rows], np.float32),
        "valid": valid,
    }


def item_of(value: Any) -> dict[str, Any]:
    """An item of two shapes, whose leaves differ."""
    return {"w": jnp.stack([value, 2 * value], axis=-1), "b": -value}


LIKE = {"w": np.zeros(2, np.float32), "b": np.zeros((), np.float32)}


@functools.cache
def compiled(max_delay: int, overflow: Any, single: bool) -> Any:
    """The run as one scan, with one push for all workers or one for each."""

    def step(queue: Any, sent: Any) -> Any:
        now, sent = sent
        if single:
            for k in range(WORKERS):
                queue = push(
                    queue,
                    item_of(sent["value"][k]),
                    now,
                    delay=sent["delay"][k],
                    weight=sent["weight"][k],
                    valid=sent["valid"][k],
                    overflow=overflow,
                )
        else:
            queue = push_many(
                queue,
                item_of(sent["value"]),
                now,
                delay=sent["delay"],
                weight=sent["weight"],
                valid=sent["valid"],
                overflow=overflow,
            )
        return pop_due(queue, now)

    @jax.jit
    def run(sent: Any) -> Any:
        start = delay_queue(LIKE, max_delay)
        return jax.lax.scan(step, start, (jnp.arange(ROUNDS + QUIET), sent))

    return run


def expected(run: list[list[Event]], max_delay: int, overflow: str) -> Any:
    """A list of parcels, walked through in every round."""
    parcels: list[tuple[int, float, int]] = []
    dropped, values, counts, ages = 0, [], [], []
    for now in range(ROUNDS + QUIET):
        for event in run[now] if now < len(run) else []:
            delay = event.delay
            if not event.valid:
                continue
            if not 0 <= delay <= max_delay:
                if overflow == "drop":
                    dropped += 1
                    continue
                delay = 0 if delay < 0 else max_delay
            parcels.append((now + delay, event.weight * event.value, delay))
        due = [parcel for parcel in parcels if parcel[0] == now]
        counts.append(len(due))
        values.append(sum(value for _, value, _ in due) / max(len(due), 1))
        ages.append(sum(age for *_, age in due) / max(len(due), 1))
    return values, counts, ages, dropped


@pytest.mark.parametrize("overflow", ["drop", "clip"])
@pytest.mark.parametrize(("max_delay", "single"), [(0, True), (3, True), (5, False)])
@given(run=runs)
@example(run=[[Event(3, 5, 1.0, True)] * 3, [], [Event(-2, 3, 0.5, True)]] * 8)
@settings(max_examples=25, deadline=None)
def test_arrivals_are_those_of_a_list_of_parcels(
    run: list[list[Event]], max_delay: int, single: bool, overflow: str
) -> None:
    queue, arrivals = compiled(max_delay, overflow, single)(packed(run))
    values, counts, ages, dropped = expected(run, max_delay, overflow)
    np.testing.assert_array_equal(arrivals.count, counts)
    np.testing.assert_allclose(arrivals.age, ages, rtol=1e-6)
    # The sums are exact in float32, the division isn't.
    np.testing.assert_allclose(arrivals.mean["b"], np.negative(values), rtol=1e-6)
    np.testing.assert_allclose(arrivals.mean["w"][:, 0], values, rtol=1e-6)
    np.testing.assert_allclose(arrivals.mean["w"][:, 1], np.multiply(2, values), 1e-6)
    assert queue.dropped == dropped
    # Everything has arrived: nothing is left behind in any slot.
    assert not np.any(queue.count)
    assert not np.any(queue.age)
    assert not np.any(queue.weight)


def test_the_queue_keeps_the_sum_of_weights_of_a_slot() -> None:
    queue = delay_queue(LIKE, 2)
    ones = item_of(jnp.ones(3))
    delays, weights = jnp.array([1, 1, 2]), jnp.array([0.5, 2.0, 4.0])
    queue = push_many(queue, ones, 4, delay=delays, weight=weights)
    queue = push(queue, item_of(jnp.ones(())), 4, delay=2, weight=0.25)
    np.testing.assert_array_equal(queue.weight, [4.25, 0.0, 2.5])


def test_versions_with_more_workers_weigh_more() -> None:
    """One update of age 0 and ten of age 1, all g: the mean is g, not 2g, nor g/2."""
    g = item_of(jnp.float32(0.375))
    queue = delay_queue(LIKE, 1)
    for _ in range(10):
        queue = push(queue, g, 0, delay=1)
    queue, _ = pop_due(queue, 0)
    queue = push(queue, g, 1, delay=0)
    _, arrivals = pop_due(queue, 1)
    assert arrivals.count == 11
    assert np.isclose(arrivals.age, 10 / 11)
    jax.tree.map(np.testing.assert_array_equal, arrivals.mean, g)


def test_a_sum_of_several_updates_counts_as_several() -> None:
    queue = delay_queue(LIKE, 3)
    queue = push(queue, item_of(jnp.float32(9.0)), 0, delay=2, count=3)
    queue = push(queue, item_of(jnp.float32(1.0)), 2, delay=0, age=6)
    _, arrivals = pop_due(queue, 2)
    assert (arrivals.count, arrivals.age) == (4, (3 * 2 + 6) / 4)
    assert arrivals.mean["b"] == -10 / 4


def test_the_first_round_already_moves_the_parameters() -> None:
    queue = push(delay_queue(LIKE, 4), item_of(jnp.float32(2.0)), 0, delay=0)
    _, arrivals = pop_due(queue, 0)
    assert (arrivals.count, arrivals.age) == (1, 0)
    np.testing.assert_array_equal(arrivals.mean["w"], [2.0, 4.0])


def test_a_bad_item_spoils_its_own_round_only() -> None:
    """Its slot is used again three rounds later, and others are asked for before."""
    queue = push(delay_queue(LIKE, 2), item_of(jnp.float32(jnp.nan)), 0, delay=1)
    seen = []
    for now in range(5):
        queue = push(queue, item_of(jnp.float32(1.0)), now, delay=0, valid=now == 4)
        queue, arrivals = pop_due(queue, now)
        seen.append(float(arrivals.mean["b"]))
    np.testing.assert_array_equal(seen, [0, np.nan, 0, 0, -1])


def test_a_zero_update_leaves_parameters_as_they_are() -> None:
    params = {"w": jnp.array([1.1, -3e-30]), "b": jnp.float32(7.7)}
    queue = push(
        delay_queue(params, 1), jax.tree.map(jnp.zeros_like, params), 0, delay=1
    )
    for now in (0, 1, 2):
        queue, arrivals = pop_due(queue, now)
        after = jax.tree.map(lambda p, u: p - 0.7 * u, params, arrivals.mean)
        jax.tree.map(np.testing.assert_array_equal, after, params)
        assert arrivals.count == (now == 1)


def test_half_precision_items_are_summed_in_single() -> None:
    """Bfloat16 can't count beyond 256."""
    ones = {"w": jnp.ones((300, 2), jnp.bfloat16)}
    queue = delay_queue({"w": jax.ShapeDtypeStruct((2,), jnp.bfloat16)}, 0)
    queue = push_many(queue, ones, 0, delay=0)
    _, arrivals = pop_due(queue, 0)
    assert arrivals.mean["w"].dtype == jnp.float32
    assert np.all(arrivals.mean["w"] == 1)


def test_absent_leaves_stay_absent() -> None:
    queue = delay_queue({"w": jnp.zeros(2), "none": None}, 0)
    _, arrivals = pop_due(push(queue, {"w": jnp.ones(2), "none": None}, 0, delay=0), 0)
    assert arrivals.mean["none"] is None
    assert np.all(arrivals.mean["w"] == 1)


def test_one_program_serves_all_delays_and_a_batch_of_them() -> None:
    traces = 0

    def run(delays: jax.Array) -> jax.Array:
        nonlocal traces
        traces += 1

        def step(queue: Any, sent: Any) -> Any:
            now, delay = sent
            item = item_of((now + jnp.arange(2)).astype(jnp.float32))
            queue, arrivals = pop_due(push_many(queue, item, now, delay=delay), now)
            return queue, (arrivals.mean["b"], arrivals.count, arrivals.age)

        return jax.lax.scan(step, delay_queue(LIKE, 4), (jnp.arange(12), delays))[1]

    single = jax.jit(run)
    schedules = np.random.default_rng(0).integers(0, 5, (5, 12, 2)).astype(np.int32)
    one_by_one = [single(schedule) for schedule in schedules]
    assert traces == 1
    together = jax.jit(jax.vmap(run))(schedules)
    assert traces == 2
    for i, alone in enumerate(one_by_one):
        for ours, theirs in zip(together, alone, strict=True):
            np.testing.assert_array_equal(ours[i], theirs)


@pytest.mark.parametrize("workers", [1, 4])
def test_the_ring_is_updated_in_place(workers: int) -> None:
    """A whole run needs no memory beside the queue that grows with its capacity."""
    size, max_delay = 4096, 31

    def run(queue: Any, delays: jax.Array, base: jax.Array) -> Any:
        def step(queue: Any, sent: Any) -> Any:
            now, delay = sent
            if workers == 1:
                queue = push(queue, base * now, now, delay=delay[0])
            else:
                items = jnp.broadcast_to(base[None], (workers, size)) * now
                queue = push_many(queue, items, now, delay=delay)
            queue, arrivals = pop_due(queue, now)
            return queue, jnp.sum(arrivals.mean)

        return jax.lax.scan(step, queue, (jnp.arange(50), delays))

    queue = delay_queue(jnp.zeros(size), max_delay)
    delays, base = jnp.zeros((50, workers), jnp.int32), jnp.ones(size)
    program = jax.jit(run, donate_argnums=0).lower(queue, delays, base).compile()
    memory = program.memory_analysis()
    assert memory.alias_size_in_bytes >= queue.total.nbytes
    # The items themselves and a slot; 32 slots are in the ring.
    assert memory.temp_size_in_bytes < (workers + 2) * size * 4


@pytest.mark.parametrize("delay", [4, -1, np.int64(4), np.array(-1)])
@pytest.mark.parametrize("overflow", ["drop", "clip"])
def test_a_constant_delay_out_of_range_is_refused(delay: Any, overflow: Any) -> None:
    queue = delay_queue(LIKE, 3)
    with pytest.raises(ValueError, match="^delay .*rounds.*$"):
        push(queue, item_of(jnp.ones(())), 0, delay=delay, overflow=overflow)
    with pytest.raises(ValueError, match="^delay .*rounds.*$"):
        push_many(queue, item_of(jnp.ones(2)), 0, delay=delay, overflow=overflow)


def test_a_jax_delay_is_left_to_the_policy() -> None:
    queue, item = delay_queue(LIKE, 3), item_of(jnp.ones(()))
    far = jnp.int32(9)
    assert push(queue, item, 0, delay=far).dropped == 1
    assert push(queue, item, 0, delay=far, count=2).dropped == 2
    assert push(queue, item, 0, delay=far, valid=False).dropped == 0
    clipped = push(queue, item, 0, delay=far, overflow="clip")
    assert (clipped.dropped, clipped.count[3], clipped.age[3]) == (0, 1, 3)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"delay": 0.5}, "delay must be whole"),
        ({"delay": jnp.float32(1)}, "delay must be whole"),
        ({"delay": float("nan")}, "delay must be whole"),
        ({"delay": 1, "count": 0}, "count must be a whole number >= 1, got 0"),
        ({"delay": 1, "overflow": "wrap"}, "overflow must be 'drop' or 'clip'"),
    ],
)
def test_bad_arguments_are_named(arguments: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        push(delay_queue(LIKE, 3), item_of(jnp.ones(())), 0, **arguments)


def test_many_items_are_sent_as_one_after_the_other() -> None:
    """Large values, that cancel, tell the order; these weights multiply exactly."""
    values = jnp.array([0.1, jnp.nan, 1e8, -0.3, -1e8])
    how: dict[str, Any] = {
        "delay": jnp.array([0, 0, 1, 7, 1]),
        "weight": jnp.array([0.5, 1, 1, 1, 0.25]),
        "valid": jnp.array([True, False, True, True, True]),
    }
    start = push(delay_queue(LIKE, 2), item_of(jnp.float32(0.3)), 3, delay=1)
    single = start
    for k in range(5):
        one = {name: values[k] for name, values in how.items()}
        single = push(single, item_of(values[k]), 3, **one)
    many = push_many(start, item_of(values), 3, **how)
    jax.tree.map(np.testing.assert_array_equal, many, single)
    assert many.dropped == 1


def test_a_queue_refuses_what_it_was_not_made_for() -> None:
    queue = delay_queue(LIKE, 3)
    with pytest.raises(ValueError, match="structure"):
        push(queue, {"w": jnp.zeros(2)}, 0, delay=0)
    with pytest.raises(ValueError, match=r"item\['w'\] must have shape \(2,\)"):
        push(queue, {"w": jnp.zeros(3), "b": jnp.zeros(())}, 0, delay=0)
    with pytest.raises(ValueError, match=r"item\['w'\] must have shape \(4, 2\)"):
        push_many(queue, {"w": jnp.zeros((3, 2)), "b": jnp.zeros(4)}, 0, delay=0)
    with pytest.raises(ValueError, match="weight must hold one value or one for each"):
        push_many(queue, item_of(jnp.ones(4)), 0, delay=0, weight=jnp.ones(3))
    with pytest.raises(ValueError, match="empty"):
        push_many(delay_queue({}, 1), {}, 0, delay=0)
    for wrong in (-1, 1.5, True):
        with pytest.raises(ValueError, match="max_delay must be a whole number >= 0"):
            delay_queue(LIKE, wrong)
