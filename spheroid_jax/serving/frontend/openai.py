"""Answers in OpenAI's form; a token is a byte.

Besides OpenAI's fields a choice has ``bytes`` (base64: the text's bytes themselves) and
``trips``, and an answer has ``seed`` and ``method``.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from spheroid_jax.serving.frontend.asked import Asked
from spheroid_jax.serving.frontend.jobs import Figures, Piece, used_prompt
from spheroid_jax.serving.frontend.model import Model
from spheroid_jax.serving.frontend.text import TextStream, exact, names


class Choice:
    """One text of an answer, as its pieces come.

    Args:
      index: among the choices.
      echo: the prompt, if the text begins with it.
      logprobs: whether they are told.
    """

    def __init__(self, index: int, echo: bytes = b"", logprobs: bool = False):
        self.index, self.bytes = index, 0
        self._stream, self._echo, self._wanted = TextStream(), echo, logprobs
        self._characters = 0

    def add(self, piece: Piece) -> dict[str, Any]:
        """A piece, as the choice of a chunk."""
        places = []
        text = self._stream.add(self._echo)
        self._echo = b""
        for i in range(len(piece.data)):
            text += self._stream.add(piece.data[i : i + 1])
            place = self._characters + len(text)
            places.append(place if self._stream.waits else place - 1)
        if piece.finish is not None:
            text += self._stream.end()
        self._characters += len(text)
        self.bytes += len(piece.data)
        told = None
        if self._wanted:
            told = {
                "tokens": names(piece.data),
                "token_logprobs": list(piece.logprobs),
                "top_logprobs": None,
                "text_offset": places,
            }
        return {
            "index": self.index,
            "text": text,
            "logprobs": told,
            "finish_reason": piece.finish,
            "bytes": exact(piece.data),
            "trips": piece.trips,
        }


class Completion:
    """An answer to a request for completions.

    Args:
      asked: the request.
      model: that writes.
    """

    def __init__(self, asked: Asked, model: Model):
        self._asked, self._model = asked, model
        self.choices = [
            Choice(i, job.prompt if asked.echo else b"", job.logprobs)
            for i, job in enumerate(asked.jobs)
        ]
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": model.fingerprint,
            "seed": asked.seed,
            "method": str(asked.jobs[0].method),
        }

    def took(self, figures: Figures) -> None:
        """OpenAI's form has no place for it."""

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """An event of a stream."""
        body = {**self._head, "choices": [self.choices[piece.index].add(piece)]}
        return {**body, "usage": None} if self._asked.usage else body

    def last(self) -> dict[str, Any] | None:
        """The event before the end of a stream, if one was wanted."""
        if not self._asked.usage:
            return None
        return {**self._head, "choices": [], "usage": self.usage()}

    def whole(self, texts: Sequence[Piece]) -> dict[str, Any]:
        """The answer at once, of a piece for each text."""
        choices = [self.choices[piece.index].add(piece) for piece in texts]
        return {**self._head, "choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Bytes that were read and written."""
        length, places = self._asked.jobs[0].length, self._model.places
        prompts = self._asked.prompts
        read = sum(used_prompt(prompt, length, places) for prompt in prompts)
        written = sum(choice.bytes for choice in self.choices)
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            # As given; where it is more, the model has read the last ones only.
            "prompt_bytes": sum(map(len, prompts)),
        }


def models(model: Model, since: int) -> dict[str, Any]:
    """The answer to GET /v1/models: the one model."""
    return {"object": "list", "data": [card(model, since)]}


def card(model: Model, since: int) -> dict[str, Any]:
    """A model as OpenAI lists it, and what else is known of it."""
    return {
        "id": model.name,
        "object": "model",
        "created": since,
        "owned_by": "spheroid_jax",
        "fingerprint": model.fingerprint,
        "kind": model.kind,
        "blocks": model.count,
        "places": model.places,
    }
