"""Fragments and their schedules, against loops and closed forms."""

from math import erf, exp, log
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spheroid_jax.delivery import (
    dropped,
    every,
    fragment_labels,
    quorum,
    restack_layers,
    round_robin,
    strided,
    unstack_layers,
)

KEY = jax.random.key(5)
MANY = 20_000


def stacked(depth: int) -> dict[str, Any]:
    """Parameters of ``depth`` layers, whose leaves tell their layer."""
    numbers = jnp.arange(depth, dtype=jnp.float32)
    return {
        "embedding": jnp.ones(3),
        "layers": {
            "mlp": {"w": jnp.outer(numbers, jnp.arange(1.0, 4.0))},
            "norm": numbers.astype(jnp.bfloat16) / 3,
        },
    }


def test_strided_fragments_span_the_depth() -> None:
    assert strided(7, 3) == (0, 1, 2, 0, 1, 2, 0)
    assert strided(2, 1) == (0, 0)


@pytest.mark.parametrize("depth", [1, 3, 101])
def test_layers_are_taken_apart_and_put_together_exactly(depth: int) -> None:
    params = stacked(depth)
    apart = unstack_layers(params)
    names = list(apart["layers"])
    assert len(names) == depth
    assert names == sorted(names)
    assert names[0] == ("000" if depth > 100 else "00")
    for i, name in enumerate(names):
        np.testing.assert_array_equal(
            apart["layers"][name]["mlp"]["w"], [i, 2 * i, 3 * i]
        )
    # JAX sorts dictionaries: put together from any order, they are the same.
    shuffled = {**apart, "layers": dict(reversed(apart["layers"].items()))}
    for again in (restack_layers(apart), restack_layers(shuffled)):
        assert jax.tree.structure(again) == jax.tree.structure(params)
        jax.tree.map(np.testing.assert_array_equal, again, params)
        assert again["layers"]["norm"].dtype == jnp.bfloat16


def test_each_leaf_has_the_label_of_its_layer() -> None:
    apart = unstack_layers(
        {"blocks": stacked(3)["layers"], "head": jnp.ones(2)}, "blocks"
    )
    labels = fragment_labels(apart, strided(3, 2), key="blocks")
    both = lambda text: {"mlp": {"w": text}, "norm": text}  # noqa: E731
    assert labels == {
        "blocks": {
            "00": both("fragment_0"),
            "01": both("fragment_1"),
            "02": both("fragment_0"),
        },
        "head": "shared",
    }
    with_first = fragment_labels(apart, (1, 0, 1), "fragment_0", key="blocks")
    assert with_first["head"] == "fragment_0"
    assert with_first["blocks"]["00"] == both("fragment_1")


def test_labels_sort_in_the_order_of_fragments() -> None:
    labels = fragment_labels(unstack_layers(stacked(12)), strided(12, 12))
    ordered = sorted(set(jax.tree.leaves(labels)))
    assert ordered == [*(f"fragment_{i:02d}" for i in range(12)), "shared"]


plans = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 7)), min_size=1, max_size=4
)


@given(rounds=st.integers(1, 20), plan=plans)
@settings(max_examples=30, deadline=None)
def test_regular_syncs_are_those_of_a_loop(
    rounds: int, plan: list[tuple[int, int]]
) -> None:
    periods, offsets = zip(*plan, strict=True)
    wanted = np.zeros((rounds, len(plan)), bool)
    for fragment, (period, offset) in enumerate(plan):
        for t in range(offset, rounds, period):
            wanted[t, fragment] = True
    schedule = every(rounds, periods, offsets)
    assert schedule.dtype == bool
    np.testing.assert_array_equal(schedule, wanted)


def test_round_robin_takes_turns() -> None:
    schedule = np.asarray(round_robin(7, 3))
    assert [list(np.flatnonzero(row)) for row in schedule] == [
        [t] for t in (0, 1, 2, 0, 1, 2, 0)
    ]


def test_dropped_syncs_are_lost_independently() -> None:
    schedule = every(MANY, (1, 2), (0, 0))
    kept = np.asarray(dropped(KEY, schedule, 0.3))
    assert not np.any(kept & ~np.asarray(schedule))
    rates = kept.sum(axis=0) / np.asarray(schedule).sum(axis=0)
    assert np.all(np.abs(rates - 0.7) < 5 * np.sqrt(0.21 / (MANY / 2)))
    both = np.mean(kept[::2].all(axis=1))
    assert abs(both - 0.49) < 5 * np.sqrt(0.25 / (MANY / 2))
    np.testing.assert_array_equal(dropped(KEY, schedule, 0.0), schedule)
    assert not np.any(dropped(KEY, schedule, 1.0))


@pytest.mark.parametrize(
    ("needed", "grace", "wanted"),
    [
        (1, 0.0, [True, False, False, False]),
        (2, 0.9, [True, True, False, False]),
        (2, 1.0, [True, True, True, False]),
        (3, 100.0, [True, True, True, True]),
    ],
)
def test_a_round_closes_some_time_after_the_quorum(
    needed: int, grace: float, wanted: list[bool]
) -> None:
    """Without noise, workers arrive at 1, 2, 3 and 50 seconds."""
    accepted = quorum(KEY, 3, 4, [1, 2, 3, 50], quorum=needed, grace=grace, spread=0.0)
    np.testing.assert_array_equal(accepted, [wanted] * 3)


