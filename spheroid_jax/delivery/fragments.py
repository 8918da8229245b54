"""Fragments: which layers are sent together, and in which rounds they are synced.

A schedule is bool (rounds, fragments) or (rounds, workers), made outside the compiled
simulation like a schedule of delays. Under a regular schedule every fragment has a
constant age, which Adam cancels; only irregular ones (:func:`dropped`, :func:`quorum`)
tell age-aware optimizers apart.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from spheroid_jax.delivery import checks


def strided(layers: int, fragments: int) -> tuple[int, ...]:
    """The fragment of each layer, i mod F: every fragment spans the whole depth.

    The strided pattern of Streaming DiLoCo (arXiv 2501.18512).

    Raises:
      ValueError: if there are more fragments than layers, or none.
    """
    checks.positive("layers", layers)
    checks.positive("fragments", fragments)
    if fragments > layers:
        raise ValueError(f"fragments must be at most layers={layers}, got {fragments}")
    return tuple(layer % fragments for layer in range(layers))


def unstack_layers(params: Mapping[str, Any], key: str = "layers") -> dict[str, Any]:
    """Gives each layer a subtree of its own, so that it can have its own label.

    Args:
      params: mapping whose entry ``key`` has leaves (L, ...).
      key: name of the stacked layers.

    Returns:
      ``params`` with ``{"00": layer 0, "01": layer 1, ...}`` under ``key``, padded so
      that the order of names is that of layers.

    Raises:
      ValueError: if there is no such entry, or its leaves differ in L.
    """
    stack = _entry(params, key)
    depths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(stack)}
    if len(depths) != 1 or depths == {()}:
        raise ValueError(
            f"params[{key!r}] must have leaves with one leading axis of layers, "
            f"got leading axes {sorted(depths)}"
        )
    (depth,) = depths.pop()
    layers = {
        name: jax.tree.map(lambda leaf, i=i: leaf[i], stack)
        for i, name in enumerate(_names(depth, least=2))
    }
    return {**params, key: layers}


def restack_layers(params: Mapping[str, Any], key: str = "layers") -> dict[str, Any]:
    """Exact inverse of :func:`unstack_layers`.

    Raises:
      ValueError: if there is no such entry, or its names aren't those of layers.
    """
    layers = _entry(params, key)
    names = _layer_names(layers, key)
    stack = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *(layers[name] for name in names)
    )
    return {**params, key: stack}


def fragment_labels(
    params: Mapping[str, Any],
    assignment: Sequence[int],
    rest: str = "shared",
    key: str = "layers",
) -> dict[str, Any]:
    """Labels each leaf with its fragment, for optimizers with a state per fragment.

    Args:
      params: parameters as :func:`unstack_layers` returns them.
      assignment: the fragment of each layer, as :func:`strided` returns it.
      rest: label of everything that isn't a layer (embedding, final norm). By default
        it is a fragment of its own, whose name comes last in sorted order;
        ``"fragment_0"`` sends it along with the first fragment.
      key: name of the layers.

    Returns:
      A tree of strings like ``params``: ``fragment_0``, ``fragment_1``, ..., padded
      with zeros from eleven fragments on, so that the order of names is that of
      fragments.

    Raises:
      ValueError: if ``assignment`` doesn't hold a fragment >= 0 for each layer.
    """
    names = _layer_names(_entry(params, key), key)
    if len(assignment) != len(names) or min(assignment) < 0:
        raise ValueError(
            f"assignment must hold a fragment >= 0 for each of {len(names)} layers, "
            f"got {tuple(assignment)}"
        )
    labels = [f"fragment_{name}" for name in _names(max(assignment) + 1)]

    def label(tree: Any, text: str) -> Any:
        return jax.tree.map(lambda _: text, tree)

    layers = {
        name: label(params[key][name], labels[fragment])
        for name, fragment in zip(names, assignment, strict=True)
    }
    others = {name: label(tree, rest) for name, tree in params.items()}
    return {**others, key: layers}


def every(rounds: int, periods: Sequence[int], offsets: Sequence[int]) -> Array:
    """Regular syncs, bool (rounds, fragments).

    Args:
      rounds: number of rounds.
      periods: rounds between two syncs of each fragment, >= 1.
      offsets: round of each fragment's first sync, >= 0.

    Raises:
      ValueError: if periods or offsets are out of range, or of different lengths.
    """
    checks.positive("rounds", rounds)
    checks.ages("periods", periods)
    checks.ages("offsets", offsets)
    if np.ndim(periods) != 1 or np.shape(periods) != np.shape(offsets):
        raise ValueError(
            "periods and offsets must hold one number for each fragment, "
            f"got shapes {np.shape(periods)} and {np.shape(offsets)}"
        )
    if min(periods, default=0) < 1:
        raise ValueError(f"periods must be >= 1 round, got {tuple(periods)}")
    since = np.arange(rounds)[:, None] - np.asarray(offsets)[None]
    return jnp.asarray((since >= 0) & (since % np.asarray(periods)[None] == 0))


def round_robin(rounds: int, fragments: int) -> Array:
    """One fragment a round, in turn, bool (rounds, fragments)."""
    checks.positive("fragments", fragments)
    return every(rounds, [fragments] * fragments, range(fragments))


def dropped(key: Array, schedule: ArrayLike, probability: float) -> Array:
    """Loses each sync of a schedule independently, bool of the schedule's shape.

    Args:
      key: of the draws.
      schedule: bool (rounds, fragments).
      probability: of losing a sync; a lost one isn't made up for.

    Raises:
      ValueError: if ``probability`` isn't in [0, 1].
    """
    checks.probability("probability", probability)
    lost = jax.random.bernoulli(key, probability, np.shape(schedule))
    return jnp.asarray(schedule, bool) & ~lost


def quorum(
    key: Array,
    rounds: int,
    workers: int,
    mean_seconds: ArrayLike,
    *,
    quorum: int,
    grace: float,
    law: Literal["lognormal", "exponential"] = "lognormal",
    spread: float = 0.5,
) -> Array:
    """Which workers arrive before a round closes, bool (rounds, workers).

    A round closes ``grace`` seconds after its K-th arrival (the quorum and grace window
    of Decoupled DiLoCo, arXiv 2604.21428; its window adapts, this one is constant). All
    workers start each round together, and times are independent. At least K are
    accepted in each round.

    Args:
      key: of the arrival times.
      rounds: number of rounds.
      workers: number of workers, M.
      mean_seconds: mean time until a worker's update arrives, or (workers,).
      quorum: K, from 1 to M.
      grace: seconds after the K-th arrival; infinite accepts everybody.
      law: of the times.
      spread: standard deviation of the logarithm, for ``lognormal``; 0 has no noise.

    Raises:
      ValueError: if an argument is out of range.
    """
    checks.positive("rounds", rounds)
    checks.positive("workers", workers)
    checks.positive("quorum", quorum)
    if quorum > workers:
        raise ValueError(f"quorum must be at most workers={workers}, got {quorum}")
    if not grace >= 0:
        raise ValueError(f"grace must be >= 0 seconds, got {grace}")
    mean = np.asarray(mean_seconds, np.float32)
    if mean.shape not in ((), (workers,)) or not np.all((mean > 0) & np.isfinite(mean)):
        raise ValueError(
            "mean_seconds must be > 0, one for all or one for each of the "
            f"{workers} workers, got {mean_seconds}"
        )
    times = jnp.asarray(mean).reshape(1, -1) * _unit_times(
        key, (rounds, workers), law, spread
    )
    kth = jnp.sort(times, axis=1)[:, quorum - 1 : quorum]
    return times <= kth + grace


def _unit_times(key: Array, shape: tuple[int, int], law: str, spread: float) -> Array:
    """Positive times of mean 1."""
    if law == "exponential":
        return jax.random.exponential(key, shape)
    if law != "lognormal":
        raise ValueError(f"law must be 'lognormal' or 'exponential', got {law!r}")
    if not 0 <= spread < np.inf:
        raise ValueError(f"spread must be >= 0 and finite, got {spread}")
    return jnp.exp(spread * jax.random.normal(key, shape) - spread**2 / 2)


def _entry(params: Mapping[str, Any], key: str) -> Any:
    if key not in params:
        raise ValueError(f"params have no entry {key!r}, only {sorted(params)}")
    return params[key]


def _names(count: int, least: int = 1) -> list[str]:
    width = max(least, len(str(count - 1)))
    return [f"{i:0{width}d}" for i in range(count)]


def _layer_names(layers: Any, key: str) -> list[str]:
    names = sorted(layers) if isinstance(layers, Mapping) else []
    if not names or names != _names(len(names), least=2):
        raise ValueError(
            f"params[{key!r}] must be a mapping of layers '00', '01', ...: "
            "call unstack_layers first"
        )
    return names
