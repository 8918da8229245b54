"""Token buckets: how often somebody may ask."""

import pytest

from spheroid_jax.transport.http import rates
from spheroid_jax.transport.http.rates import Rate, Rates


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_and_then_the_rate() -> None:
    clock = Clock()
    asks = Rates(Rate(2.0, 5), clock)
    assert [asks.take("a") for _ in range(6)] == [0, 0, 0, 0, 0, 0.5]
    assert asks.take("b") == 0  # has its own
    clock.now += 0.25
    assert asks.take("a") == pytest.approx(0.25)
    clock.now += 0.25  # who asks in between isn't put off for longer
    assert asks.take("a") == 0
    assert asks.take("a") == pytest.approx(0.5)


def test_over_time_no_more_than_the_rate() -> None:
    clock = Clock()
    asks = Rates(Rate(10.0, 20), clock)
    taken = 0
    for _ in range(10_000):
        taken += asks.take("a") == 0
        clock.now += 0.01
    assert 1000 <= taken <= 1021


def test_a_pause_fills_the_bucket_and_no_more() -> None:
    clock = Clock()
    asks = Rates(Rate(1.0, 3), clock)
    for _ in range(3):
        asks.take("a")
    clock.now += 1000
    assert [asks.take("a") for _ in range(4)] == [0, 0, 0, 1]


def test_it_remembers_so_many_and_those_who_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rates, "_MOST", 100)
    asks = Rates(Rate(0.001, 1), Clock())
    assert asks.take("busy") == 0
    for n in range(1000):
        asks.take(f"once {n}")
        assert asks.take("busy") > 0
    assert len(asks._left) == 100
