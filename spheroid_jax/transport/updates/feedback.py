"""Error feedback: what an encoding lost goes along with the next update.

Seide et al. 2014, "1-bit stochastic gradient descent"; Karimireddy et al. 2019 (arXiv
1901.09847) show why it converges. The sum of all that is decoded is the sum of all
deltas less what is still kept, so no error adds up.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from spheroid_jax.transport.updates.encoding import Encoding
from spheroid_jax.transport.updates.file import UpdateReader, ranges, write_update

_KIND = "residual of error feedback"
Leaves = Mapping[str, np.ndarray]


class Feedback:
    """What a worker still owes of a block: one for each block that it trains.

    The residual is in float32, as large as the part. For an update::

        sent = feedback.compensate(delta)
        write_update(path, sent, encoding, facts)
        after = feedback.after(sent, reader_of(path))  # or settle(), on acceptance
        ... upload; only if the update was accepted: feedback = after

    An update that wasn't accepted leaves the residual as it was; its delta is lost, as
    it is without an encoding. A residual whose update has an unknown fate after a crash
    is best dropped: that loses one rounding, counting it twice costs as much.

    Attributes:
      residual: {name: float32 array}; empty: nothing is owed.
    """

    def __init__(self, residual: Leaves | None = None) -> None:
        """Starts with a residual; default none."""
        self.residual: dict[str, np.ndarray] = dict(residual or {})

    def compensate(self, delta: Leaves) -> dict[str, np.ndarray]:
        """``delta`` plus what is owed, float32, in new arrays.

        Raises:
          ValueError: the leaves are others than those of the residual.
        """
        if self.residual:
            _check(self.residual, delta)
        result = {}
        for name, leaf in delta.items():
            owed = self.residual.get(name, np.float32(0))
            sent = np.array(leaf, np.float32)
            result[name] = np.add(sent, owed, out=sent)
        return result

    def after(self, sent: Leaves, decoded: UpdateReader | Leaves) -> "Feedback":
        """What is owed when ``sent`` was accepted as ``decoded``: the difference.

        Raises:
          ValueError: the leaves differ.
          UpdateError: ``decoded`` can't be read.
        """
        _check(decoded.leaves if isinstance(decoded, UpdateReader) else decoded, sent)
        residual = {}
        for name, leaf in sent.items():
            owed = np.array(leaf, np.float32)
            flat = owed.reshape(-1)
            for start, stop in ranges(flat.size):
                flat[start:stop] -= _read(decoded, name, start, stop)
            residual[name] = owed
        return Feedback(residual)

    def settle(self, sent: Leaves, decoded: UpdateReader | Leaves) -> None:
        """Becomes ``after``: to be called when the coordinator accepted."""
        self.residual = self.after(sent, decoded).residual

    def save(self, path: Path) -> None:
        """Writes the residual; it is on disk, whole, on return.

        Raises:
          OSError: it can't be written.
          UpdateError: it isn't finite.
        """
        if self.residual:
            write_update(path, self.residual, Encoding(), {"kind": _KIND})
        else:
            path.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path) -> "Feedback":
        """Reads what ``save`` wrote; no file: nothing is owed.

        Raises:
          UpdateError: the file is damaged. Removing it costs one rounding.
        """
        if not path.exists():
            return cls()
        with UpdateReader(path) as reader:
            return cls(
                {
                    name: reader.read(name, 0, math.prod(shape)).reshape(shape)
                    for name, shape in reader.leaves.items()
                }
            )


def _read(
    source: UpdateReader | Leaves, name: str, start: int, stop: int
) -> np.ndarray:
    if isinstance(source, UpdateReader):
        return source.read(name, start, stop)
    return np.asarray(source[name], np.float32).reshape(-1)[start:stop]


def _shape(leaf: np.ndarray | tuple[int, ...]) -> tuple[int, ...]:
    return leaf if isinstance(leaf, tuple) else np.shape(leaf)


def _check(
    known: Mapping[str, np.ndarray] | Mapping[str, tuple[int, ...]], given: Leaves
) -> None:
    """Raises ValueError if two sets of leaves differ."""
    if set(known) != set(given):
        names = sorted(set(known) ^ set(given))
        raise ValueError(f"leaves differ, at {names[0]!r}: start with no residual")
    for name, leaf in known.items():
        if _shape(leaf) != np.shape(given[name]):
            raise ValueError(
                f"leaf {name!r} has shape {np.shape(given[name])}, not "
                f"{_shape(leaf)}: start with no residual"
            )
