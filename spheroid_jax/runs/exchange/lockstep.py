"""The simulator's run of the same seeds, which a network must not change.

Coordinator and workers compute what :func:`spheroid_jax.rounds.make_round` computes in
one program: the same keys, windows and steps. What differs is the order in which a
float32 sum is taken, here over a batch of workers at once, there one worker at a time.

Training makes more of a rounding with every step, so after a thousand steps two runs of
the same seeds may be apart by what different seeds would be. How far rounding alone
leads is measured then: by the simulator, begun one rounding beside.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from spheroid_jax import data
from spheroid_jax.rounds import init_state, make_round
from spheroid_jax.runs.exchange import setup

# Nats by which the CE of two runs may differ that compute the same in another order.
EXACT = 1e-4  # float32 on CPUs, where 16 rounds were seen to differ by 5e-7
COARSE = 2e-2  # bfloat16, and float32 on accelerators, whose products are rounded more
# So many times as far off as one begun a rounding beside may a run be: that one is
# rounded in another way once, a run over the network in every step.
_TIMES = 10.0
Points = Sequence[Mapping[str, float]]
_CE = ("ce_chain", "ce_ensemble")


class Simulated(NamedTuple):
    """A lockstep run.

    Attributes:
      ce: the losses of round 0 and of every evaluation, with their ``round``.
      params: at the end.
      seconds: that it took, compiling included.
    """

    ce: list[dict[str, float]]
    params: Any
    seconds: float


def simulate(
    config: ConfigDict,
    corpus: data.Corpus,
    say: Callable[[str], None],
    *,
    beside: bool = False,
) -> Simulated:
    """Runs all rounds of a configuration in this process, nobody late.

    Args:
      config: of kind ``exchange``.
      corpus: the text.
      say: prints a line.
      beside: whether to begin one rounding beside the first parameters.
    """
    began = time.perf_counter()
    t, keys = config.train, setup.keys_of(config)
    engine, _ = setup.engine_of(config)
    judge = setup.judge_of(config, corpus)
    batches = data.round_batches(corpus.train, **setup.window_settings(config))
    params = jax.jit(setup.init_of(config))(keys.init)
    if beside:
        params = jax.jit(rounded)(params)
    step = jax.jit(make_round(engine), donate_argnums=(0,))
    everybody = jnp.ones((config.model.blocks, t.replicas), bool)
    points = [{"round": 0, **judge(params)}]
    state = init_state(engine, params, keys.rounds)
    for round_ in range(t.rounds):
        state, _ = step(state, jnp.asarray(batches[round_]), everybody)
        done = round_ + 1
        if done % config.eval.every == 0 or done == t.rounds:
            points.append({"round": done, **judge(state.params)})
    seconds = time.perf_counter() - began
    begun = ", begun one rounding beside" if beside else ""
    say(
        f"the lockstep simulator of the same seeds{begun}: CE_chain "
        f"{points[-1]['ce_chain']:.3f} after round {t.rounds}, in {seconds:.0f} s"
    )
    return Simulated(points, state.params, seconds)


def rounded(params: Any) -> Any:
    """Parameters of which each is the next smaller or larger number, by turns.

    Args:
      params: a tree of floats of any shapes.
    """

    def each(leaf: jax.Array) -> jax.Array:
        up = jnp.arange(leaf.size).reshape(leaf.shape) % 2 == 0
        away = jnp.where(up, jnp.inf, -jnp.inf).astype(leaf.dtype)
        return jnp.where(leaf == 0, leaf, jnp.nextafter(leaf, away))

    return jax.tree.map(each, params)


def comparison(
    config: ConfigDict,
    simulated: Simulated,
    ce: Points,
    params: Any,
    rounds: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """How far a run over the network is from the simulator's.

    Args:
      config: of both.
      simulated: the simulator's.
      ce: losses of the run's evaluations.
      params: of the run's end.
      rounds: what its coordinator says of every round: ``heard``, ``timely`` and
        ``expected`` updates.

    Returns:
      ``ce``: the simulator's losses; ``ce_difference`` and ``ce_round``: the largest
      difference and where; ``params_difference`` and ``params_relative``: the largest
      of a parameter, and the norm of all over that of the parameters;
      ``tolerance``; ``unequal``: why the two needn't be equal, empty if they must be;
      ``problem``: a line if they must and aren't.
    """
    where, largest = _largest(differences(simulated.ce, ce))
    apart, relative = _params_apart(simulated.params, params)
    tolerance = tolerance_of(config)
    unequal = why_unequal(config, rounds)
    problem = ""
    if not unequal and not largest <= tolerance:
        problem = (
            f"the network changed the mathematics: CE of round {where} differs by "
            f"{largest:.2g} nats from the lockstep simulator's, more than the "
            f"{tolerance:g} that the order of sums explains"
        )
    return {
        "ce": simulated.ce,
        "ce_difference": largest,
        "ce_round": where,
        "params_difference": apart,
        "params_relative": relative,
        "tolerance": tolerance,
        "unequal": unequal,
        "problem": problem,
        "seconds": round(simulated.seconds, 2),
    }


def tolerance_of(config: ConfigDict) -> float:
    """Nats of CE by which two runs of the same seeds may differ on this machine."""
    is_exact = config.model.compute_dtype == "float32" and on_cpu()
    return EXACT if is_exact else COARSE


def on_cpu() -> bool:
    """Whether JAX computes on a CPU here."""
    return jax.default_backend() == "cpu"


def why_unequal(config: ConfigDict, rounds: Sequence[Mapping[str, Any]]) -> str:
    """Why a run needn't be the simulator's; empty if it must be."""
    missing = sum(r["expected"] - r["timely"] for r in rounds)
    late = sum(r["heard"] - r["timely"] for r in rounds)
    reasons = []
    if config.exchange.encoding != "float32":
        reasons.append(f"updates are sent as {config.exchange.encoding}")
    if config.exchange.broadcast != "full":
        reasons.append(f"what changed goes down as {config.exchange.broadcast}")
    if config.exchange.rule != "mean":
        reasons.append(f"replicas become one by {config.exchange.rule}")
    if missing:
        of = sum(r["expected"] for r in rounds)
        reasons.append(
            f"{missing} of {of} updates weren't in time ({late} of them came later)"
        )
    return ", and ".join(reasons)


def explained(
    found: dict[str, Any], simulated: Simulated, beside: Simulated, ce: Points
) -> dict[str, Any]:
    """A comparison with a ``problem``, beside what rounding alone makes of a run.

    A run is explained by rounding if at no evaluation it is further from the
    simulator's than ``_TIMES`` the furthest that the one begun beside had been until
    then. Mathematics that is another shows in the first rounds, where that is nothing.

    Args:
      found: of :func:`comparison`.
      simulated: the simulator's.
      beside: the simulator's, begun one rounding beside.
      ce: losses of the run's evaluations.

    Returns:
      ``found``, its ``problem`` cleared if it is explained, and ``rounding``: the
      losses ``ce`` of the run begun beside, its ``ce_difference``, ``ce_round`` and
      ``params_relative``; ``times``; ``seconds``.
    """
    alone = differences(simulated.ce, beside.ce)
    bound, furthest = {}, 0.0
    for number in sorted(alone):
        furthest = max(furthest, alone[number])
        bound[number] = max(found["tolerance"], _TIMES * furthest)
    apart = differences(simulated.ce, ce)
    beyond = [number for number in bound if not apart[number] <= bound[number]]
    problem = ""
    if beyond:
        first = min(beyond)
        problem = (
            f"the network changed the mathematics: CE of round {first} differs by "
            f"{apart[first]:.2g} nats from the lockstep simulator's, where rounding "
            f"explains {bound[first]:.2g}"
        )
    where, largest = _largest(alone)
    rounding = {
        "ce": beside.ce,
        "ce_difference": largest,
        "ce_round": where,
        "params_relative": _params_apart(simulated.params, beside.params)[1],
        "times": _TIMES,
        "seconds": round(beside.seconds, 2),
    }
    return {**found, "problem": problem, "rounding": rounding}


def differences(wanted: Points, found: Points) -> dict[int, float]:
    """The larger difference of the two CE by round; infinite where one is missing."""
    by_round = {point["round"]: point for point in found}
    apart = {}
    for point in wanted:
        if not point["round"]:
            continue  # nothing was trained
        other = by_round.get(point["round"], {})
        each = [abs(point[ce] - other.get(ce, math.inf)) for ce in _CE]
        apart[int(point["round"])] = float(np.max(each))  # NaN stays
    return apart


def _largest(apart: Mapping[int, float]) -> tuple[int, float]:
    """Round and size of the largest difference."""
    worst = max(apart, key=lambda r: _nan_last(apart[r]))
    return worst, apart[worst]


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _params_apart(wanted: Any, found: Any) -> tuple[float, float]:
    largest = difference = size = 0.0
    for one, other in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        largest = max(largest, float(np.max(np.abs(one - other), initial=0.0)))
        difference += float(np.sum(np.square(one - other)))
        size += float(np.sum(np.square(one)))
    return largest, math.sqrt(difference / size) if size else 0.0
