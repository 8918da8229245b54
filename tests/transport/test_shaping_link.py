"""The link's arithmetic: what arrives when, on a clock that the tests hold."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spheroid_jax.transport.shaping import MSS, Fault, Shape, listed, seeded
from spheroid_jax.transport.shaping.faults import KINDS
from spheroid_jax.transport.shaping.link import (
    CHUNK,
    DEPTH,
    Bucket,
    Flow,
    Lane,
    rate_bound,
    round_trip,
)


def lane(shape: Shape, rtt: float = 0.0, seed: int = 0) -> Lane:
    return Lane(shape, rtt, random.Random(seed))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("delay_seconds", -1),
        ("delay_seconds", math.inf),
        ("jitter_seconds", math.nan),
        ("rate_bytes", 0),
        ("rate_bytes", math.nan),
        ("loss", 1.0),
        ("loss", -0.1),
    ],
)
def test_a_shape_that_no_link_has_is_refused_by_its_field(field, value):
    with pytest.raises(ValueError, match=f"^{field} = {value}: take [^\n]*$"):
        Shape(**{field: value})


def test_the_bound_of_a_lossy_connection_is_that_of_mathis_and_others():
    # 1460 B/segment, 100 ms, 1 lost in 10,000: 122 segments in a round trip.
    assert rate_bound(0.1, 1e-4) == pytest.approx(122 * MSS / 0.1)
    assert rate_bound(0.1, 0.0) == rate_bound(0.0, 0.1) == math.inf


def test_a_round_trip_takes_both_delays_and_half_of_each_jitter():
    up, down = Shape(0.04, jitter_seconds=0.01), Shape(0.02, jitter_seconds=0.03)
    assert round_trip(up, down) == pytest.approx(0.04 + 0.02 + 0.005 + 0.015)


def test_a_bucket_gives_its_rate_and_saves_little():
    bucket = Bucket(1000.0)
    for _ in range(50):
        out = bucket.take(100, now=0.0)
    assert out == pytest.approx(5000 / 1000 - DEPTH)
    # After a day of rest it's ahead by the depth and no more.
    assert bucket.take(1000, now=86400.0) == pytest.approx(86400 + 1 - DEPTH)


def test_a_late_caller_loses_none_of_the_rate():
    """A sleep that takes a few milliseconds too long must not cost throughput."""
    bucket, now = Bucket(1000.0), 0.0
    for _ in range(200):
        now = bucket.take(50, now) + 0.004
    assert now == pytest.approx(200 * 50 / 1000, rel=0.02)


@given(
    sizes=st.lists(st.integers(1, CHUNK), min_size=1, max_size=30),
    loss=st.floats(0, 0.5),
    jitter=st.floats(0, 1),
    rate=st.floats(1e3, 1e9) | st.just(math.inf),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_bytes_arrive_in_order_and_never_before_the_delay(
    sizes, loss, jitter, rate, seed
):
    shape = Shape(0.04, rate, loss, jitter)
    flow, now, before = Flow(lane(shape, 0.08, seed), 0.0), 0.08, 0.0
    for size in sizes:
        left, arrives = flow.send(size, now)
        assert left >= now
        assert arrives >= left + 0.04
        assert arrives >= before
        now, before = left, arrives


def test_lost_segments_are_as_many_as_said_and_each_is_sent_again():
    link = lane(Shape(loss=0.2))
    drawn = [link.tries(10 * MSS) for _ in range(2000)]
    # A segment is sent 1 / (1 - p) times on average; sd of the sum is about 80.
    assert link.lost == sum(losses for losses, _ in drawn)
    assert link.lost == pytest.approx(20_000 * 0.2 / 0.8, abs=400)
    assert all(worst <= losses for losses, worst in drawn)


@pytest.mark.parametrize(("rtt", "held"), [(0.02, 0.2), (0.5, 0.5)])
def test_what_follows_a_lost_segment_waits_for_its_repetition(rtt, held):
    draws = iter([0.0, 0.0, 1.0, 1.0])  # lost, lost again, there; the next one, there

    class Unlucky(random.Random):
        def random(self) -> float:
            return next(draws)

    flow = Flow(Lane(Shape(0.01, loss=0.5), rtt, Unlucky()), 0.0)
    left, arrives = flow.send(100, 1.0)
    assert arrives == pytest.approx(left + 0.01 + 2 * held)
    assert flow.send(100, left)[1] == pytest.approx(arrives)


def test_repeated_segments_take_their_share_of_the_rate():
    shape = Shape(rate_bytes=1e6, loss=0.5)
    link = lane(shape)
    bucket_bytes = 0
    for _ in range(200):
        left, _ = Flow(link, 0.0).send(MSS, 0.0)
        bucket_bytes += MSS
    sent = bucket_bytes + link.lost * MSS
    assert link.lost > 100
    assert left == pytest.approx(sent / 1e6 - DEPTH)


def test_a_chunk_is_short_where_the_link_is_slow():
    assert lane(Shape()).chunk == CHUNK
    assert lane(Shape(rate_bytes=1e6)).chunk == 5000
    assert lane(Shape(rate_bytes=1e3)).chunk == MSS
    # 222,650 B/s by Mathis and others, though the link takes more.
    assert lane(Shape(loss=0.01), rtt=0.08).chunk == MSS


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"kind": "explode"}, "kind = 'explode': use one of cut, "),
        ({"kind": "cut", "direction": "left"}, "direction = 'left': use up or down"),
        ({"kind": "duplicate", "direction": "down"}, "only what goes up"),
        ({"kind": "cut", "after_bytes": -1}, "after_bytes = -1: "),
        ({"kind": "flip", "bit": 8}, "bit = 8: "),
        ({"kind": "delay", "seconds": -0.5}, "seconds = -0.5: "),
    ],
)
def test_a_fault_that_cannot_be_is_refused(wrong, line):
    with pytest.raises(ValueError, match=line):
        Fault(**wrong)


def test_a_listed_plan_names_connections():
    cut, flip = Fault("cut", 1, 5), Fault("flip", 1, 3)
    plan = listed([cut, flip, Fault("stall", 4)])
    assert list(plan(1)) == [cut, flip]
    assert list(plan(0)) == []


def test_a_seeded_plan_hangs_on_the_seed_and_the_number_alone():
    plan = seeded(7, 0.5, span=1000, seconds=2.0)
    forwards = [tuple(plan(n)) for n in range(400)]
    again = seeded(7, 0.5, span=1000, seconds=2.0)
    assert [tuple(again(n)) for n in reversed(range(400))] == forwards[::-1]
    assert forwards != [tuple(seeded(8, 0.5, span=1000)(n)) for n in range(400)]
    drawn = [fault for faults in forwards for fault in faults]
    assert 160 < len(drawn) < 240
    assert {fault.kind for fault in drawn} == set(KINDS)
    assert {fault.direction for fault in drawn} == {"up", "down"}
    assert all(fault.after_bytes <= 1000 for fault in drawn)
    assert any(fault.after_bytes < 10 for fault in drawn)
    assert any(fault.after_bytes > 200 for fault in drawn)


def test_a_seeded_plan_refuses_what_it_cannot_draw():
    with pytest.raises(ValueError, match="share = 1.5"):
        seeded(0, 1.5)
    with pytest.raises(ValueError, match="kind = 'explode'"):
        seeded(0, kinds=["explode"])
