"""The trips of a request: found by decoding with drawn bytes that mean nothing.

The state machine that serves requests decides, so a plan can't disagree with it. Where
trips depend on whether guesses turn out right, they do so at random, with the
probability that is given; the mean of several requests is taken.
"""

import collections
import dataclasses
import random

from spheroid_jax.serving.decoding import Decoder, Method, Sampling, Sweep
from spheroid_jax.serving.errors import ServingError

DRAWS = 64  # requests that are averaged where trips are random


@dataclasses.dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
      prompt: bytes; an empty prompt counts as one.
      output: bytes.
      method: how they are decoded.
      acceptance: probability that a guess is the byte that is drawn.
    """

    prompt: int
    output: int
    method: Method
    acceptance: float = 0.0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("prompt", self.prompt, 0),
            ("output", self.output, 1),
        ):
            if not isinstance(value, int) or value < least:
                raise ServingError(
                    f"{name} is {value!r}; give a whole number from {least}"
                )
        if not 0 <= self.acceptance <= 1:
            raise ServingError(
                f"acceptance is {self.acceptance!r}; give a share, 0 to 1"
            )


@dataclasses.dataclass(frozen=True)
class Trip:
    """One kind of trip of a request.

    Attributes:
      positions: S, of the row that crosses the stages.
      back: bytes that come back.
      fill: what stands for bytes that aren't decided, as :class:`Sweep` says.
      times: how often the request makes it, on average.
    """

    positions: int
    back: int
    fill: str
    times: float

    @property
    def drafts(self) -> int:
        """Bytes that block 0 decides one by one before it passes the row on."""
        return self.back - 1 if self.fill in ("drafted", "written") else 0


def itinerary(request: Request, places: int) -> tuple[Trip, ...]:
    """The trips of a request to a model of ``places`` positions, shortest first."""
    counts: collections.Counter[tuple[int, int, str]] = collections.Counter()
    random_trips = 0 < request.acceptance < 1 and _guesses(request.method)
    draws = DRAWS if random_trips else 1
    for seed in range(draws):
        counts.update(_decode(request, places, random.Random(seed)))
    return tuple(Trip(*key, times / draws) for key, times in sorted(counts.items()))


def _guesses(method: Method) -> bool:
    return method.name == "sweeps" or method.fill == "drafted"


def _decode(
    request: Request, places: int, rng: random.Random
) -> collections.Counter[tuple[int, int, str]]:
    """Decodes one request."""
    counts: collections.Counter[tuple[int, int, str]] = collections.Counter()
    prompt = b"\0" * request.prompt
    decoder = Decoder(prompt, request.output, request.method, Sampling(), places)
    while (sweep := decoder.next()) is not None:
        counts[sweep.count, sweep.window, sweep.fill] += 1
        decoder.take(*_answer(sweep, request.acceptance, rng))
    return counts


def _answer(sweep: Sweep, acceptance: float, rng: random.Random) -> tuple[bytes, bytes]:
    """Bytes drawn and bytes used as context: guesses are right up to a point."""
    drafted = sweep.fill == "drafted"
    guesses = b"\0" * (sweep.window - 1) if drafted else sweep.bytes[sweep.known :]
    right = 0
    while right < len(guesses) and rng.random() < acceptance:
        right += 1
    drawn = bytearray(sweep.window)
    drawn[: len(guesses)] = guesses
    if right < len(guesses):
        drawn[right] ^= 1
    return bytes(drawn), guesses if drafted else b""
