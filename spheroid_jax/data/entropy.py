"""Byte entropies: what a table of counts could achieve, as a yardstick."""

import numpy as np

_CHUNK = 1 << 24  # positions counted at once; bounds the memory of the index arrays


def byte_entropies(data: np.ndarray) -> tuple[float, float, float]:
    """Empirical conditional entropies of order 0, 1 and 2, in nats per byte.

    Order k is ``H(X_t | X_{t-1}, ..., X_{t-k})`` under the frequencies of ``data``
    itself, so it is the cross-entropy of the best k-gram table fitted to the very
    bytes it is scored on: a model that predicts unseen text below it has learnt more
    than counts.

    Args:
      data: (n,) uint8 with n >= 3.

    Returns:
      The entropies of order 0, 1 and 2.

    Raises:
      ValueError: fewer than 3 bytes.
    """
    if data.ndim != 1 or data.dtype != np.uint8 or data.size < 3:
        raise ValueError(
            f"byte entropies need a 1-D uint8 array of at least 3 bytes, "
            f"got {data.dtype} of shape {data.shape}"
        )
    order_0, order_1, order_2 = (
        _last_given_rest(_gram_counts(data, size)) for size in (1, 2, 3)
    )
    return order_0, order_1, order_2


def _gram_counts(data: np.ndarray, size: int) -> np.ndarray:
    """Counts every run of ``size`` bytes; (256**(size-1), 256), last byte last."""
    counts = np.zeros(256**size, np.int64)
    positions = data.size - size + 1
    for start in range(0, positions, _CHUNK):
        stop = min(start + _CHUNK, positions)
        code = np.zeros(stop - start, np.int32)
        for offset in range(size):
            code = code * 256 + data[start + offset : stop + offset]
        counts += np.bincount(code, minlength=counts.size)
    return counts.reshape(-1, 256)


def _last_given_rest(counts: np.ndarray) -> float:
    """Entropy of the last byte given the others, from a (contexts, 256) table."""
    joint = counts[counts > 0].astype(np.float64)
    context = counts.sum(axis=1)
    context = context[context > 0].astype(np.float64)
    nats = np.sum(context * np.log(context)) - np.sum(joint * np.log(joint))
    return float(nats / joint.sum())
