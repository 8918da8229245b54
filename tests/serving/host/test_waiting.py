"""Which sweeps go together, and in which order."""

from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spheroid_jax.serving.host.waiting import Item, Waiting
from spheroid_jax.serving.packing import bucket


def _item(key: Hashable, group: Hashable = "g", arrived: float = 0.0) -> Item[str]:
    return Item(key, group, 1e9, f"{key}{group}", arrived)


@pytest.mark.parametrize(
    ("count", "most", "padded"),
    [(1, 8, 1), (2, 8, 2), (3, 8, 4), (5, 8, 8), (8, 8, 8), (17, 24, 24), (9, 24, 16)],
)
def test_bucket(count: int, most: int, padded: int) -> None:
    assert bucket(count, most) == padded


@pytest.mark.parametrize("count", [0, 9, -1])
def test_bucket_refuses_what_does_not_fit(count: int) -> None:
    with pytest.raises(ValueError, match="1 to 8"):
        bucket(count, 8)


def test_the_oldest_goes_with_those_of_its_group() -> None:
    waiting: Waiting[str] = Waiting(10)
    for item in (_item("a"), _item("b", "h"), _item("c"), _item("d", "h")):
        waiting.put(item)
    assert [i.key for i in waiting.take(8)] == ["a", "c"]
    assert [i.key for i in waiting.take(8)] == ["b", "d"]
    assert waiting.take(8) == []


def test_at_most_so_many_go_and_the_rest_keeps_its_order() -> None:
    waiting: Waiting[str] = Waiting(10)
    for key in "abcde":
        waiting.put(_item(key))
    assert [i.key for i in waiting.take(2)] == ["a", "b"]
    assert [i.key for i in waiting.take(2)] == ["c", "d"]
    assert waiting.oldest == 0.0


def test_two_of_one_request_go_one_after_the_other() -> None:
    waiting: Waiting[str] = Waiting(10)
    for item in (_item("a"), _item("b", "h"), _item("b"), _item("a")):
        waiting.put(item)
    # b's second is of a's group, but its first has to go before.
    assert [i.payload for i in waiting.take(8)] == ["ag"]
    assert [i.payload for i in waiting.take(8)] == ["bh"]
    assert [i.payload for i in waiting.take(8)] == ["bg", "ag"]


def test_a_full_queue_takes_no_more() -> None:
    waiting: Waiting[str] = Waiting(2)
    assert waiting.put(_item("a"))
    assert waiting.put(_item("b"))
    assert waiting.full
    assert not waiting.put(_item("c"))
    assert waiting.keys() == {"a", "b"}
    assert [i.key for i in waiting.remove(lambda i: i.key == "a")] == ["a"]
    assert waiting.put(_item("c"))
    assert len(waiting) == 2


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=30),
    st.integers(1, 5),
)
def test_each_goes_once_in_the_order_of_its_request(
    arrivals: list[tuple[int, int]], most: int
) -> None:
    waiting: Waiting[str] = Waiting(100)
    items = [_item(key, group) for key, group in arrivals]
    for item in items:
        assert waiting.put(item)
    gone: list[Item[str]] = []
    while len(waiting):
        left = [item for item in items if item not in gone]
        batch = waiting.take(most)
        assert batch[0] is left[0]
        assert len(batch) <= most
        assert len({item.key for item in batch}) == len(batch)
        assert len({item.group for item in batch}) == 1
        gone.extend(batch)
    assert len(gone) == len(items)
    for key in range(5):
        mine = [item for item in gone if item.key == key]
        assert mine == [item for item in items if item.key == key]
