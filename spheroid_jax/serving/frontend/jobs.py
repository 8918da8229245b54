"""One text to write: what is asked of the pipeline, and what came of it."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from spheroid_jax.serving.decoding import EMPTY_PROMPT, segments
from spheroid_jax.serving.methods import Method, Sampling


@dataclasses.dataclass(frozen=True)
class Job:
    """What is asked.

    Attributes:
      prompt: bytes; empty is read as one newline.
      length: output bytes at most.
      method: how to decode.
      sampling: how to draw.
      answer: ``last`` or ``ensemble``.
      logprobs: whether the log-probabilities of the output's bytes are wanted.
    """

    prompt: bytes
    length: int
    method: Method
    sampling: Sampling
    answer: str = "last"
    logprobs: bool = False


@dataclasses.dataclass(frozen=True)
class Piece:
    """Output bytes that are certain now, of one text.

    Attributes:
      index: which of a request's texts.
      data: the bytes.
      logprobs: of them, where wanted.
      trips: sweeps so far.
      finish: ``length`` or ``stop`` with the last piece, else None.
    """

    index: int
    data: bytes
    logprobs: tuple[float, ...] = ()
    trips: int = 0
    finish: str | None = None


@dataclasses.dataclass
class Progress:
    """How a text is doing.

    Attributes:
      trips: sweeps that came back.
      retries: sweeps that had to be made again.
      compute: seconds that stages computed.
      queue: seconds that sweeps waited at stages.
    """

    trips: int = 0
    retries: int = 0
    compute: float = 0.0
    queue: float = 0.0


class Figures(NamedTuple):
    """What an answer took.

    Attributes:
      first: seconds until the first bytes.
      whole: seconds until the last ones.
      progress: of each text.
    """

    first: float
    whole: float
    progress: tuple[Progress, ...]


def merged(pieces: Sequence[Piece]) -> Piece:
    """The pieces of one text as one."""
    last = pieces[-1]
    return Piece(
        last.index,
        b"".join(piece.data for piece in pieces),
        tuple(number for piece in pieces for number in piece.logprobs),
        last.trips,
        last.finish,
    )


def used_prompt(prompt: bytes, length: int, places: int) -> int:
    """Bytes of a prompt that the model reads: the last ones, where not all fit.

    Args:
      prompt: as it was given.
      length: output bytes at most.
      places: T of the model.
    """
    size = len(prompt or EMPTY_PROMPT)
    first = next(segments(size, length, places), None)
    return 0 if first is None or not prompt else size - first.origin
