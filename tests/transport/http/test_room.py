"""Who gets a place, and who goes for it."""

import random

from spheroid_jax.transport.http.room import Room


def test_there_is_a_place_for_everybody_until_it_is_full() -> None:
    room: Room[int] = Room(3, 3)
    assert [room.enter("a", n) for n in range(3)] == [(True, None)] * 3
    assert len(room) == 3
    room.leave(1)
    assert 1 not in room
    assert room.enter("b", 3) == (True, None)


def test_the_oldest_of_an_owner_goes_when_it_has_its_part() -> None:
    room: Room[int] = Room(10, 2)
    for n in range(2):
        room.enter("a", n)
    room.enter("b", 7)
    assert room.enter("a", 2) == (True, 0)
    room.renew(1)
    assert room.enter("a", 3) == (True, 2)
    assert 7 in room
    assert room.count("a") == 2


def test_a_full_room_takes_from_who_has_the_most() -> None:
    room: Room[int] = Room(5, 4)
    room.enter("lone", 100)
    for n in range(4):
        room.enter("crowd", n)
    assert room.enter("new", 200) == (True, 0)
    assert room.enter("newer", 300) == (True, 1)
    assert 100 in room
    assert 200 in room


def test_those_at_work_go_last_or_never() -> None:
    at_work = {0, 1}
    last: Room[int] = Room(9, 3, rank=lambda n: int(n in at_work))
    never: Room[int] = Room(9, 3, rank=lambda n: None if n in at_work else 0)
    for room in (last, never):
        for n in range(3):
            room.enter("a", n)
        assert room.enter("a", 3) == (True, 2)
    at_work.add(3)
    assert last.enter("a", 4) == (True, 0)
    assert never.enter("a", 4) == (False, None)
    assert 4 not in never


def test_where_nobody_of_the_largest_may_go_another_does() -> None:
    at_work = {0, 1}
    room: Room[int] = Room(3, 3, rank=lambda n: None if n in at_work else 0)
    room.enter("large", 0)
    room.enter("large", 1)
    room.enter("small", 2)
    assert room.enter("new", 3) == (True, 2)


def test_the_numbers_hold_whatever_happens() -> None:
    draw, room, there = random.Random(0), Room[int](7, 3), dict[int, str]()
    for n in range(5000):
        if there and draw.random() < 0.3:
            one = draw.choice(sorted(there))
            room.leave(one)
            del there[one]
            continue
        owner = draw.choice("abcdef")
        has_place, gone = room.enter(owner, n)
        assert has_place
        if gone is not None:
            del there[gone]
        there[n] = owner
        assert len(room) == len(there) <= 7
        assert all(n in room for n in there)
        counts = [list(there.values()).count(o) for o in "abcdef"]
        assert counts == [room.count(o) for o in "abcdef"]
        assert max(counts) <= 3
