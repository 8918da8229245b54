"""Randomness of serving: a pure function of the seed and the place in the text.

Nothing depends on the batch, the stage, the method or how often a position is computed,
so a seed gives the same text wherever and however its bytes are decided. The index of a
byte counts from the start of the prompt. Dimensions: N rows, S positions, V bytes.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from spheroid_jax.models import VOCABULARY

_NOISE, _CHOICE, _ACCEPT, _REST = range(4)


def eps(seed: Array, index: Array, width: int) -> Array:
    """Standard normal noise of the chain, float32 (N, S, width).

    Args:
      seed: uint32 (N,).
      index: of the input byte at each position, int32 (N, S).
      width: d.
    """
    normal = functools.partial(jax.random.normal, shape=(width,))
    return _each(normal, _NOISE, seed, index)


def gumbel(seed: Array, index: Array) -> Array:
    """Standard Gumbel noise that decides the byte after each position, (N, S, V).

    The largest of ``logits + gumbel`` is a draw from ``softmax(logits)``.
    """
    return _gumbel(_CHOICE, seed, index)


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
    kept = filtered(logits, temperature, top_k, top_p)
    return _largest(kept + gumbel(seed, index))


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
    kept = filtered(draft, temperature, top_k, top_p)
    guess = _largest(kept + gumbel(seed, index))
    p = jax.nn.log_softmax(filtered(logits, temperature, top_k, top_p))
    q = jax.nn.log_softmax(kept)
    ratio = jnp.take_along_axis(p - q, guess[..., None], axis=-1)[..., 0]
    uniform = functools.partial(jax.random.uniform, shape=())
    chance = _each(uniform, _ACCEPT, seed, index)
    rest = jnp.where(p > q, p + jnp.log1p(-jnp.exp(q - p)), -jnp.inf)
    other = _largest(rest + _gumbel(_REST, seed, index))
    # Where rounding leaves no rest, p and q are one.
    same = jnp.max(rest, axis=-1) == -jnp.inf
    stands = (jnp.log(chance) < ratio) | same
    return jnp.where(stands, guess, other)


def _largest(noisy: Array) -> Array:
    return jnp.argmax(noisy, axis=-1).astype(jnp.int32)


def _gumbel(purpose: int, seed: Array, index: Array) -> Array:
    noise = functools.partial(jax.random.gumbel, shape=(VOCABULARY,))
    return _each(noise, purpose, seed, index)


def _each(noise: functools.partial, purpose: int, seed: Array, index: Array) -> Array:
    def row(seed: Array, index: Array) -> Array:
        key = jax.random.fold_in(jax.random.key(seed), purpose)
        return jax.vmap(lambda i: noise(jax.random.fold_in(key, i)))(index)

    return jax.vmap(row)(seed, index)


def _cut(scaled: Array, top_k: Array, top_p: Array) -> Array:
    order = jnp.argsort(-scaled, axis=-1, stable=True)
    ordered = jnp.take_along_axis(scaled, order, axis=-1)
    rank = jnp.arange(scaled.shape[-1])[None, None]
    limit = jnp.where(top_k > 0, top_k, scaled.shape[-1])[:, None, None]
    kept = rank < limit
    shares = jax.nn.softmax(jnp.where(kept, ordered, -jnp.inf), axis=-1)
    # What more probable bytes hold together; of the best it is nothing.
    before = jnp.cumsum(shares, axis=-1) - shares
    nucleus = jnp.where(top_p < 1.0, top_p, jnp.inf)[:, None, None]
    kept &= (before < nucleus) | (rank == 0)
    places = jnp.argsort(order, axis=-1)
    kept = jnp.take_along_axis(kept, places, axis=-1)
    return jnp.where(kept, scaled, -jnp.inf)
