"""Many updates become one, chunk by chunk.

The mean follows every update, so one that is huge moves it as far as it likes.
The trimmed mean and the median, of each number by itself, stay within what the others
say (Yin et al., arXiv 1803.01498): the trimmed mean while no more updates are poisoned
than are left out at each end, floor(trim n) of n; the median while fewer than half are.
With one or two updates they are the mean.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from spheroid_jax.transport.updates.file import UpdateReader, ranges

RULES = ("mean", "trimmed_mean", "median")
# Up to so many updates, comparing all pairs is faster than np.sort across rows: by six
# for five updates; with sixteen it is even.
_FEW = 12
_LARGEST = float(np.finfo(np.float32).max)


class Weighted(NamedTuple):
    """An update, what it is multiplied by, such as for its age, and whose it is.

    Where updates are voted on, those of one voter are one vote, their mean: who held
    some back isn't many. Without a voter an update is a vote by itself.
    """

    reader: UpdateReader
    weight: float = 1.0
    voter: str = ""


def aggregate(
    updates: Sequence[Weighted],
    rule: str,
    trim: float = 0.2,
    leaves: Sequence[str] | None = None,
) -> Iterator[tuple[str, int, np.ndarray]]:
    """Yields the aggregate of updates in pieces.

    ``mean`` is sum(weight_i * update_i) / count: weights don't add up to one, a light
    update makes a small step. Terms are added in the given order in float32, so the
    same updates in the same order are the same bits. The other rules take, for each
    number, the ``weight_i * update_i`` in order of size: ``trimmed_mean`` the mean of
    those left when floor(trim * count) are taken off each end, ``median`` the middle
    one or the mean of both; added in float64, so that the result is never outside of
    what it is the mean of. There ``count`` is of voters.

    Takes memory for one chunk of each update, and of the largest leaf no more.

    Args:
      updates: of the same leaves and shapes, screened, at least one.
      rule: one of ``RULES``.
      trim: share to leave out at each end, in [0, 0.5).
      leaves: names of those to aggregate, in the order to yield; default all.

    Yields:
      (name, start, (n,) float32 from number ``start`` of the leaf on, C order).
      Leaves without numbers yield nothing.

    Raises:
      ValueError: at once, for arguments that can't be.
      UpdateError: while yielding, for an update that can't be read.
    """
    if rule not in RULES:
        raise ValueError(f"rule is {rule!r}: take one of {', '.join(RULES)}")
    if not 0 <= trim < 0.5:
        raise ValueError(f"trim is {trim}: take a share of at least 0, below 0.5")
    if not updates:
        raise ValueError("there are no updates to aggregate: take one or more")
    shapes = updates[0].reader.leaves
    for number, (reader, weight, _) in enumerate(updates):
        if reader.leaves != shapes:
            raise ValueError(f"update {number} has other leaves than the first")
        if not abs(weight) <= _LARGEST:
            raise ValueError(f"update {number} has weight {weight}: no finite float32")
    names = list(shapes) if leaves is None else list(leaves)
    for name in names:
        if name not in shapes:
            raise ValueError(f"there is no leaf {name!r} to aggregate")
    votes = _votes(updates)
    return _aggregate(updates, votes, names, cut(rule, trim, len(votes)))


def cut(rule: str, trim: float, count: int) -> int | None:
    """How many of ``count`` are left out at each end; None: the plain mean."""
    if rule == "mean":
        return None
    if rule == "median":
        return (count - 1) // 2
    # 0.29 * 100 is 28.999999999999996.
    return min(math.floor(trim * count + 1e-9), (count - 1) // 2)


def _votes(updates: Sequence[Weighted]) -> list[list[Weighted]]:
    """Updates by whose they are, in the order of the first of each."""
    votes: dict[str | int, list[Weighted]] = {}
    for number, update in enumerate(updates):
        votes.setdefault(update.voter or number, []).append(update)
    return list(votes.values())


def _aggregate(
    updates: Sequence[Weighted],
    votes: Sequence[Sequence[Weighted]],
    names: Sequence[str],
    left_out: int | None,
) -> Iterator[tuple[str, int, np.ndarray]]:
    for name in names:
        count = math.prod(updates[0].reader.leaves[name])
        for start, stop in ranges(count):
            if left_out is None:
                yield name, start, _mean(updates, name, start, stop)
            else:
                yield name, start, _middle(votes, name, start, stop, left_out)


def _mean(updates: Sequence[Weighted], name: str, start: int, stop: int) -> np.ndarray:
    total = None
    for reader, weight, _ in updates:
        term = reader.read(name, start, stop)
        term *= np.float32(weight)
        total = term if total is None else np.add(total, term, out=total)
    assert total is not None
    total /= np.float32(len(updates))
    return total


def _middle(
    votes: Sequence[Sequence[Weighted]],
    name: str,
    start: int,
    stop: int,
    left_out: int,
) -> np.ndarray:
    terms = np.empty((len(votes), stop - start), np.float32)
    for row, vote in zip(terms, votes, strict=True):
        row[:] = _mean(vote, name, start, stop)
    _sort(terms)
    middle = terms[left_out : len(terms) - left_out]
    if len(middle) == 1:
        return middle[0]
    total = np.add.reduce(middle, axis=0, dtype=np.float64)
    return np.asarray(total / len(middle), np.float32)


def _sort(terms: np.ndarray) -> None:
    """Sorts each column in place."""
    if len(terms) > _FEW:
        terms.sort(axis=0)
        return
    low = np.empty_like(terms[0])
    for end in range(len(terms) - 1, 0, -1):
        for above, below in itertools.pairwise(terms[: end + 1]):
            np.minimum(above, below, out=low)
            np.maximum(above, below, out=below)
            above[:] = low