@pytest.mark.parametrize("law", ["lognormal", "exponential"])
def test_a_quorum_is_reached_in_every_round(law: Any) -> None:
    means = [1.0, 1.5, 2.0, 8.0]
    last = None
    for grace in (0.0, 0.5, 2.0, float("inf")):
        accepted = np.asarray(
            quorum(KEY, 500, 4, means, quorum=2, grace=grace, law=law)
        )
        count = accepted.sum(axis=1)
        assert count.min() >= 2
        if grace == 0:
            assert count.max() == 2
        if last is not None:
            assert np.all(accepted >= last)  # More grace never excludes anybody.
        last = accepted
    assert np.all(last)


def within(share: float, probability: float) -> bool:
    """Whether a share of MANY rounds is within five standard deviations."""
    return abs(share - probability) < 5 * np.sqrt(
        probability * (1 - probability) / MANY
    )


def test_exponential_arrivals_follow_closed_forms() -> None:
    """The first of two with means 1 and 3, and the memoryless wait for the second."""
    accepted = np.asarray(
        quorum(KEY, MANY, 2, [1.0, 3.0], quorum=1, grace=0, law="exponential")
    )
    assert within(accepted[:, 0].mean(), 3 / (1 + 3))
    accepted = np.asarray(
        quorum(KEY, MANY, 2, 2.0, quorum=1, grace=1.5, law="exponential")
    )
    assert within(accepted.all(axis=1).mean(), 1 - exp(-1.5 / 2.0))


def test_lognormal_arrivals_follow_closed_forms() -> None:
    """The logarithms differ by a normal with standard deviation sqrt(2) x spread."""
    accepted = np.asarray(
        quorum(KEY, MANY, 2, [1.0, 1.5], quorum=1, grace=0, spread=0.4)
    )
    z = log(1.5) / (2**0.5 * 0.4)
    assert within(accepted[:, 0].mean(), (1 + erf(z / 2**0.5)) / 2)
    # Given means are means, not medians: the same draws by NumPy.
    times = np.random.default_rng(0).lognormal(log(3) - 0.8**2 / 2, 0.8, (400_000, 2))
    assert np.isclose(times.mean(), 3, rtol=0.01)
    share = np.mean(np.abs(times[:, 0] - times[:, 1]) <= 1)
    accepted = np.asarray(quorum(KEY, MANY, 2, 3.0, quorum=1, grace=1, spread=0.8))
    assert within(accepted.all(axis=1).mean(), float(share))


def ask(**changes: Any) -> Any:
    arguments: dict[str, Any] = {"mean_seconds": 1.0, "quorum": 2, "grace": 0.0}
    return quorum(KEY, 2, 3, **(arguments | changes))


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: strided(2, 3), "fragments must be at most layers=2, got 3"),
        (lambda: strided(2, 0), "fragments must be a whole number >= 1, got 0"),
        (lambda: unstack_layers({"blocks": 1}), "no entry 'layers', only .'blocks'."),
        (
            lambda: unstack_layers({"layers": {"a": jnp.ones(2), "b": jnp.ones(3)}}),
            "must have leaves with one leading axis of layers",
        ),
        (lambda: unstack_layers({"layers": jnp.ones(())}), "leading axis"),
        (lambda: restack_layers(stacked(2)), "call unstack_layers first"),
        (lambda: restack_layers({"layers": {"00": 1, "02": 1}}), "call unstack_layers"),
        (
            lambda: fragment_labels(unstack_layers(stacked(2)), (0,)),
            r"assignment must hold a fragment >= 0 for each of 2 layers, got \(0,\)",
        ),
        (
            lambda: fragment_labels(unstack_layers(stacked(2)), (0, -1)),
            "assignment must",
        ),
        (lambda: every(3, (0,), (0,)), "periods must be >= 1 round"),
        (lambda: every(3, (1,), (-1,)), "offsets must be >= 0 rounds, got -1"),
        (lambda: every(3, (1, 2), (0,)), "periods and offsets must hold one number"),
        (lambda: round_robin(0, 1), "rounds must be a whole number >= 1"),
        (lambda: dropped(KEY, [[True]], 1.5), "probability must be .* got 1.5"),
        (lambda: dropped(KEY, [[True]], float("nan")), "probability must be .* nan"),
        (lambda: ask(quorum=4), "quorum must be at most workers=3, got 4"),
        (lambda: ask(quorum=0), "quorum must be a whole number >= 1, got 0"),
        (lambda: ask(grace=-1.0), "grace must be >= 0 seconds, got -1"),
        (lambda: ask(grace=float("nan")), "grace must be >= 0 seconds, got nan"),
        (lambda: ask(mean_seconds=0.0), "mean_seconds must be > 0"),
        (lambda: ask(mean_seconds=[1.0, 2.0]), "mean_seconds must be > 0, one for all"),
        (lambda: ask(law="normal"), "law must be 'lognormal' or 'exponential'"),
        (lambda: ask(spread=-0.1), "spread must be >= 0 and finite, got -0.1"),
    ],
)
def test_bad_arguments_are_named(call: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as failure:
        call()
    assert "\n" not in str(failure.value)
