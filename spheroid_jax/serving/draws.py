"""Randomness of serving: a pure function of the seed and the place in the text.

Nothing depends on the batch, the stage, the method or how often a position is computed,
so a seed gives the same text wherever and however its bytes are decided. The index of a
byte counts from the start of the prompt. Dimensions: N rows, S positions, V bytes.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from spheroid_jax.models import VOCABULARY
from spheroid_jax.serving import threefry

_NOISE, _CHOICE, _ACCEPT, _REST = range(4)
_TINY = float(np.finfo(np.float32).tiny)
_ABOVE_MINUS_ONE = float(np.nextafter(np.float32(-1.0), np.float32(0.0)))


def eps(seed: Array, index: Array, width: int) -> Array:
    """Standard normal noise of the chain, float32 (N, S, width).

    Args:
      seed: uint32 (N,).
      index: of the input byte at each position, int32 (N, S).
      width: d.
    """
    words = threefry.bits((_NOISE,), seed, index, width)[0]
    even = threefry.uniform(words, _ABOVE_MINUS_ONE)
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(even)


def gumbel(seed: Array, index: Array) -> Array:
    """Standard Gumbel noise that decides the byte after each position, (N, S, V).

    The largest of ``logits + gumbel`` is a draw from ``softmax(logits)``.
    """
    return _gumbel((_CHOICE,), seed, index)[0]


def filtered(logits: Array, temperature: Array, top_k: Array, top_p: Array) -> Array:
    """Logits of the distribution that is drawn from, up to a constant, (N, S, V).

    First ``logits / temperature``; of these the ``top_k`` most probable bytes; of
    these, renormalised, the fewest most probable ones that hold ``top_p`` of the
    probability together (nucleus sampling, arXiv 1904.09751). The others become minus
    infinity. Of equals the lower byte comes first; the best byte always stays.

    Args:
      logits: (N, S, V).
      temperature: (N,), at least 0; at 0 only the best byte stays.
      top_k: int32 (N,); 0 or less for all.
      top_p: (N,); 1 or more for all.
    """
    hot = temperature > 0
    best = jnp.max(logits, axis=-1, keepdims=True)
    # Below the best all is negative, so that a tiny temperature overflows harmlessly.
    scaled = (logits - best) / jnp.where(hot, temperature, 1.0)[:, None, None]
    top_k = jnp.where(hot, top_k, 1)
    return jax.lax.cond(
        jnp.any((top_k > 0) | (top_p < 1.0)),
        lambda: _cut(scaled, top_k, top_p),
        lambda: scaled,  # sorting costs more than all the rest
    )


def draw(
    logits: Array,
    seed: Array,
    index: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
) -> Array:
    """The byte after each position, int32 (N, S).

    Args:
      logits: (N, S, V).
      seed: uint32 (N,).
      index: of the input bytes, int32 (N, S).
      temperature: (N,), see :func:`filtered`.
      top_k: int32 (N,).
      top_p: (N,).
    """
    noise = choice(seed, index, temperature)
    return chosen(logits, noise, temperature, top_k, top_p)


def choice(seed: Array, index: Array, temperature: Array) -> Array:
    """:func:`gumbel`, or zeros where no row's ``temperature`` is above 0."""
    return _where_hot(temperature, lambda: gumbel(seed, index))


def chosen(
    logits: Array, noise: Array, temperature: Array, top_k: Array, top_p: Array
) -> Array:
    """:func:`draw` by the noise of :func:`choice`."""
    return _largest(filtered(logits, temperature, top_k, top_p) + noise)


def coupled(
    logits: Array,
    draft: Array,
    seed: Array,
    index: Array,
    temperature: Array,
    top_k: Array,
    top_p: Array,
) -> Array:
    """The byte after each position, int32 (N, S), which is the draft's if it can be.

    The draft's byte is what :func:`draw` makes of ``draft``. With p and q what
    :func:`filtered` makes of ``logits`` and ``draft``, it stands with probability
    min(1, p / q); else a byte is drawn from the positive part of p - q. So the result
    is distributed as p, and differs from the draft with the least probability that any
    draw from p can: the total variation between p and q (speculative sampling,
    arXiv 2211.17192, theorem 3.5).

    Args:
      logits: (N, S, V).
      draft: logits of another distribution, (N, S, V).
      seed: uint32 (N,).
      index: of the input bytes, int32 (N, S).
      temperature: (N,), see :func:`filtered`; this and the next two serve both.
      top_k: int32 (N,).
      top_p: (N,).
    """
    twice = (jnp.tile(each, 2) for each in (temperature, top_k, top_p))
    kept = filtered(jnp.concatenate([logits, draft]), *twice)
    # Of one array: what differs but in its rows would be compiled twice.
    p, q = jnp.split(jax.nn.log_softmax(kept), 2)

    def dice() -> tuple[Array, Array]:
        chance = threefry.uniform(threefry.bits((_ACCEPT,), seed, index, 1)[0], 0.0)
        return _gumbel((_CHOICE, _REST), seed, index), jnp.log(chance[..., 0])

    (first, other), chance = _where_hot(temperature, dice)
    guess = _largest(kept[len(logits) :] + first)
    ratio = jnp.take_along_axis(p - q, guess[..., None], axis=-1)[..., 0]
    rest = jnp.where(p > q, p + jnp.log1p(-jnp.exp(q - p)), -jnp.inf)
    # Where rounding leaves no rest, p and q are one.
    same = jnp.max(rest, axis=-1) == -jnp.inf
    stands = (chance < ratio) | same
    return jnp.where(stands, guess, _largest(rest + other))


def _where_hot(temperature: Array, noise: Callable[[], Any]) -> Any:
    """``noise()``, or zeros where nothing but the best byte is ever drawn.

    A branch of its own also keeps it apart from what is added and compared: fused into
    a reduction it takes a compiler several times longer.
    """
    nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(noise))
    return jax.lax.cond(jnp.any(temperature > 0), noise, lambda: nothing)


def _largest(noisy: Array) -> Array:
    return jnp.argmax(noisy, axis=-1).astype(jnp.int32)


def _gumbel(purposes: tuple[int, ...], seed: Array, index: Array) -> Array:
    words = threefry.bits(purposes, seed, index, VOCABULARY)
    return -jnp.log(-jnp.log(threefry.uniform(words, _TINY)))


def _cut(scaled: Array, top_k: Array, top_p: Array) -> Array:
    bytes_ = jnp.broadcast_to(jnp.arange(scaled.shape[-1]), scaled.shape)
    ordered, order = jax.lax.sort((-scaled, bytes_), num_keys=1)
    ordered = -ordered
    rank = jnp.arange(scaled.shape[-1])[None, None]
    limit = jnp.where(top_k > 0, top_k, scaled.shape[-1])[:, None, None]
    kept = rank < limit
    shares = jax.nn.softmax(jnp.where(kept, ordered, -jnp.inf), axis=-1)
    # What more probable bytes hold together; of the best it is nothing.
    before = jnp.cumsum(shares, axis=-1) - shares
    nucleus = jnp.where(top_p < 1.0, top_p, jnp.inf)[:, None, None]
    kept &= (before < nucleus) | (rank == 0)
    _, kept = jax.lax.sort((order, kept), num_keys=1)
    return jnp.where(kept, scaled, -jnp.inf)
