"""Answers of /v1/generate: bytes, and what they took."""

import secrets
from collections.abc import Sequence
from typing import Any

from spheroid_jax.serving.frontend.asked import Asked
from spheroid_jax.serving.frontend.jobs import Figures, Piece, used_prompt
from spheroid_jax.serving.frontend.model import Model
from spheroid_jax.serving.frontend.text import TextStream, exact


class Text:
    """An answer to a request for one text.

    Args:
      asked: the request.
      model: that writes.
    """

    def __init__(self, asked: Asked, model: Model):
        self._job = asked.jobs[0]
        self._stream = TextStream()
        self._trips = self._bytes = 0
        self._finish: str | None = None
        self._took: dict[str, Any] = {}
        prompt = self._job.prompt
        self._head = {
            "id": f"gen-{secrets.token_hex(12)}",
            "model": model.name,
            "fingerprint": model.fingerprint,
            "method": str(self._job.method),
            "answer": self._job.answer,
            "seed": asked.seed,
            "prompt_bytes": len(prompt),
            "prompt_bytes_read": used_prompt(prompt, self._job.length, model.places),
        }

    def took(self, figures: Figures) -> None:
        """Seconds and sweeps, for the last event."""
        progress = figures.progress[0]
        self._took = {
            "seconds": round(figures.whole, 6),
            "seconds_to_first": round(figures.first, 6),
            "seconds_computing": round(progress.compute, 6),
            "seconds_queued": round(progress.queue, 6),
            "retries": progress.retries,
        }

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """An event: new bytes."""
        text = self._stream.add(piece.data)
        if piece.finish is not None:
            text += self._stream.end()
        self._trips, self._finish = piece.trips, piece.finish
        self._bytes += len(piece.data)
        event = {"bytes": exact(piece.data), "text": text, "trips": piece.trips}
        return {**event, **self._logprobs(piece)}

    def last(self) -> dict[str, Any]:
        """The last event: all but the bytes."""
        return {**self._head, "done": True, **self._figures()}

    def whole(self, texts: Sequence[Piece]) -> dict[str, Any]:
        """The answer at once."""
        event = self.chunk(texts[0])
        return {**self._head, **event, **self._figures()}

    def _figures(self) -> dict[str, Any]:
        counts = {"finish": self._finish, "length": self._bytes, "trips": self._trips}
        return {**counts, **self._took}

    def _logprobs(self, piece: Piece) -> dict[str, Any]:
        return {"logprobs": list(piece.logprobs)} if self._job.logprobs else {}
