"""The random bits of serving: Threefry-2x32 of 20 rounds, written out.

The values are those of ``jax.random`` with keys of its ``threefry2x32``, whose lowering
for CPUs is a loop for each of three chained calls: dozens of little kernels, which take
long to compile. These operations fuse into three, and run faster. (Salmon and others,
"Parallel random numbers: as easy as 1, 2, 3", 2011.)
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)

Pair = tuple[Array, Array]


def hashed(key: Pair, count: Array) -> Pair:
    """Two uint32 words of a 64-bit key and a count below 2^32, which broadcast."""
    keys = (*key, key[0] ^ key[1] ^ _PARITY)
    left, right = key[0], count + key[1]
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            left = left + right
            right = left ^ ((right << np.uint32(by)) | (right >> np.uint32(32 - by)))
        left = left + keys[(group + 1) % 3]
        right = right + keys[(group + 2) % 3] + np.uint32(group + 1)
    return left, right


def bits(purposes: Sequence[int], seed: Array, index: Array, count: int) -> Array:
    """``jax.random.bits`` of the keys of seeds, purposes and indices.

    Such a key is ``fold_in(fold_in(key(seed), purpose), index)``.

    Args:
      purposes: what they are for, P numbers from 0.
      seed: uint32 (N,).
      index: int32 (N, S), from 0.
      count: how many, C.

    Returns:
      uint32 (P, N, S, C).
    """
    purpose = jnp.array(purposes, jnp.uint32)[:, None]
    own = hashed((jnp.zeros_like(seed)[None], seed[None]), purpose)
    key = hashed((own[0][..., None], own[1][..., None]), index.astype(jnp.uint32)[None])
    numbers = jnp.arange(count, dtype=jnp.uint32)[None, None, None]
    left, right = hashed((key[0][..., None], key[1][..., None]), numbers)
    return left ^ right


def uniform(words: Array, low: float) -> Array:
    """Numbers from ``low`` to 1: what ``jax.random.uniform`` makes of uint32 bits."""
    one = np.uint32(0x3F800000)  # the float 1.0; the bits become what follows the point
    mantissa = (words >> np.uint32(9)) | one
    spread, least = np.float32(1.0) - np.float32(low), np.float32(low)
    floats = mantissa.view(jnp.float32) - np.float32(1.0)
    return jnp.maximum(least, floats * spread + least)
