"""How bytes are decoded and drawn: what a request may choose.

A *sweep* crosses all stages once and brings back a window of w bytes.
"""

import dataclasses
import difflib
import math
from typing import Any

from spheroid_jax.serving.errors import ServingError

FILLS = ("expected", "drawn", "drafted")
ANSWERS = ("last", "ensemble")
NAMES = ("token", "one_sweep", "windowed", "sweeps", "speculative")
_VOCABULARY = 256


def _choose(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value in allowed:
        return
    near = difflib.get_close_matches(value, allowed, 1)
    cure = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(allowed)}"
    raise ServingError(f"{what} is {value[:60]!r}; {cure}")


def check_answer(answer: str) -> str:
    """``answer``, if it is one of ``ANSWERS``.

    Raises:
      ServingError: it isn't.
    """
    _choose("answer", answer, ANSWERS)
    return answer


@dataclasses.dataclass(frozen=True)
class Method:
    """A way of decoding.

    Attributes:
      name: ``token`` (a byte a sweep), ``one_sweep`` (all bytes in one sweep, not
        verified), ``windowed`` (w bytes a sweep, not verified; the next sweep reads
        them as decided), ``sweeps`` (Jacobi iteration: the draws of a sweep are the
        guesses of the next; with drafts, those after the first wrong one are drafted
        anew; after n sweeps all stand), ``speculative`` (block 0 drafts w - 1 bytes,
        all blocks verify them; what is committed is what ``token`` draws).
      window: w, bytes that a sweep brings back at most; of windowed and speculative.
      sweeps: n, at most so many sweeps for a segment; of sweeps.
      fill: what blocks read in place of bytes that aren't decided yet. ``expected``:
        the mean embedding under the block before; ``drawn``: the byte that the block
        before drew; block 0 reads a zero embedding in both. ``drafted``: block 0
        decides the bytes one by one on its own, the later blocks read them; where
        nothing verifies them they are the text.
    """

    name: str = "token"
    window: int = 1
    sweeps: int = 1
    fill: str = "drafted"

    def __post_init__(self) -> None:
        _choose("method", self.name, NAMES)
        _choose("fill", self.fill, FILLS)
        for field in ("window", "sweeps"):
            value = getattr(self, field)
            if not isinstance(value, int) or not 1 <= value <= 1_000_000:
                raise ServingError(f"{field} is {value!r}; give a whole number from 1")
        if self.name == "speculative" and self.fill != "drafted":
            raise ServingError(
                f"fill is {self.fill!r}, but speculative verifies drafts; use drafted"
            )

    @property
    def exact(self) -> bool:
        """Whether the bytes are those of ``token`` whatever the length."""
        return self.name in ("token", "speculative")

    @property
    def number(self) -> int | None:
        """The number that belongs to the name, if one does."""
        if self.name == "sweeps":
            return self.sweeps
        return self.window if self.name in ("windowed", "speculative") else None

    def __str__(self) -> str:
        """What :meth:`parse` reads: ``token``, ``windowed=16:drafted``."""
        text = self.name if self.number is None else f"{self.name}={self.number}"
        plain = self.name in ("token", "speculative")
        return text if plain else f"{text}:{self.fill}"

    @classmethod
    def parse(cls, text: str, fill: str | None = None) -> "Method":
        """Reads ``token``, ``one_sweep``, ``sweeps=4``, ``windowed=16:drafted``.

        Args:
          text: a name, with ``=NUMBER`` where the method takes one, and perhaps a fill
            after a colon or a comma.
          fill: the fill when the text has none; ``drafted`` unless given.

        Raises:
          ServingError: one line that names what is wrong and what would do.
        """
        head, _, suffix = text.strip().replace(",", ":").partition(":")
        name, has_number, number = head.strip().partition("=")
        name = name.strip()
        _choose("method", name, NAMES)
        suffix = suffix.strip()
        if fill and suffix and fill != suffix:
            raise ServingError(f"fill is {fill!r}, but method is {text!r}; give one")
        chosen = suffix or fill or "drafted"
        takes = {"windowed": "window", "speculative": "window", "sweeps": "sweeps"}
        if name not in takes:
            if has_number:
                raise ServingError(f"method is {text[:60]!r}; {name} takes no number")
            return cls(name, fill=chosen)
        digits = number.strip()
        if not (digits.isascii() and digits.isdigit() and len(digits) < 8):
            raise ServingError(
                f"method is {text[:60]!r}; {name} takes a whole number, "
                f"such as {name}=16"
            )
        return cls(name, **{takes[name]: int(digits)}, fill=chosen)


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How a byte is drawn from logits, and where the text ends.

    Attributes:
      temperature: 0 takes the best byte.
      top_k: the number of best bytes to draw from; 0 draws from all.
      top_p: the smallest set of best bytes of at least this probability; 1 is all.
      seed: of all draws, 0 to 2^32 - 1.
      stop: byte sequences that end the text; they are no part of it.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0.0, 1e6, "0 to 1e6")
        _number("top_p", self.top_p, 0.0, 1.0, "above 0, at most 1")
        if self.top_p == 0:
            raise ServingError("top_p is 0; give a number above 0, at most 1")
        _whole("top_k", self.top_k, _VOCABULARY)
        _whole("seed", self.seed, 2**32 - 1)
        for sequence in self.stop:
            if not isinstance(sequence, bytes) or not sequence:
                raise ServingError(
                    f"stop has {sequence!r}; give sequences of at least one byte"
                )


def usual_method(kind: str, blocks: int) -> Method:
    """Where a request names none: the text of ``token``, in fewer trips if it can be.

    Args:
      kind: of the model; a block of ``blocktrain`` can draft.
      blocks: of it; with one there is nothing that verifies.
    """
    drafts = kind == "blocktrain" and blocks > 1
    return Method("speculative", 16) if drafts else Method()


def _number(name: str, value: Any, low: float, high: float, allowed: str) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not low <= value <= high:
        raise ServingError(f"{name} is {value!r}; give a number {allowed}")


def _whole(name: str, value: Any, high: int) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not 0 <= value <= high:
        raise ServingError(f"{name} is {value!r}; give a whole number 0 to {high}")
