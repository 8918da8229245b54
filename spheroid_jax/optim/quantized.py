"""AdamW whose moments take a byte each: block-wise 8-bit states.

No well-kept JAX library has this: bitsandbytes and its relatives are PyTorch with CUDA
kernels, and ``flashoptim-jax`` has had one release (0.1.0, March 2026).

A moment is stored as codes of the leaf's own shape, so that they take its sharding, and
a float32 scale for each block along the last axis, the largest magnitude in the block.
Between scale and code there is a power law instead of the paper's dynamic code book:

* first moment, int8: ``m = scale * sign(c) * |c / 127| ** 3``;
* second moment, uint8: ``v = scale * (c / 255) ** 6``, a cube in the root of ``v``.

Neighbours are 2.4 % and, in the root, 1.2 % apart at the largest value of a block; 11 %
and 5.5 % at a hundredth of it. The least positive value is 5e-7 and 6e-8 of it.

Rounding is to one of the two neighbours, with the probability that makes the *value*
right on average. To the nearest would be wrong: with ``b2 = 0.999`` a second moment
changes by at most 0.1 % where gradients shrink, less than half of a gap, and would
never change at all. The draws come from a low-discrepancy sequence of the element's
index and the count, so that there is no key and a run repeats itself bit for bit.

Two things keep a step from being huge. A positive second moment is never rounded to
zero, only up to the least positive value. And a first moment that is read is clipped to
the largest that exact arithmetic could have left beside its second moment
(Cauchy-Schwarz), so that the two roundings can't add up to a step that Adam itself
could not take. A gradient that isn't finite spoils the blocks it falls into; where
that can happen, wrap the optimizer in ``skip_nonfinite``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from spheroid_jax.optim._arguments import Hyperparameter, at, check, check_adam
from spheroid_jax.optim._leafwise import map_updates, no_updates

__all__ = [
    "Quantized",
    "ScaleByAdam8bitState",
    "adamw_8bit",
    "dequantize",
    "quantize",
    "scale_by_adam_8bit",
]

# Shorter rows would spend more than a quarter of a byte an element on scales.
_LEAST_ROW = 16


class Quantized(NamedTuple):
    """A moment in 8 bits.

    Attributes:
      codes: (..., n) int8 (signed) or uint8 (not negative).
      scales: (..., ceil(n / block_size)) float32, the largest magnitude of each block.
    """

    codes: jax.Array
    scales: jax.Array


class ScaleByAdam8bitState(NamedTuple):
    """State of :func:`scale_by_adam_8bit`.

    Attributes:
      count: () int32, updates so far.
      mu: first moment: for each leaf a :class:`Quantized`, or float32 if it's small.
      nu: second moment, likewise.
    """

    count: Any
    mu: Any
    nu: Any


def scale_by_adam_8bit(
    b1: Hyperparameter = 0.9,
    b2: Hyperparameter = 0.999,
    eps: Hyperparameter = 1e-8,
    block_size: int = 256,
    min_size: int = 4096,
) -> optax.GradientTransformationExtraArgs:
    r"""Adam's scaling with moments of 8 bits.

    .. math::
      \begin{align*}
        m &\leftarrow Q_m\left(\beta_1 m + (1 - \beta_1) g\right) \\
        v &\leftarrow Q_v\left(\beta_2 v + (1 - \beta_2) g^2\right) \\
        u &= \hat m / (\sqrt{\hat v} + \epsilon)
      \end{align*}

    where the step uses the moments before they are rounded. A leaf keeps float32
    moments if it has fewer than ``min_size`` elements or fewer than 16 along its last
    axis.

    Args:
      b1: decay of the first moment: a number, an array or a schedule.
      b2: decay of the second moment, likewise.
      eps: added to the root, likewise.
      block_size: elements along the last axis that share a scale. Static, also under
        ``optax.inject_hyperparams`` (``static_args``).
      min_size: elements from which a leaf is quantized. Static.

    Returns:
      The transformation. Updates have the dtype of the incoming ones.

    Raises:
      ValueError: if a number is outside of its range.

    Examples:
      >>> import jax, jax.numpy as jnp, optax
      >>> from spheroid_jax.optim.quantized import scale_by_adam_8bit
      >>> solver = optax.chain(scale_by_adam_8bit(), optax.scale(-0.1))
      >>> params = jnp.ones((64, 64))
      >>> state, update = solver.init(params), jax.jit(solver.update)
      >>> for _ in range(5):
      ...     grad = jax.grad(lambda x: jnp.mean(x**2))(params)
      ...     updates, state = update(grad, state, params)
      ...     params = optax.apply_updates(params, updates)
      ...     print(f"Objective function: {jnp.mean(params**2):.3f}")
      Objective function: 0.810
      Objective function: 0.641
      Objective function: 0.492
      Objective function: 0.365
      Objective function: 0.258

    References:
      Dettmers et al., `8-bit Optimizers via Block-wise Quantization
      <https://arxiv.org/abs/2110.02861>`_, 2021
    """
    check_adam(b1, b2, eps, 0.0)
    whole = "a whole number >= 1"
    check("block_size", block_size, lambda x: (x >= 1) & (x % 1 == 0), whole)
    check("min_size", min_size, lambda x: (x >= 1) & (x % 1 == 0), whole)

    def zeros(params: optax.Params, dtype: Any) -> Any:
        def leaf(p: jax.Array) -> Any:
            if p.size < min_size or p.ndim == 0 or p.shape[-1] < _LEAST_ROW:
                return jnp.zeros_like(p, dtype=jnp.float32)
            # Zeros made from the parameter take its sharding.
            first = p[..., ::block_size]
            return Quantized(
                jnp.zeros_like(p, dtype=dtype),
                jnp.zeros_like(first, dtype=jnp.float32),
            )

        return jax.tree.map(leaf, params)

    def init(params: optax.Params) -> ScaleByAdam8bitState:
        mu, nu = zeros(params, jnp.int8), zeros(params, jnp.uint8)
        return ScaleByAdam8bitState(no_updates(), mu, nu)

    def update(
        updates: optax.Updates,
        state: ScaleByAdam8bitState,
        params: optax.Params | None = None,
        **extra: Any,
    ) -> tuple[optax.Updates, ScaleByAdam8bitState]:
        del params, extra
        decay1, decay2, epsilon = (at(value, state.count) for value in (b1, b2, eps))
        count = optax.safe_increment(state.count)
        bound = _moment_ratio(decay1, decay2)

        def step(g: jax.Array, m: Any, v: Any) -> tuple[Any, ...]:
            g32, packed = g.astype(jnp.float32), isinstance(m, Quantized)
            if packed:
                m, v = dequantize(m, block_size), dequantize(v, block_size)
                limit = bound * jnp.sqrt(v)
                m = jnp.clip(m, -limit, limit)
            m = decay1 * m + (1 - decay1) * g32
            v = decay2 * v + (1 - decay2) * g32**2
            m_hat = m / (1 - decay1**count)
            v_hat = v / (1 - decay2**count)
            u = (m_hat / (jnp.sqrt(v_hat) + epsilon)).astype(g.dtype)
            if packed:
                draws = _draws(g.shape, count)
                m = quantize(m, block_size, True, draws)
                # The other half of the lattice: the two roundings aren't the same.
                v = quantize(v, block_size, False, (draws + 0.5) % 1.0)
            return u, m, v

        stepped, mu, nu = map_updates(step, updates, state.mu, state.nu)
        return stepped, ScaleByAdam8bitState(count, mu, nu)

    return optax.GradientTransformationExtraArgs(init, update)


def adamw_8bit(
    learning_rate: Hyperparameter,
    b1: Hyperparameter = 0.9,
    b2: Hyperparameter = 0.999,
    eps: Hyperparameter = 1e-8,
    weight_decay: float | jax.Array = 1e-4,
    mask: Any | Callable[[optax.Params], Any] | None = None,
    block_size: int = 256,
    min_size: int = 4096,
) -> optax.GradientTransformationExtraArgs:
    r"""AdamW with moments of 8 bits: two bytes an element instead of eight.

    .. math::
      u = -\eta \left(\hat m / (\sqrt{\hat v} + \epsilon) + \lambda \theta\right)

    with the moments of :func:`scale_by_adam_8bit`.

    Args:
      learning_rate: a number, an array or a schedule of the count of updates.
      b1: decay of the first moment, likewise.
      b2: decay of the second moment, likewise.
      eps: added to the root, likewise.
      weight_decay: :math:`\lambda`.
      mask: which leaves decay, as in ``optax.adamw``.
      block_size: elements along the last axis that share a scale. Static.
      min_size: elements from which a leaf is quantized. Static.

    Returns:
      The transformation; ``update`` needs the parameters.

    Raises:
      ValueError: if a number is outside of its range.

    Examples:
      >>> import jax, jax.numpy as jnp, optax
      >>> from spheroid_jax.optim.quantized import adamw_8bit
      >>> solver = adamw_8bit(learning_rate=0.1)
      >>> params = jnp.ones((64, 64))
      >>> state, update = solver.init(params), jax.jit(solver.update)
      >>> for _ in range(5):
      ...     grad = jax.grad(lambda x: jnp.mean(x**2))(params)
      ...     updates, state = update(grad, state, params)
      ...     params = optax.apply_updates(params, updates)
      ...     print(f"Objective function: {jnp.mean(params**2):.3f}")
      Objective function: 0.810
      Objective function: 0.641
      Objective function: 0.492
      Objective function: 0.365
      Objective function: 0.258

    References:
      Dettmers et al., `8-bit Optimizers via Block-wise Quantization
      <https://arxiv.org/abs/2110.02861>`_, 2021
    """
    chained = optax.chain(
        scale_by_adam_8bit(b1, b2, eps, block_size, min_size),
        optax.add_decayed_weights(weight_decay, mask),
        optax.scale_by_learning_rate(learning_rate),
        # An array as learning rate promotes half-precision updates to its own dtype.
        optax.stateless(lambda u, params: optax.tree.cast_like(u, params)),
    )
    return optax.with_extra_args_support(chained)


def quantize(
    x: jax.Array, block_size: int, signed: bool, draws: jax.Array
) -> Quantized:
    """Rounds to one of the two neighbouring codes, right on average over the draws.

    Args:
      x: (..., n) float32; not negative if not ``signed``.
      block_size: elements along the last axis that share a scale.
      signed: whether for a first moment (int8) or a second one (uint8).
      draws: (..., n) in [0, 1).

    Returns:
      Codes and scales. Zero stays zero; an unsigned positive value stays positive
      (unless it is below 1e-38, where float32 itself ends).
    """
    top, power = _law(signed)
    magnitude = jnp.abs(x)
    padding = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % block_size)]
    blocks = jnp.pad(magnitude, padding).reshape(*x.shape[:-1], -1, block_size)
    scales = blocks.max(axis=-1)
    ratio = magnitude / jnp.maximum(
        _spread(scales, block_size, x.shape[-1]), jnp.finfo(jnp.float32).tiny
    )
    # exp and log are vectorised everywhere; cbrt isn't. Log of 0 is -inf, exp of it 0.
    root = jnp.exp(jnp.log(ratio) / power)
    # Where rounding puts the root past a code, the odds below make up for it.
    low = jnp.minimum(jnp.floor(top * root), top - 1)
    below, above = (low / top) ** power, ((low + 1) / top) ** power
    codes = low + (draws < (ratio - below) / (above - below))
    if not signed:
        codes = jnp.where((x > 0) & (codes == 0), 1.0, codes)
        return Quantized(codes.astype(jnp.uint8), scales)
    return Quantized((jnp.sign(x) * codes).astype(jnp.int8), scales)


def dequantize(x: Quantized, block_size: int) -> jax.Array:
    """Returns the (..., n) float32 values that codes and scales stand for."""
    top, power = _law(x.codes.dtype == jnp.int8)
    codes = x.codes.astype(jnp.float32)
    scales = _spread(x.scales, block_size, codes.shape[-1])
    return scales * jnp.sign(codes) * (jnp.abs(codes) / top) ** power


def _law(signed: bool) -> tuple[float, int]:
    """The largest code and the power, see the top of this file."""
    return (127.0, 3) if signed else (255.0, 6)


def _spread(scales: jax.Array, block_size: int, n: int) -> jax.Array:
    """Gives each of ``n`` elements along the last axis the scale of its block."""
    spread = jnp.broadcast_to(scales[..., None], (*scales.shape, block_size))
    return spread.reshape(*scales.shape[:-1], -1)[..., :n]


def _moment_ratio(b1: Any, b2: Any) -> jax.Array:
    """The largest |m| / sqrt(v) that Adam's own recursions can reach, or infinity.

    If |m| <= r sqrt(v) then, by Cauchy-Schwarz, the next moments obey it as well for
    r^2 = b1^2 r^2 / b2 + (1 - b1)^2 / (1 - b2).
    """
    b1, b2 = jnp.asarray(b1, jnp.float32), jnp.asarray(b2, jnp.float32)
    memory = b1**2 / jnp.maximum(b2, jnp.finfo(jnp.float32).tiny)
    squared = (1 - b1) ** 2 / ((1 - b2) * jnp.where(memory < 1, 1 - memory, 1.0))
    return jnp.where(memory < 1, jnp.sqrt(squared), jnp.inf)


def _draws(shape: tuple[int, ...], step: jax.Array) -> jax.Array:
    """Numbers in [0, 1), evenly spread over the elements and, for each, over steps.

    They are the R2 lattice: fractions of multiples of the reciprocals of the plastic
    number and of its square, here in wrapping 32-bit integers.
    """
    index = jnp.arange(int(np.prod(shape)), dtype=jnp.uint32).reshape(shape)
    by_index, by_step = jnp.uint32(0xC13FA9A9), jnp.uint32(0x91E10DA6)
    mixed = index * by_index + step.astype(jnp.uint32) * by_step
    return (mixed >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)
