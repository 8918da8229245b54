"""What is said of texts, apart from how they were written."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spheroid_jax.models import Autoregressive
from spheroid_jax.objectives import cross_entropy, split_windows

_GRAM = 4


@dataclasses.dataclass(frozen=True)
class Judge:
    """A language model that reads what others have written.

    Attributes:
      model: a reference, whose places must hold a prompt and an output but for the
        last byte.
      params: of it.
    """

    model: Autoregressive
    params: Any

    def cross_entropies(
        self, prompts: Sequence[bytes], texts: Sequence[bytes]
    ) -> np.ndarray:
        """Nats per byte of each text after its prompt, float64 (N,).

        All prompts are of one length, and all texts.
        """
        both = [p + t for p, t in zip(prompts, texts, strict=True)]
        windows = np.stack([np.frombuffer(b, np.uint8) for b in both]).astype(np.int32)
        losses = _losses(self.model, self.params, jnp.asarray(windows))
        return np.asarray(losses, np.float64)[:, len(prompts[0]) - 1 :].mean(axis=1)


@functools.partial(jax.jit, static_argnums=0)
def _losses(model: Autoregressive, params: Any, windows: jax.Array) -> jax.Array:
    x, y = split_windows(windows)
    return cross_entropy(model.logits(params, x), y)


def distinct(texts: Sequence[bytes]) -> float:
    """Share of different ones among the 4-grams of all texts together; 1 for none."""
    grams = [gram for text in texts for gram in _grams(text)]
    return len(set(grams)) / len(grams) if grams else 1.0


def repeated(text: bytes) -> float:
    """Share of a text's 4-grams that it had before: high where it goes in circles.

    >>> repeated(b"abcdefgh"), repeated(b"aaaaa")
    (0.0, 0.5)
    """
    grams = _grams(text)
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def longest_run(text: bytes) -> int:
    """The most times that a byte follows itself without another between.

    >>> longest_run(b"aabbbc"), longest_run(b"")
    (3, 0)
    """
    longest = run = 0
    for place, byte in enumerate(text):
        run = run + 1 if place and text[place - 1] == byte else 1
        longest = max(longest, run)
    return longest


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Mean and its standard error; of one value the error is not a number."""
    if values.size < 2:
        return float(values.mean()), float("nan")
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size))


def _grams(text: bytes) -> list[bytes]:
    return [text[i : i + _GRAM] for i in range(len(text) - _GRAM + 1)]
