"""Whole runs as one compiled scan."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax import Array

State = TypeVar("State")


def scan_rounds(
    one: Callable[[State, Any], tuple[State, dict[str, Array]]],
    evaluate: Callable[[State], Any],
    state: State,
    given: Any,
    every: int,
) -> tuple[State, dict[str, Array], Any]:
    """Scans ``one`` over rounds, and evaluates after each ``every`` of them.

    Two nested scans and not a conditional inside one: vmapped over runs, a conditional
    would evaluate in every round.

    Args:
      one: ``(state, what the round is given)`` to the next state and metrics.
      evaluate: state to a loss, scalar, or to a tree of numbers.
      state: where to begin.
      given: leaves with leading axis R, rounds.
      every: rounds between evaluations; divides R.

    Returns:
      The last state, the metrics of each round (leading axis R), and the losses after
      rounds ``every``, ``2 every``, ... (R / every,).
    """
    rounds = len(jax.tree.leaves(given)[0])
    if every < 1 or rounds % every:
        raise ValueError(f"every={every} must divide the {rounds} rounds")

    def stretch(state: State, given: Any) -> Any:
        state, metrics = jax.lax.scan(one, state, given)
        return state, (metrics, evaluate(state))

    given = jax.tree.map(
        lambda x: x.reshape(rounds // every, every, *x.shape[1:]), given
    )
    state, (metrics, losses) = jax.lax.scan(stretch, state, given)
    flat = jax.tree.map(lambda m: m.reshape(rounds, *m.shape[2:]), metrics)
    return state, flat, losses
