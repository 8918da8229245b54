"""The fixed windows that results are measured on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spheroid_jax.data import CorpusError, evaluation_windows


@settings(deadline=None)
@given(size=st.integers(2, 256), seq_len=st.integers(1, 40), data=st.data())
def test_spread_over_the_split_without_overlap(
    size: int, seq_len: int, data: st.DataObject
) -> None:
    valid = np.arange(size, dtype=np.uint8)  # a byte is its own position
    fit = (size - 1) // seq_len
    if fit == 0:
        with pytest.raises(CorpusError, match="enough for 0 windows"):
            evaluation_windows(valid, seq_len=seq_len, count=1)
        return
    count = data.draw(st.integers(1, fit))
    windows = evaluation_windows(valid, seq_len=seq_len, count=count)
    assert windows.shape == (count, seq_len + 1)
    assert windows.dtype == np.uint8
    assert (np.diff(windows.astype(int), axis=1) == 1).all()
    predicted = windows[:, 1:].ravel()
    assert len(set(predicted.tolist())) == predicted.size
    starts = windows[:, 0].astype(int)
    assert starts[0] == 0
    if count > 1:
        assert windows[-1, -1] == size - 1
        gaps = np.diff(starts)
        assert gaps.max() - gaps.min() <= 1


def test_says_how_many_fit() -> None:
    valid = np.zeros(1000, np.uint8)
    assert len(evaluation_windows(valid, seq_len=100, count=9)) == 9
    with pytest.raises(CorpusError, match=r"1000 bytes, enough for 9 .* not 10"):
        evaluation_windows(valid, seq_len=100, count=10)


def test_is_the_same_at_every_call(real_text: np.ndarray) -> None:
    one, two = (evaluation_windows(real_text, seq_len=128, count=64) for _ in range(2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(("seq_len", "count"), [(0, 1), (1, 0)])
def test_refuses_nothing(seq_len: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"{seq_len=}, {count=}"):
        evaluation_windows(np.zeros(10, np.uint8), seq_len=seq_len, count=count)
