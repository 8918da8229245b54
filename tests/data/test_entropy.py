"""Byte entropies against closed forms, and against published text."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from spheroid_jax.data import byte_entropies
from spheroid_jax.data import entropy as entropy_module


def by_counting(data: bytes, order: int) -> float:
    """The definition, one gram at a time: mean of -ln p(last | rest)."""
    grams = [data[i : i + order + 1] for i in range(len(data) - order)]
    whole, rest = Counter(grams), Counter(gram[:-1] for gram in grams)
    return -sum(n * math.log(n / rest[g[:-1]]) for g, n in whole.items()) / len(grams)


def test_matches_the_definition_on_text(real_text: np.ndarray) -> None:
    sample = real_text[:20_000]
    expected = [by_counting(sample.tobytes(), order) for order in (0, 1, 2)]
    np.testing.assert_allclose(byte_entropies(sample), expected, rtol=1e-12)


def test_closed_forms() -> None:
    alternating = np.tile(np.array([7, 250], np.uint8), 500)
    np.testing.assert_allclose(
        byte_entropies(alternating), (math.log(2), 0.0, 0.0), atol=1e-12
    )
    # x, x, y, y: the last byte leaves two choices, the last two leave one.
    paired = np.tile(np.array([0, 0, 255, 255], np.uint8), 2500)
    order_0, order_1, order_2 = byte_entropies(paired)
    assert order_0 == pytest.approx(math.log(2))
    assert order_1 == pytest.approx(math.log(2), rel=1e-6)
    assert order_2 == pytest.approx(0.0, abs=1e-12)


def test_counting_in_chunks_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, real_text: np.ndarray
) -> None:
    whole = byte_entropies(real_text[:10_000])
    monkeypatch.setattr(entropy_module, "_CHUNK", 999)
    assert byte_entropies(real_text[:10_000]) == whole


def test_wikitext_figures(wikitext_raw: Path) -> None:
    valid = np.fromfile(wikitext_raw / "wiki.valid.raw", np.uint8)
    assert [round(h, 3) for h in byte_entropies(valid)] == [3.174, 2.443, 1.984]


@pytest.mark.parametrize("data", [np.zeros(2, np.uint8), np.zeros(9, np.int64)])
def test_refuses_what_has_no_second_order(data: np.ndarray) -> None:
    with pytest.raises(ValueError, match="at least 3 bytes"):
        byte_entropies(data)
