"""What crosses a stage: what rows ask for, what is passed on, what comes out.

Dimensions: N rows (texts) of a batch, S positions of a sweep, d width, V bytes.
"""

from typing import NamedTuple

from jax import Array


class Rows(NamedTuple):
    """What the rows of a batch ask for; the same at every stage.

    Attributes:
      slot: which slot of the cache is the row's, int32 (N,), different from each other.
        A row whose slot is negative or beyond the cache is padding.
      start: place of the first position, int32 (N,).
      index: of the first position's byte in the text, int32 (N,).
      known: bytes decided, from the first position on, int32 (N,); at least 1.
      count: positions of the row, known and unknown, int32 (N,); those from there to S
        are padding.
      bytes: decided bytes, then guesses, int32 (N, S). Only the first stage reads them.
      seed: uint32 (N,).
      temperature: float32 (N,); this and the next two are explained in ``draws``.
      top_k: int32 (N,).
      top_p: float32 (N,).
    """

    slot: Array
    start: Array
    index: Array  # type: ignore[assignment]  # tuple.index isn't used
    known: Array
    count: Array  # type: ignore[assignment]
    bytes: Array
    seed: Array
    temperature: Array
    top_k: Array
    top_p: Array


class Passed(NamedTuple):
    """What a stage passes to the next.

    Attributes:
      state: z, or the residual stream of the autoregressive kind, float32 (N, S, d).
      bytes: the context that the next stage is to use, int32 (N, S).
      guess: embeddings for the unknown bytes, float32 (N, S, d); with ``expected``.
      logs: sum of the log-probabilities of the stages so far, float32 (N, S, V); with
        ``ensemble``.
      draft: logits of the first block, float32 (N, S, V); with every fill but
        ``written``.
    """

    state: Array
    bytes: Array
    guess: Array | None = None
    logs: Array | None = None
    draft: Array | None = None


class Drawn(NamedTuple):
    """What the last stage returns.

    Attributes:
      bytes: drawn at every position, to follow it, int32 (N, S).
      logprob: of them before temperature and filters, in nats, float32 (N, S).
      context: bytes that it took as context, int32 (N, S).
    """

    bytes: Array
    logprob: Array
    context: Array
