"""What is promised of slots, on thousands of fleets."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spheroid_jax.transport.assignment import Slot, assign

NAMES = [f"w{i}" for i in range(14)]


class Fleet:
    """Arguments of :func:`assign`."""

    def __init__(self, draw: st.DrawFn, most: int = 4) -> None:
        self.blocks = draw(st.integers(1, most))
        self.replicas = draw(st.integers(1, 3))
        names = draw(st.permutations(NAMES))
        start = draw(st.integers(0, 4))
        self.workers = names[start : draw(st.integers(start, len(names)))]
        # Most hold a slot that is theirs; some are gone, some slots don't exist (any
        # more), and some are held twice.
        every = [
            Slot(b, k) for b in range(self.blocks + 1) for k in range(self.replicas)
        ]
        slots = draw(st.permutations(every))
        self.held = dict(zip(names, slots, strict=False))
        for worker in draw(st.lists(st.sampled_from(names), max_size=4)):
            self.held.pop(worker, None)
        slot = st.builds(Slot, st.integers(-1, most), st.integers(-1, 3))
        self.held |= draw(st.dictionaries(st.sampled_from(names), slot, max_size=3))
        self.last = draw(
            st.lists(st.integers(-1, 6), min_size=self.blocks, max_size=self.blocks)
        )

    def assign(self, **changes: object) -> dict[str, Slot]:
        now = {
            "workers": self.workers,
            "held": self.held,
            "blocks": self.blocks,
            "replicas": self.replicas,
            "last_trained": self.last,
        }
        return assign(**(now | changes))  # type: ignore[arg-type]

    def kept(self) -> dict[str, Slot]:
        """What is held by right: slots that exist, by the living, the earlier first."""
        kept: dict[str, Slot] = {}
        for worker in self.workers:
            slot = self.held.get(worker, Slot(-1, -1))
            exists = slot.block in range(self.blocks) and slot.replica in range(
                self.replicas
            )
            if exists and slot not in kept.values():
                kept[worker] = slot
        return kept

    def oldest(self) -> list[int]:
        """Blocks, the least recently trained first."""
        return sorted(range(self.blocks), key=lambda b: (self.last[b], b))

    def allowed(self, counts: tuple[int, ...]) -> bool:
        """Whether so many workers in each block are as promised."""
        total = sum(counts)
        if len(self.workers) < self.blocks:
            chosen = self.oldest()[:total]
            return all(n == (b in chosen) for b, n in enumerate(counts))
        needed = 0 if total % self.blocks == 0 else 1
        alone = min(counts) == 0 and max(counts) >= 2
        return max(counts) - min(counts) <= needed + 1 and not alone


@st.composite
def fleets(draw: st.DrawFn, most: int = 4) -> Fleet:
    return Fleet(draw, most)


def counts(fleet: Fleet, slots: dict[str, Slot]) -> tuple[int, ...]:
    found = Counter(slot.block for slot in slots.values())
    return tuple(found[block] for block in range(fleet.blocks))


@settings(deadline=None, max_examples=200)
@given(fleets())
def test_everybody_has_a_slot_of_their_own_as_far_as_there_are(fleet: Fleet) -> None:
    slots = fleet.assign()
    assert len(slots) == min(len(fleet.workers), fleet.blocks * fleet.replicas)
    assert len(set(slots.values())) == len(slots)
    assert list(slots) == [worker for worker in fleet.workers if worker in slots]
    for slot in slots.values():
        assert slot.block in range(fleet.blocks)
        assert slot.replica in range(fleet.replicas)


@settings(deadline=None, max_examples=200)
@given(fleets())
def test_blocks_are_level(fleet: Fleet) -> None:
    assert fleet.allowed(counts(fleet, fleet.assign()))


@settings(deadline=None, max_examples=200)
@given(fleets(most=3))
def test_nobody_moves_without_need(fleet: Fleet) -> None:
    """The oracle tries all numbers of workers that blocks could have."""
    slots, kept = fleet.assign(), fleet.kept()
    moved = [worker for worker, slot in kept.items() if slots.get(worker) != slot]
    before = counts(fleet, kept)
    least = min(
        sum(max(0, was - is_now) for was, is_now in zip(before, after, strict=True))
        for after in itertools.product(range(fleet.replicas + 1), repeat=fleet.blocks)
        if sum(after) == len(slots) and fleet.allowed(after)
    )
    assert len(moved) == least


@settings(deadline=None)
@given(fleets())
def test_what_is_assigned_stays(fleet: Fleet) -> None:
    slots = fleet.assign()
    assert fleet.assign(held=slots) == slots
    assert fleet.assign() == slots
    # Gone workers, or in which order slots were noted, make no difference.
    reordered = dict(reversed(fleet.held.items()))
    assert fleet.assign(held=reordered) == slots
    living = {w: s for w, s in fleet.held.items() if w in fleet.workers}
    assert fleet.assign(held=living) == slots


@settings(deadline=None, max_examples=200)
@given(fleets(), st.sets(st.sampled_from(NAMES)))
def test_who_is_pinned_stays_where_they_are(fleet: Fleet, pinned: set[str]) -> None:
    held = fleet.kept()
    slots = fleet.assign(held=held, pinned=pinned)
    for worker in pinned & held.keys():
        assert slots[worker] == held[worker]
    assert len(slots) == min(len(fleet.workers), fleet.blocks * fleet.replicas)
    assert len(set(slots.values())) == len(slots)


def test_the_others_move_for_the_pinned() -> None:
    held = {"a": Slot(0, 0), "b": Slot(0, 1), "c": Slot(0, 2)}
    assert assign("abc", held, 3, 3, [0] * 3, pinned="bc") == {
        **held,
        "a": Slot(1, 0),
    }
    assert assign("abc", held, 3, 3, [0] * 3, pinned="abc") == held
    newcomer = assign("abcd", held, 3, 3, [0] * 3, pinned="abc")
    assert newcomer == held | {"d": Slot(1, 0)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([3, 1, 1], [3, 1, 1]),
        ([2, 2, 1], [2, 2, 1]),
        ([3, 2, 0], [2, 2, 1]),
        ([4, 1], [3, 2]),
        ([3, 1], [2, 2]),
        ([4, 2], [3, 3]),
        ([2, 0, 0], [1, 1, 0]),
        ([0, 1, 0], [0, 1, 0]),
        ([2, 2, 0, 0], [1, 1, 1, 1]),
    ],
)
def test_how_level_is_level_enough(before: list[int], after: list[int]) -> None:
    places = [Slot(b, k) for b, n in enumerate(before) for k in range(n)]
    held = dict(zip(NAMES, places, strict=False))
    # What was trained last waits for nobody.
    last = [-1 if n else 0 for n in after]
    slots = assign(list(held), held, len(before), 4, last)
    found = Counter(slot.block for slot in slots.values())
    assert [found[b] for b in range(len(before))] == after
    assert sum(slots[w] != held[w] for w in held) == sum(
        max(0, was - now) for was, now in zip(before, after, strict=True)
    )


@settings(deadline=None, max_examples=100)
@given(
    st.integers(1, 6),
    st.integers(1, 3),
    st.lists(st.sets(st.sampled_from(NAMES[:8]), min_size=1), min_size=6, max_size=30),
)
def test_no_block_starves(blocks: int, replicas: int, there: list[set[str]]) -> None:
    """Whoever is there: within B rounds every block is trained."""
    held: dict[str, Slot] = {}
    last = [-1] * blocks
    for number, workers in enumerate(there):
        held = assign(sorted(workers), held, blocks, replicas, last)
        for slot in held.values():
            last[slot.block] = number
        if number >= blocks - 1:
            assert min(last) > number - blocks


def test_fewer_workers_than_blocks_go_round() -> None:
    held: dict[str, Slot] = {}
    last = [-1] * 5
    turns = []
    for number in range(5):
        held = assign(["a", "b"], held, 5, 2, last)
        turns.append(sorted(slot.block for slot in held.values()))
        for slot in held.values():
            last[slot.block] = number
    assert turns == [[0, 1], [2, 3], [0, 4], [1, 2], [0, 3]]


def test_workers_that_come_together_cover_all_slots_in_turn() -> None:
    slots = assign(list("abcdefgh"), {}, 3, 2, [-1] * 3)
    in_turn = [Slot(block, replica) for replica in range(2) for block in range(3)]
    assert slots == dict(zip("abcdef", in_turn, strict=True))


def test_a_spare_takes_the_slot_of_one_who_left() -> None:
    held = assign(list("abcd"), {}, 2, 2, [-1, -1])
    after = assign(list("acdef"), held, 2, 2, [4, 4])
    assert after == {k: held[k] for k in "acd"} | {"e": held["b"]}


def test_a_block_that_lost_everybody_is_given_one_of_the_others() -> None:
    held = assign(list("abcdef"), {}, 3, 2, [-1] * 3)
    after = assign(list("bcef"), held, 3, 2, [4] * 3)
    moved = {worker for worker in after if after[worker] != held[worker]}
    assert len(moved) == 1
    assert {slot.block for slot in after.values()} == {0, 1, 2}


def test_a_newcomer_goes_where_training_is_longest_ago() -> None:
    held = {"a": Slot(0, 0), "b": Slot(1, 0), "c": Slot(2, 0)}
    after = assign(list("abcd"), held, 3, 2, [7, 5, 6])
    assert after == held | {"d": Slot(1, 1)}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((["a"], {}, 0, 1, []), "blocks=0"),
        ((["a"], {}, 1, 0, [0]), "replicas=0"),
        ((["a"], {}, 2, 1, [0]), "last_trained"),
        ((["a", "a"], {}, 1, 1, [0]), "name each once"),
    ],
)
def test_nonsense_is_refused(arguments: tuple[object, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        assign(*arguments)  # type: ignore[arg-type]
