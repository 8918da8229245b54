"""The simulator's run of the same seeds, which a network must not change.

Coordinator and workers compute what :func:`spheroid_jax.rounds.make_round` computes in
one program: the same keys, windows and steps. What differs is the order in which a
float32 sum is taken, here over a batch of workers at once, there one worker at a time.
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
    config: ConfigDict, corpus: data.Corpus, say: Callable[[str], None]
) -> Simulated:
    """Runs all rounds of a configuration in this process, nobody late.

    Args:
      config: of kind ``exchange``.
      corpus: the text.
      say: prints a line.
    """
    began = time.perf_counter()
    t, keys = config.train, setup.keys_of(config)
    engine, _ = setup.engine_of(config)
    judge = setup.judge_of(config, corpus)
    batches = data.round_batches(corpus.train, **setup.window_settings(config))
    params = jax.jit(setup.init_of(config))(keys.init)
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
    say(
        f"the lockstep simulator of the same seeds: CE_chain "
        f"{points[-1]['ce_chain']:.3f} after round {t.rounds}, in {seconds:.0f} s"
    )
    return Simulated(points, state.params, seconds)


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
    where, largest = _largest(simulated.ce, ce)
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


def _largest(wanted: Points, found: Points) -> tuple[int, float]:
    """Round and size of the largest difference of a CE; infinite if one is missing."""
    by_round = {point["round"]: point for point in found}
    differences = {}
    for point in wanted:
        if not point["round"]:
            continue  # nothing was trained
        other = by_round.get(point["round"], {})
        apart = [abs(point[ce] - other.get(ce, math.inf)) for ce in _CE]
        differences[int(point["round"])] = float(np.max(apart))  # NaN stays
    worst = max(differences, key=lambda r: _nan_last(differences[r]))
    return worst, differences[worst]


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
