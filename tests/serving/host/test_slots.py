"""Whose cache rows are whose, and what may be computed on them."""

from typing import Any

import pytest

from spheroid_jax.serving.host.slots import Held, RequestKey, Slots
from spheroid_jax.serving.wire.messages import Sweep


def _key(number: int, frontend: bytes = b"f" * 16) -> RequestKey:
    return RequestKey(frontend, number.to_bytes(16, "big"))


def _sweep(**changes: Any) -> Sweep:
    fields = {
        "request": bytes(16),
        "frontend": b"f" * 16,
        "deadline": 1.0,
        "number": 5,
        "attempt": 1,
        "start": 8,
        "index": 108,
        "known": 1,
        "count": 1,
    }
    return Sweep(**{**fields, **changes})


def _held() -> Held:
    """After sweep 4 of attempt 1: 10 places from byte 100 on."""
    held = Held(_key(0), 0, 0.0)
    first = _sweep(number=4, start=0, index=100, known=10, count=10, fresh=True)
    assert held.take(first) == ""
    return held


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"start": 10, "index": 110},  # where the cache ends
        {"start": 0, "index": 100},  # all of it again
        {"number": 4, "attempt": 2},  # the last one, tried again
        {"attempt": 2, "number": 0},
        {"fresh": True, "start": 0, "index": 164},  # another segment
        {"fresh": True, "start": 0, "index": 100, "number": 1, "attempt": 2},
        {"fresh": True, "start": 0, "index": 100, "number": 9, "attempt": 2},
    ],
)
def test_what_follows_on_the_cache_is_taken(changes: dict) -> None:
    assert _held().take(_sweep(**changes)) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"start": 11, "index": 111}, "hole"),
        ({"number": 4}, "came after sweep 4"),
        ({"number": 3}, "came after sweep 4"),
        ({"attempt": 0, "number": 9}, "came after"),
        ({"number": 6}, "sweep 5 didn't"),
        ({"index": 109}, "place 8 is byte 108"),
        ({"fresh": True, "start": 1}, "place 0"),
        ({"fresh": True, "start": 0, "number": 4}, "came after"),
    ],
)
def test_what_does_not_follow_is_refused(changes: dict, said: str) -> None:
    assert said in _held().take(_sweep(**changes))


def test_a_shorter_sweep_ends_the_cache_where_it_ends() -> None:
    held = _held()
    assert held.take(_sweep(start=3, index=103, count=2)) == ""
    assert "hole" in held.take(_sweep(number=6, start=6, index=106))
    # What was refused changed nothing.
    assert held.take(_sweep(number=6, start=5, index=105)) == ""


def test_slots_are_of_one_request_each() -> None:
    slots = Slots(3)
    taken = [slots.open(_key(n), 0.0) for n in range(3)]
    assert sorted(held.slot for held in taken if held) == [0, 1, 2]
    assert slots.open(_key(3), 0.0) is None
    assert slots.free == 0
    assert slots.close(_key(1))
    assert not slots.close(_key(1))
    again = slots.open(_key(3), 0.0)
    assert again is not None
    assert taken[1] is not None
    assert again.slot == taken[1].slot


def test_no_front_end_reaches_into_the_requests_of_another() -> None:
    slots = Slots(4)
    slots.open(_key(0, b"a" * 16), 0.0)
    slots.open(_key(0, b"b" * 16), 0.0)
    assert slots.find(_key(0, b"c" * 16)) is None
    mine = slots.of_frontend(b"a" * 16)
    assert [held.key for held in mine] == [_key(0, b"a" * 16)]
    assert slots.close(_key(0, b"a" * 16))
    assert slots.find(_key(0, b"b" * 16)) is not None


def test_a_thousand_requests_leave_no_slot_behind() -> None:
    slots = Slots(2)
    for n in range(1000):
        assert slots.open(_key(n), float(n)) is not None
        assert slots.close(_key(n))
    assert slots.free == 2
    assert slots.of_frontend(b"f" * 16) == []


def test_idle_ones_are_those_that_nobody_asked_for() -> None:
    slots = Slots(3)
    for n in range(3):
        slots.open(_key(n), float(n))
    found = [held.key for held in slots.idle(1.0, besides=set())]
    assert found == [_key(0), _key(1)]
    found = [held.key for held in slots.idle(1.0, besides={_key(0)})]
    assert found == [_key(1)]


def test_clear_frees_all() -> None:
    slots = Slots(3)
    slots.open(_key(0), 0.0)
    slots.open(_key(1), 0.0)
    assert slots.clear() == 2
    assert slots.free == 3
    assert slots.find(_key(0)) is None


def test_the_end_of_a_request_is_remembered_for_its_attempts_only() -> None:
    slots = Slots(1)
    slots.end(_key(0), 2)
    slots.end(_key(0), 1)
    assert slots.ended(_key(0), 0)
    assert slots.ended(_key(0), 2)
    assert not slots.ended(_key(0), 3)
    assert not slots.ended(_key(1), 0)


def test_memory_of_ended_requests_is_bounded() -> None:
    slots = Slots(1)
    for n in range(10_000):
        slots.end(_key(n), 0)
    assert len(slots._ended) < 5000
    assert slots.ended(_key(9_999), 0)
