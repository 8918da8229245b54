"""Memory for uploads: plenty for a few, little for each of many."""

import contextlib

import pytest

from spheroid_jax.transport.http.buffers import LEAST, MOST, SUM, Buffers


def test_the_first_upload_gets_the_largest_buffers() -> None:
    with Buffers().lent(4) as buffers:
        assert [len(buffer) for buffer in buffers] == [MOST] * 4


@pytest.mark.parametrize("uploads", [8, 64, 1000])
def test_all_together_take_a_sum_and_the_least_for_each(uploads: int) -> None:
    buffers = Buffers()
    with contextlib.ExitStack() as stack:
        lent = [stack.enter_context(buffers.lent(4)) for _ in range(uploads)]
        sizes = [sum(map(len, one)) for one in lent]
    assert sum(sizes) <= SUM + 4 * LEAST * uploads
    assert min(sizes) >= 4 * LEAST
    assert sizes == sorted(sizes, reverse=True)


def test_what_comes_back_is_lent_again_also_after_an_error() -> None:
    buffers = Buffers()
    for _ in range(100):
        with pytest.raises(KeyError), buffers.lent(4):
            raise KeyError
    with buffers.lent(4) as again:
        assert len(again[0]) == MOST


def test_buffers_are_of_different_memory() -> None:
    with Buffers().lent(3) as buffers:
        for number, buffer in enumerate(buffers):
            buffer[:] = bytes([number + 1]) * len(buffer)
        for number, buffer in enumerate(buffers):
            assert bytes(buffer) == bytes([number + 1]) * len(buffer)
