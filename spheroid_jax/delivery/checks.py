"""Checks of delays that are concrete; traced values can only have their dtype checked.

Every complaint is one line: the argument, what it holds, the cure.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LARGEST = np.iinfo(np.int32).max


def positive(name: str, value: int) -> None:
    """Raises ``ValueError`` unless ``value`` is a whole number of at least 1."""
    whole(name, value, least=1)


def whole(name: str, value: int, least: int = 0) -> None:
    """Raises ``ValueError`` unless ``value`` is one whole number >= ``least``."""
    integral = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not integral or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}")


def probability(name: str, value: float) -> None:
    """Raises ``ValueError`` unless ``value`` is a number in [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be a probability in [0, 1], got {value!r}")


def ages(name: str, values: Any) -> None:
    """Raises ``ValueError`` unless ``values`` are whole and non-negative.

    Traced values pass when their dtype is an integer one.
    """
    dtype = values.dtype if isinstance(values, jax.Array) else np.asarray(values).dtype
    if not jnp.issubdtype(dtype, jnp.integer):
        raise ValueError(
            f"{name} must be whole ages in rounds (an integer dtype), got {dtype}"
        )
    if isinstance(values, jax.core.Tracer):
        return
    least = np.min(np.asarray(values), initial=0)
    if least < 0:
        raise ValueError(f"{name} must be >= 0 rounds, got {least}")
    largest = np.max(np.asarray(values), initial=0)
    if largest > LARGEST:
        raise ValueError(f"{name} must be at most {LARGEST} rounds, got {largest}")


def literal(name: str, value: Any, most: int) -> None:
    """Checks a delay that a person wrote down: Python's or NumPy's, in [0, most].

    A JAX array is data, whose range is a matter of the overflow policy; its dtype is
    checked.
    """
    if isinstance(value, jax.Array):
        if not jnp.issubdtype(value.dtype, jnp.integer):
            raise ValueError(f"{name} must be whole rounds, got dtype {value.dtype}")
        return
    ages(name, value)
    largest = np.max(np.asarray(value), initial=0)
    if largest > most:
        raise ValueError(
            f"{name} is {largest} rounds but the queue was made for at most {most}: "
            f"call delay_queue with max_delay={largest}"
        )
