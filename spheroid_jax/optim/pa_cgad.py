r"""CGAD for partial participation: each fragment of the parameters has its own age."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from spheroid_jax.optim._adam import adam_step, moments
from spheroid_jax.optim._arguments import Hyperparameter, at, check, check_adam
from spheroid_jax.optim._trees import broadcast_prefix, flatten
from spheroid_jax.optim.cgad import Gate, check_gate
from spheroid_jax.optim.staleness import check_staleness, weight_function


class PaCgadState(NamedTuple):
    """State of :func:`pa_cgad`. F is the number of fragments, in sorted order."""

    ages: jax.Array  # outer updates since each fragment was synced; int32, (F,)
    counts: jax.Array  # updates of each fragment; int32, (F,)
    mu: optax.Updates  # first moment; float32 unless mu_dtype says otherwise
    nu: optax.Updates  # second moment; float32


def fragment_names(fragments: Any) -> tuple[Any, ...]:
    """The labels of a fragments tree, sorted: the order of ages, counts and ``synced``.

    Raises:
      ValueError: if there is no label, or labels of types that can't be sorted.
    """
    labels = set(jax.tree.leaves(fragments))
    if not labels:
        raise ValueError("fragments must hold at least one label, got none")
    try:
        return tuple(sorted(labels))
    except TypeError:
        raise ValueError(
            f"fragments must hold labels of one type, got {labels}"
        ) from None


def pa_cgad(
    learning_rate: Hyperparameter,
    fragments: Any,
    b1: Hyperparameter = 0.9,
    b2: Hyperparameter = 0.999,
    eps: Hyperparameter = 1e-8,
    eps_root: Hyperparameter = 0.0,
    mu_dtype: jax.typing.DTypeLike | None = None,
    *,
    alpha: Hyperparameter = 0.2,
    tau_cut: Hyperparameter | None = 32.0,
    gate: Gate = "pre",
) -> optax.GradientTransformationExtraArgs:
    r"""Partial-sync CGAD: fragments of the parameters are updated at their own times.

    .. math::

        \tau_f &= \max(\tau, a_f), \qquad g_f = \sigma(\tau_f) \, \Delta_f
          && f \text{ synced} \\
        a_f &\leftarrow 0 \quad f \text{ synced}, \qquad a_f \leftarrow a_f + 1
          \quad \text{otherwise}

    followed by Adam on the synced fragments, with a count of updates for each. Every
    other fragment gets an update of zero and keeps its moments and its count. Ages are
    read before they are advanced, so that with everything synced every time this is
    :func:`cgad`. Round-robin over F fragments gives a constant age of F - 1, which
    Adam cancels: only irregular schedules feel the gate.

    ``update`` takes

    - ``age``: the delay of what arrived, in outer updates: a scalar, or a vector over
      fragments; 0 if not given.
    - ``synced``: booleans over fragments in the order of :func:`fragment_names`, or a
      dict from label to boolean in which labels left out count as False, or None for
      all. It may be traced: one compiled program serves every fragment.

    Args:
      learning_rate: a number, an array or a schedule, as every other hyper-parameter.
        A schedule is read at the fragment's own count.
      fragments: labels, static: one for everything, or a tree of labels that stand at
        or above the parameters' leaves.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.
      eps_root: added inside that root.
      mu_dtype: dtype of the first moment; None for float32.
      alpha: rate of the exponential, per outer update.
      tau_cut: the age from which the weight is 0; None for no gate.
      gate: where the weight goes, as in :func:`cgad`.

    Returns:
      The transformation; ``update`` takes ``age`` and ``synced``.

    Raises:
      ValueError: on bad concrete arguments; from ``init`` and ``update`` if the
        fragments don't match the parameters; from ``update`` if ``age`` or ``synced``
        has the wrong length or an unknown label.

    Examples:
      >>> import jax, jax.numpy as jnp, optax
      >>> f = lambda p: jnp.sum(p["a"] ** 2) + jnp.sum(p["b"] ** 2)
      >>> tx = pa_cgad(0.1, {"a": "first", "b": "second"})
      >>> params = {"a": jnp.array([1.0]), "b": jnp.array([2.0])}
      >>> state = tx.init(params)
      >>> for label in ("first", "second", "second", "first", "second"):
      ...     u, state = tx.update(
      ...         jax.grad(f)(params), state, params, synced={label: True}
      ...     )
      ...     params = optax.apply_updates(params, u)
      ...     print(f"{f(params):.4f} {state.ages}")
      4.8100 [0 1]
      4.4200 [1 0]
      4.0496 [2 0]
      3.8865 [0 1]
      3.5397 [1 0]

    References:
      The partial-sync variant of *Cosine-Gated Adam-Decay*, arXiv 2605.09126.
    """
    names = fragment_names(fragments)
    check_adam(b1, b2, eps, eps_root)
    check_staleness(alpha, tau_cut)
    check_gate(gate)
    settings = {
        "b1": b1,
        "b2": b2,
        "eps": eps,
        "eps_root": eps_root,
        "rate": learning_rate,
    }

    def labels_of(tree: Any) -> list[Any]:
        return broadcast_prefix(fragments, tree, "fragments", "params")

    def init(params: optax.Params) -> PaCgadState:
        if jax.tree.leaves(params):  # optax's placeholder for params has none
            labels_of(params)
        mu, nu = moments(params, mu_dtype)
        zeros = jnp.zeros(len(names), jnp.int32)
        return PaCgadState(zeros, zeros, mu, nu)

    def update(
        updates: optax.Updates,
        state: PaCgadState,
        params: optax.Params | None = None,
        *,
        age: Any = 0,
        synced: Any = None,
        **extra_args: Any,
    ) -> tuple[optax.Updates, PaCgadState]:
        del params, extra_args
        arrived = _synced_vector(synced, names)
        counts = jnp.where(arrived, optax.safe_increment(state.counts), state.counts)
        delays = jnp.maximum(_age_vector(age, len(names)), state.ages)
        leaves, treedef = flatten(updates)
        mus = treedef.flatten_up_to(state.mu)
        nus = treedef.flatten_up_to(state.nu)
        labels = labels_of(updates)
        results: list[Any] = [None] * len(leaves)
        for f, name in enumerate(names):
            ours = [i for i, label in enumerate(labels) if label == name]
            count = state.counts[f]
            weight = weight_function(alpha, tau_cut, count)(delays[f])
            stepped = adam_step(
                [leaves[i] for i in ours],
                [mus[i] for i in ours],
                [nus[i] for i in ours],
                counts[f],
                [weight] * len(ours),
                gate=gate,
                arrived=arrived[f],
                **{key: at(value, count) for key, value in settings.items()},
            )
            for i, result in zip(ours, stepped, strict=True):
                results[i] = result
        steps, mu, nu = (treedef.unflatten([r[i] for r in results]) for i in range(3))
        ages = jnp.where(arrived, 0, optax.safe_increment(state.ages))
        return steps, PaCgadState(ages, counts, mu, nu)

    return optax.GradientTransformationExtraArgs(init, update)


def _synced_vector(synced: Any, names: tuple[Any, ...]) -> jax.Array:
    if synced is None:
        return jnp.ones(len(names), bool)
    if isinstance(synced, Mapping):
        unknown = [label for label in synced if label not in names]
        if unknown:
            raise ValueError(
                f"synced has unknown labels {unknown}; fragments are {list(names)}"
            )
        return jnp.stack([jnp.asarray(synced.get(n, False), bool) for n in names])
    vector = jnp.asarray(synced)
    if vector.dtype != bool or vector.shape != (len(names),):
        raise ValueError(
            f"synced must be {len(names)} booleans in the order {list(names)}, got "
            f"{vector.dtype} of shape {vector.shape}"
        )
    return vector


def _age_vector(age: Any, fragments: int) -> jax.Array:
    check("age", age, lambda x: x >= 0, "a number of outer updates >= 0")
    vector = jnp.asarray(age, jnp.float32)
    if vector.shape not in ((), (fragments,)):
        raise ValueError(
            f"age must be a scalar or have shape ({fragments},), got {vector.shape}"
        )
    return jnp.broadcast_to(vector, (fragments,))
