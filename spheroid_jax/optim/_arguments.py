"""What the transformations share about their numeric arguments.

A hyper-parameter is a number, an array or a schedule. Only concrete values are checked:
under ``jit``, ``vmap`` or ``optax.inject_hyperparams`` they are traced, and pass.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

Numeric = jax.typing.ArrayLike
Hyperparameter = Numeric | Callable[[Any], Numeric]


class ScheduleState(NamedTuple):
    """Updates so far, for transformations whose only state is that."""

    count: Any  # int32, shape ()


def concrete(value: Any) -> np.ndarray | None:
    """The value on the host, or None where it is traced, a schedule or elsewhere."""
    if callable(value) or isinstance(value, jax.core.Tracer):
        return None
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        return None
    return np.asarray(value)


def check(
    name: str, value: Any, holds: Callable[[np.ndarray], np.ndarray], rule: str
) -> None:
    """Raises a ValueError that names the argument where a concrete value is bad."""
    known = concrete(value)
    if known is not None and not np.all(holds(known)):
        raise ValueError(f"{name} must be {rule}, got {value}")


def check_adam(
    b1: Hyperparameter,
    b2: Hyperparameter,
    eps: Hyperparameter,
    eps_root: Hyperparameter,
) -> None:
    """Checks Adam's hyper-parameters.

    Raises:
      ValueError: if a decay is outside [0, 1), an epsilon negative or NaN, or one of
        them an array of half precision, in which 0.999 is 1 and 1e-8 may be 0.
    """
    for name, value in {"b1": b1, "b2": b2}.items():
        check(name, value, lambda x: (x >= 0) & (x < 1), "in [0, 1)")
    for name, value in {"eps": eps, "eps_root": eps_root}.items():
        check(name, value, lambda x: x >= 0, ">= 0")
    named = {"b1": b1, "b2": b2, "eps": eps, "eps_root": eps_root}
    for name, value in named.items():
        dtype = getattr(value, "dtype", None)
        # The dtype is known even where the value is traced.
        if dtype in (jnp.bfloat16, jnp.float16):
            raise ValueError(
                f"{name} must be float32, got {dtype}; with optax.inject_hyperparams "
                "pass hyperparam_dtype=jnp.float32"
            )


def at(value: Hyperparameter | None, count: Any) -> Any:
    """A hyper-parameter's value at an update: schedules are called with the count."""
    return value(count) if callable(value) else value


def scale_by_rate(learning_rate: Hyperparameter) -> optax.GradientTransformation:
    """Multiplies updates by minus the learning rate, in the updates' own dtype.

    ``optax.scale_by_learning_rate``, except that an array doesn't promote bfloat16 and
    float16 updates to its own dtype.

    Args:
      learning_rate: a number, an array or a schedule of the number of updates so far.

    Returns:
      The transformation; its state counts updates if the rate is a schedule.
    """

    def scaled(updates: optax.Updates, rate: Any) -> optax.Updates:
        return jax.tree.map(lambda u: (-rate * u).astype(u.dtype), updates)

    def init(params: optax.Params) -> optax.OptState:
        del params
        if callable(learning_rate):
            return ScheduleState(jnp.zeros([], jnp.int32))
        return optax.EmptyState()

    def update(
        updates: optax.Updates, state: Any, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        del params
        if not callable(learning_rate):
            return scaled(updates, learning_rate), state
        rate = learning_rate(state.count)
        return scaled(updates, rate), ScheduleState(optax.safe_increment(state.count))

    return optax.GradientTransformation(init, update)
