"""What computes: a stage's cache, its compiled programs, batches in and out of them.

Used from one thread alone. Requests come as rows of different lengths; a program takes
a rectangle. So positions are padded to 1 or a power of two, and rows likewise: there
are few programs, each compiled once.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from spheroid_jax.serving.packing import Row, bucket, pack
from spheroid_jax.serving.stages import BLOCKTRAIN, Drawn, Passed, Rows, Stage

Array = np.ndarray
_NOT_FINITE = (
    "the result isn't finite: the parameters of this stage are damaged, or diverged"
)


@dataclasses.dataclass(frozen=True, eq=False)
class Work(Row):
    """One row of a batch: a request's sweep. S = ``count``, and so many are its bytes.

    Attributes:
      state: float32 (S, d) of the stage before; None at the first.
      guess: float32 (S, d), or None.
      logs: float32 (w, 256) of the last w positions, those that decide a byte, or None.
      draft: likewise.
    """

    state: Array | None = None
    guess: Array | None = None
    logs: Array | None = None
    draft: Array | None = None


class Made(NamedTuple):
    """What became of a row; arrays of its S positions.

    Attributes:
      bytes: the context for the next stage; at the last stage the drawn bytes.
      state: for the next stage; None at the last.
      guess: likewise, where there is one.
      logs: likewise, where there are some.
      draft: likewise.
      logprob: of the drawn bytes, at the last stage.
      context: the bytes used as context, at the last stage.
      fault: what is wrong with it, in words; empty if nothing is.
    """

    bytes: Array
    state: Array | None = None
    guess: Array | None = None
    logs: Array | None = None
    draft: Array | None = None
    logprob: Array | None = None
    context: Array | None = None
    fault: str = ""


class CacheLost(RuntimeError):
    """The step failed after it had taken the cache: there is a new, empty one."""


# The cache is by far the largest array: it is changed where it is.
@partial(
    jax.jit, static_argnames=("stage", "fill", "answer"), donate_argnames=("cache",)
)
def _step(
    stage: Stage,
    params: Any,
    cache: Any,
    rows: Rows,
    passed: Passed | None,
    *,
    fill: str,
    answer: str,
) -> tuple[Any, Passed | Drawn]:
    return stage.step(params, cache, rows, passed, fill=fill, answer=answer)


class Engine:
    """A stage with its parameters and a cache of ``slots`` rows.

    Args:
      stage: pure functions.
      params: of this stage.
      slots: rows of the cache.
      max_batch: rows that go through a program at once.
    """

    def __init__(self, stage: Stage, params: Any, *, slots: int, max_batch: int):
        self.stage = stage
        self.max_batch = max_batch
        self._slots = slots
        self._params = jax.device_put(params)
        self._cache = stage.init_cache(slots)

    def places(self, count: int) -> int:
        """The padded length of a row with ``count`` positions."""
        return bucket(count, self.stage.places)

    def compute(self, works: Sequence[Work], fill: str, answer: str) -> list[Made]:
        """Computes a batch; the rows' slots differ, their padded length doesn't.

        Raises:
          CacheLost: the step failed, and took the cache with it.
          Exception: whatever else failed; the cache is as it was.
        """
        rows, passed = self._padded(works)
        before = self._cache
        try:
            cache, out = _step(
                self.stage,
                self._params,
                before,
                rows,
                passed,
                fill=fill,
                answer=answer,
            )
            out = jax.block_until_ready(out)
            self._cache = jax.block_until_ready(cache)
        except Exception as error:
            leaves = jax.tree.leaves(before)
            if any(leaf.is_deleted() for leaf in leaves):
                self._cache = self.stage.init_cache(self._slots)
                raise CacheLost(str(error)) from error
            raise
        return self._parted(works, jax.device_get(out))

    def warm(self, batch: int, count: int, fill: str, answer: str) -> None:
        """Compiles the program for ``batch`` rows of ``count`` positions, and runs it.

        No slot is touched.
        """
        d, later = self.stage.width, not self.stage.first

        def zeros(width: int, wanted: bool) -> Array | None:
            return np.zeros((count, width), np.float32) if wanted else None

        work = Work(
            slot=self._slots,
            start=0,
            index=0,
            known=count if fill == "given" else 1,
            count=count,
            bytes=np.zeros(count, np.uint8),
            state=zeros(d, later),
            guess=zeros(d, later and fill == "expected"),
            logs=zeros(256, later and answer == "ensemble"),
            draft=zeros(
                256, later and fill != "written" and self.stage.kind == BLOCKTRAIN
            ),
        )
        self.compute([work] * bucket(batch, self.max_batch), fill, answer)

    def _padded(self, works: Sequence[Work]) -> tuple[Rows, Passed | None]:
        rows = bucket(len(works), self.max_batch)
        places = self.places(max(work.count for work in works))
        batch = pack(works, rows, places)
        state = _stacked(works, "state", rows, places)
        if state is None:
            return batch, None
        more = {
            name: _stacked(works, name, rows, places)
            for name in ("guess", "logs", "draft")
        }
        return batch, Passed(state=state, bytes=batch.bytes, **more)

    def _parted(self, works: Sequence[Work], out: Any) -> list[Made]:
        made = []
        for n, work in enumerate(works):
            own: Any = jax.tree.map(lambda leaf, n=n, s=work.count: leaf[n, :s], out)
            if self.stage.last:
                proof = own.logprob
                row = Made(
                    bytes=own.bytes.astype(np.uint8),
                    logprob=own.logprob,
                    context=own.context.astype(np.uint8),
                )
            else:
                proof = own.state
                passed = own._replace(bytes=own.bytes.astype(np.uint8))
                row = Made(**passed._asdict())
            if not np.isfinite(proof).all():
                row = row._replace(fault=_NOT_FINITE)
            made.append(row)
        return made


def _stacked(works: Sequence[Work], name: str, rows: int, places: int) -> Any:
    """An array that all rows have, or none, padded: float32 (rows, places, ...)."""
    given = [getattr(work, name) for work in works]
    if given[0] is None:
        return None
    padded = np.zeros((rows, places, *given[0].shape[1:]), np.float32)
    for row, array, work in zip(padded, given, works, strict=False):
        # What is there of the last positions alone ends with the row.
        row[work.count - len(array) : work.count] = array
    return padded
