"""What an update must be before it can touch the model."""

import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from spheroid_jax.transport.updates.encoding import UpdateError
from spheroid_jax.transport.updates.file import UpdateReader, ranges


class Screened(NamedTuple):
    """Findings: ``why`` not to use an update, in a line, empty if there is nothing.

    ``norm`` is the Euclidean norm over all leaves, NaN where it isn't known.
    """

    norm: float
    why: str


def screen(
    reader: UpdateReader,
    expected: Mapping[str, tuple[int, ...]],
    bound: float | None,
) -> Screened:
    """Reads an update through, chunk by chunk, and judges it.

    Never raises for what an update is: that is in ``why``.

    Args:
      reader: the update.
      expected: {name: shape} of all leaves.
      bound: the largest norm to accept; None: any that is finite.
    """
    why = _other_tree(reader.leaves, expected)
    if why:
        return Screened(math.nan, why)
    total = 0.0
    try:
        for name, shape in reader.leaves.items():
            for start, stop in ranges(math.prod(shape)):
                chunk = reader.read(name, start, stop).astype(np.float64)
                # No square of a float32 overflows in float64, so what isn't finite
                # in the sum wasn't before.
                with np.errstate(invalid="ignore"):
                    total += float(np.dot(chunk, chunk))
                if not math.isfinite(total):
                    kind = "NaN" if math.isnan(total) else "an infinite value"
                    return Screened(math.nan, f"leaf {name!r} holds {kind}")
    except UpdateError as error:
        return Screened(math.nan, str(error))
    norm = math.sqrt(total)
    if bound is not None and not norm <= bound:
        return Screened(norm, f"its norm {norm:.4g} is over the bound {bound:.4g}")
    return Screened(norm, "")


def _other_tree(
    found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> str:
    missing = [name for name in expected if name not in found]
    if missing:
        return f"leaf {missing[0]!r} is missing"
    for name, shape in found.items():
        if name not in expected:
            return f"leaf {name[:80]!r} isn't one of this block's"
        if shape != tuple(expected[name]):
            return f"leaf {name!r} has shape {shape}, not {tuple(expected[name])}"
    return ""


class NormBound:
    """The largest norm to accept from a block's workers, from what was accepted.

    The bound is ``factor`` times the median of the block's last ``window`` accepted
    norms. While fewer than ``first`` are known it is ``relative`` times the norm of
    the part as it was sent: an update that exceeds that replaces the part, it
    doesn't train it. It is never below ``least`` times the norm of the part, so that
    norms of zero don't lock a block.

    What an attacker can do, sending the bound itself in every round:

    * With at most half of the norms known: the median is at most the largest honest
      norm, so the bound is at most ``factor`` times that.
    * With more, for instance the only worker of a block: the bound grows by
      ``factor``, no more, each time that more than half of the window was replaced,
      once in window // 2 + 1 accepted updates; in a new block, once after ``first``
      + 1 before that.

    Norms that were refused change nothing. So honest norms that grow by more than
    ``factor`` within half a window are refused from then on, until someone forgets
    the block; a schedule that jumps needs a larger factor.
    """

    def __init__(
        self,
        factor: float = 5.0,
        window: int = 20,
        first: int = 5,
        relative: float = 1.0,
        least: float = 1e-3,
    ) -> None:
        """Starts with nothing known.

        Raises:
          ValueError: naming the argument that can't be.
        """
        if not factor > 1:
            raise ValueError(f"factor is {factor}: take more than 1")
        if not 1 <= first <= window:
            raise ValueError(f"first is {first}: take 1 to window, {window}")
        if not 0 < least <= relative:
            raise ValueError(f"least is {least}: take over 0, to relative, {relative}")
        self._factor, self._window, self._first = factor, window, first
        self._relative, self._least = relative, least
        self._norms: dict[int, list[float]] = {}

    def bound(self, block: int, part_norm: float) -> float:
        """The largest norm to accept now; infinite for a new part that is all zeros.

        Args:
          block: whose update it is.
          part_norm: norm of the part, as the workers get it.
        """
        norms = self._norms.get(block, [])
        if len(norms) < self._first:
            return self._relative * part_norm if part_norm > 0 else math.inf
        # The lower of two middle ones: half of the norms can't raise it.
        middle = statistics.median_low(norms)
        return max(self._factor * middle, self._least * part_norm)

    def accept(self, block: int, norm: float) -> None:
        """Takes note of the norm of an update that was accepted."""
        if not (math.isfinite(norm) and norm >= 0):
            raise ValueError(f"norm is {norm}: take a finite one of an accepted update")
        norms = self._norms.setdefault(block, [])
        norms.append(norm)
        del norms[: -self._window]

    def forget(self, block: int) -> None:
        """Starts anew with a block."""
        self._norms.pop(block, None)

    def state(self) -> dict[str, Any]:
        """All that is known, as JSON."""
        return {str(block): list(norms) for block, norms in self._norms.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from what ``state`` returned.

        Raises:
          ValueError: it is something else.
        """
        norms: dict[int, list[float]] = {}
        for block, values in state.items():
            fine = block.isdigit() and isinstance(values, list)
            if not fine or not all(
                type(value) in (int, float) and math.isfinite(value) and value >= 0
                for value in values
            ):
                raise ValueError(f"no state of norms, at block {block[:80]!r}")
            norms[int(block)] = [float(value) for value in values[-self._window :]]
        self._norms = norms
