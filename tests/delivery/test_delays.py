"""Schedules of delays against loops over rounds and workers."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.delivery import (
    fixed,
    from_trace,
    per_worker,
    ramp,
    read_trace,
    started,
    uniform,
)

RAGGED = np.array([[0, 5, 2], [3, 0, 2], [9, 1, 2], [9, 4, 2]], np.int32)


def equal(delays: jax.Array, wanted: Any) -> None:
    assert delays.dtype == jnp.int32
    np.testing.assert_array_equal(delays, wanted)


def test_constant_schedules() -> None:
    equal(fixed(3, 2, 4), [[4, 4]] * 3)
    equal(fixed(1, 1, np.int64(0)), [[0]])
    equal(per_worker(3, [0, 7]), [[0, 7]] * 3)


def test_a_batch_of_fixed_delays() -> None:
    together = jax.vmap(lambda tau: fixed(2, 3, tau))(jnp.array([1, 6]))
    equal(together, [[[1] * 3] * 2, [[6] * 3] * 2])


def test_uniform_delays_are_uniform_up_to_and_with_the_largest() -> None:
    delays = np.asarray(uniform(jax.random.key(3), 1000, 4, 7))
    assert delays.dtype == np.int32
    counts = np.bincount(delays.ravel(), minlength=8)
    assert counts.shape == (8,)
    # A count is binomial: 500 of 4000, with standard deviation 21.
    assert np.all(np.abs(counts - 500) < 5 * np.sqrt(4000 * 7 / 64))
    # Independent over workers: two agree in one round of eight.
    agree = np.mean(delays[:, 0] == delays[:, 1])
    assert abs(agree - 1 / 8) < 5 * np.sqrt(7 / 64 / 1000)


def test_uniform_delays_of_a_round_may_be_shared() -> None:
    delays = np.asarray(uniform(jax.random.key(0), 40, 3, 5, per="round"))
    assert delays.shape == (40, 3)
    assert np.all(delays == delays[:, :1])
    assert set(delays[:, 0]) == set(range(6))


def test_a_uniform_delay_of_zero_is_lockstep() -> None:
    equal(uniform(jax.random.key(0), 3, 2, 0), np.zeros((3, 2)))


def test_a_short_trace_starts_again_and_a_long_one_is_cut() -> None:
    equal(from_trace([1, 2], 5, 2), [[1, 1], [2, 2], [1, 1], [2, 2], [1, 1]])
    trace = np.array([[0, 1], [2, 3], [4, 5]])
    equal(from_trace(trace, 4, 3), [[0, 1, 0], [2, 3, 2], [4, 5, 4], [0, 1, 0]])
    equal(from_trace(trace, 2, 1), [[0], [2]])


def test_the_ramp_ends_when_the_delay_is_reached() -> None:
    equal(ramp(fixed(6, 1, 3))[:, 0], [0, 1, 2, 3, 3, 3])
    wanted = [[min(t, int(tau)) for tau in row] for t, row in enumerate(RAGGED)]
    equal(ramp(RAGGED), wanted)
    equal(jax.jit(ramp)(RAGGED), wanted)


def test_a_start_is_a_ramp_or_is_skipped() -> None:
    delays, active = started(RAGGED, "ramp")
    equal(delays, ramp(RAGGED))
    assert np.all(active)
    delays, active = started(RAGGED, "skip")
    equal(delays, RAGGED)
    wanted = [[t >= tau for tau in row] for t, row in enumerate(RAGGED)]
    assert active.dtype == bool
    np.testing.assert_array_equal(active, wanted)
    # With a constant delay, nobody works in exactly the first tau rounds.
    assert started(fixed(9, 2, 4), "skip")[1].sum(axis=0).tolist() == [5, 5]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1,2\n0,4\n", [[1, 2], [0, 4]]),
        ("3", [[3]]),
        ("\n 1 , 2 \r\n\r\n3,4\r\n", [[1, 2], [3, 4]]),
        ("\ufeff5\n", [[5]]),
    ],
)
def test_reads_a_trace(tmp_path: Path, text: str, wanted: Any) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8", newline="")
    trace = read_trace(path)
    assert trace.dtype == np.int32
    np.testing.assert_array_equal(trace, wanted)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "trace.csv: the trace is empty"),
        ("\n\n", "trace.csv: the trace is empty"),
        ("1,2\n3,1.5\n", "trace.csv, line 2: '1.5' is not a whole number"),
        ("nan\n", "trace.csv, line 1: 'nan' is not a whole number"),
        ("worker0\n1\n", "trace.csv, line 1: 'worker0' is not a whole number"),
        ("1\n2\n-3\n", "trace.csv, line 3: a delay must be in .*, got -3"),
        ("4294967296\n", "trace.csv, line 1: a delay must be in .*, got 4294967296"),
        ("1,2\n\n3\n", "trace.csv, line 3: 1 delays where the first row has 2"),
        ("1,2\n3,\n", "trace.csv, line 2: '' is not a whole number"),
        ("\x00\xff", "trace.csv, line 1: .* is not a whole number"),
    ],
)
def test_a_bad_trace_is_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=complaint) as failure:
        read_trace(path)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: fixed(0, 2, 1), "rounds must be a whole number >= 1, got 0"),
        (lambda: fixed(2, 0, 1), "workers must be a whole number >= 1, got 0"),
        (lambda: fixed(2, 2, -1), "tau must be >= 0 rounds, got -1"),
        (lambda: fixed(2, 2, 1.5), "tau must be whole ages"),
        (lambda: fixed(2, 2, float("nan")), "tau must be whole ages"),
        (lambda: fixed(2, 2, 2**40), "tau must be at most 2147483647 rounds"),
        (lambda: fixed(2, 2, [1, 2]), "tau must be one number"),
        (
            lambda: uniform(jax.random.key(0), 2, 2, -1),
            "tau_max must be .* >= 0, got -1",
        ),
        (lambda: uniform(jax.random.key(0), 2, 2, 1.5), "tau_max must be .* got 1.5"),
        (lambda: uniform(jax.random.key(0), 2, 2, 1, "day"), "per must be 'worker' or"),
        (lambda: per_worker(2, [1, -2]), "delays must be >= 0 rounds, got -2"),
        (lambda: per_worker(2, [[1]]), "delays must be one for each worker"),
        (lambda: per_worker(2, []), "delays must be"),
        (lambda: from_trace([], 2, 2), "trace must have shape .* not be empty"),
        (lambda: from_trace([[1.0]], 2, 2), "trace must be whole ages"),
        (lambda: from_trace([-1], 2, 2), "trace must be >= 0 rounds, got -1"),
        (
            lambda: ramp([1, 2]),
            r"delays must have shape \(rounds, workers\), got \(2,\)",
        ),
        (lambda: ramp([[-1]]), "delays must be >= 0 rounds, got -1"),
        (lambda: jax.jit(ramp)(jnp.ones((2, 2))), "delays must be whole ages"),
        (lambda: started([[1]], "wait"), "start must be 'ramp' or 'skip', got 'wait'"),
    ],
)
def test_bad_arguments_are_named(call: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as failure:
        call()
    assert "\n" not in str(failure.value)


def test_a_trace_that_is_no_csv_is_one_line(tmp_path: Path) -> None:
    """A cell beyond what the reader takes, as in a binary file."""
    path = tmp_path / "binary.csv"
    path.write_text("1,2\n" + "7" * 200_000 + ",1\n")
    with pytest.raises(ValueError, match=r"binary\.csv, line \d+: ") as error:
        read_trace(path)
    assert "\n" not in str(error.value)
