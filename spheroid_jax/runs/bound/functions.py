"""Smooth functions that aren't convex, with gradients that are known exactly.

Coordinates of the first two are rotated, so that an optimizer which works by
coordinates gets no help from the function's own axes.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


class Smooth(NamedTuple):
    """A function to minimise.

    Attributes:
      value: parameters (D,) to the value, scalar.
      start: key to a starting point (D,).
      lipschitz: a constant L with ``|grad f(x) - grad f(y)| <= L |x - y|`` everywhere,
        or None where there is none.
      formula: the function in words, for the report.
    """

    value: Callable[[Array], Array]
    start: Callable[[Array], Array]
    lipschitz: float | None
    formula: str


_DIMENSION = 10
_RIPPLE, _FREQUENCY = 0.1, 3.0
_SCALES = np.logspace(-1, 0, _DIMENSION)  # curvatures, a condition number of ten
_INPUTS, _HIDDEN, _EXAMPLES = 3, 8, 64


def _ripples() -> Smooth:
    """A quadratic with a cosine on it, ``f'' >= lam - a b^2``, negative in places."""
    turn, scales = _rotation(), jnp.asarray(_SCALES, jnp.float32)

    def value(x: Array) -> Array:
        y = turn @ x
        ripple = _RIPPLE * (1.0 - jnp.cos(_FREQUENCY * y))
        return jnp.sum(0.5 * scales * jnp.square(y) + ripple)

    return Smooth(
        value,
        lambda key: 3.0 * jax.random.normal(key, (_DIMENSION,)),
        float(_SCALES.max()) + _RIPPLE * _FREQUENCY**2,
        "sum of lam_i y_i^2 / 2 + 0.1 (1 - cos 3 y_i), y = Q x, lam from 0.1 to 1, "
        "10 parameters",
    )


def _saddle() -> Smooth:
    """Double wells: a saddle at 0 of curvature ``-2 lam``, minima at ``+-sqrt(2)``."""
    turn, scales = _rotation(), jnp.asarray(_SCALES, jnp.float32)

    def value(x: Array) -> Array:
        square = jnp.square(turn @ x)
        return jnp.sum(scales * (0.5 * square - 1.5 * jnp.log1p(square)))

    # The second derivative of a well is 1 - 3 (1 - y^2) / (1 + y^2)^2, in [-2, 11/8].
    return Smooth(
        value,
        lambda key: 0.1 * jax.random.normal(key, (_DIMENSION,)),
        2.0 * float(_SCALES.max()),
        "sum of lam_i (y_i^2 / 2 - 1.5 log(1 + y_i^2)), y = Q x, lam from 0.1 to 1, "
        "10 parameters, begun beside the saddle",
    )


def _network() -> Smooth:
    """Regression by a tanh network onto a wider one, on a few fixed examples."""
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(_EXAMPLES, _INPUTS))
    hidden = np.tanh(inputs @ rng.normal(size=(_INPUTS, 2 * _HIDDEN)))
    outputs = hidden @ rng.normal(size=2 * _HIDDEN) / np.sqrt(2 * _HIDDEN)
    x, y = jnp.asarray(inputs, jnp.float32), jnp.asarray(outputs, jnp.float32)
    first = _INPUTS * _HIDDEN
    dimension = first + 2 * _HIDDEN

    def value(params: Array) -> Array:
        matrix = params[:first].reshape(_INPUTS, _HIDDEN)
        bias, last = params[first : first + _HIDDEN], params[first + _HIDDEN :]
        predicted = jnp.tanh(x @ matrix + bias[None]) @ last
        return 0.5 * jnp.mean(jnp.square(predicted - y))

    return Smooth(
        value,
        lambda key: 0.5 * jax.random.normal(key, (dimension,)),
        None,  # of the weights: grows with the size of the last layer
        f"half the mean squared error of a tanh network, {_INPUTS} inputs, {_HIDDEN} "
        f"hidden units, {dimension} parameters, {_EXAMPLES} examples",
    )


def _rotation() -> Array:
    matrix = np.random.default_rng(0).normal(size=(_DIMENSION, _DIMENSION))
    return jnp.asarray(np.linalg.qr(matrix)[0], jnp.float32)


FUNCTIONS: Mapping[str, Callable[[], Smooth]] = {
    "ripples": _ripples,
    "saddle": _saddle,
    "network": _network,
}


def typical_gradient(function: Smooth, starts: int = 256) -> float:
    """Root mean square of a coordinate of the gradient, over random starting points."""
    keys = jax.random.split(jax.random.key(0), starts)
    points = jax.vmap(function.start)(keys)
    gradients = jax.vmap(jax.grad(function.value))(points)
    return float(jnp.sqrt(jnp.mean(jnp.square(gradients))))
