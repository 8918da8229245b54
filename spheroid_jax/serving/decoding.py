"""Decoding as a state machine: which sweep comes next, and which bytes then stand.

Pure Python, so that a front end drives it over a network and ``generate`` in one
process alike. Input position i holds byte u_i of prompt and output; its logits decide
u_{i+1}. All draws are functions of the seed and i, so a drawn byte is *exact* (the byte
that ``token`` draws) as soon as every byte that its position reads is.
"""

import dataclasses
from collections.abc import Iterator, Sequence

from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.methods import FILLS, Method, Sampling

__all__ = ["FILLS", "Decoder", "Method", "Sampling", "Segment", "Sweep", "segments"]

# An empty prompt has no position to decide the first byte at.
EMPTY_PROMPT = b"\n"


@dataclasses.dataclass(frozen=True)
class Segment:
    """Output bytes that share a cache.

    Attributes:
      origin: absolute index of the byte at place 0.
      first: the first output byte of the segment, counted from the first of all.
      end: the first output byte after it.
    """

    origin: int
    first: int
    end: int


def segments(prompt_bytes: int, length: int, places: int) -> Iterator[Segment]:
    """Cuts ``length`` output bytes after a prompt into stretches of ``places`` places.

    It depends on lengths alone, so all methods cut alike. A segment starts with an
    empty cache and reads the last bytes of what there is: all of them where they and
    the output that is left fit, else as many as leave room for that output, but no
    fewer than half the places (where there are so many).

    Args:
      prompt_bytes: P, at least 1.
      length: output bytes.
      places: T. The last output byte needs no place.
    """
    done = 0
    while done < length:
        have, left = prompt_bytes + done, length - done
        context = min(have, max(1, places // 2, places + 1 - left))
        end = done + min(left, places + 1 - context)
        yield Segment(have - context, done, end)
        done = end


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What crosses the stages once.

    Attributes:
      fresh: the cache of the request starts empty.
      start: place of the first input position.
      index: its absolute index.
      known: decided bytes from there on, at least 1.
      count: known and guessed positions.
      bytes: the known bytes; after them the guesses where ``fill`` is ``given``.
      fill: one of ``FILLS``; ``given``; or ``written``, which is ``drafted`` with the
        drafts brought back in place of what the later blocks would draw.
    """

    fresh: bool
    start: int
    index: int
    known: int
    count: int
    bytes: bytes
    fill: str

    @property
    def window(self) -> int:
        """w, the number of bytes that it brings back."""
        return self.count - self.known + 1


class Decoder:
    """The sweeps of one request.

    >>> decoder = Decoder(b"ab", 2, Method(), Sampling(), places=8)
    >>> decoder.next().bytes
    b'ab'
    >>> decoder.take(b"c"), decoder.next().bytes, decoder.take(b"d"), decoder.done
    (b'c', b'c', b'd', True)

    Args:
      prompt: any bytes; an empty one is read as one newline.
      length: output bytes at most.
      places: T of the model.

    Attributes:
      trips: sweeps taken so far.
      finish: ``length`` or ``stop`` once done, else None.
    """

    def __init__(
        self,
        prompt: bytes,
        length: int,
        method: Method,
        sampling: Sampling,
        places: int,
    ):
        for name, value, low in (("length", length, 0), ("places", places, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ServingError(
                    f"{name} is {value!r}; give a whole number from {low}"
                )
        self.length, self.method, self.sampling = length, method, sampling
        self.places = places
        self.trips = 0
        self.finish: str | None = None
        self._prompt = prompt or EMPTY_PROMPT
        self._decided = bytearray()  # with a stop sequence, if one was met
        self._logprobs: list[float] = []
        self._ends = length  # of the text: the stop sequence and what follows is cut
        self._given = 0  # bytes of output that take() has handed out
        self._segments = segments(len(self._prompt), length, places)
        self._sweep: Sweep | None = None
        self._segment = Segment(0, 0, 0)
        self._cached = 0  # places of the segment whose cache entries are final
        self._draws = b""  # by sweeps: of the last one, from the first undecided byte
        self._sweeps_left = 0
        self._advance()

    @property
    def done(self) -> bool:
        """Whether the text is complete."""
        return self.finish is not None

    @property
    def output(self) -> bytes:
        """The bytes that :meth:`take` has handed out."""
        return bytes(self._decided[: self._given])

    @property
    def logprobs(self) -> list[float]:
        """Of the bytes of :attr:`output`, where they were given."""
        return self._logprobs[: self._given]

    def next(self) -> Sweep | None:
        """The sweep to send now, the same until :meth:`take`; None when done."""
        if self.done:
            return None
        if self._sweep is None:
            self._sweep = self._plan()
        return self._sweep

    def restart(self) -> None:
        """The cache is lost: the next sweep fills another. The text stays the same."""
        self._cached = 0
        self._sweep = None

    def take(
        self, drawn: bytes, context: bytes = b"", logprobs: Sequence[float] = ()
    ) -> bytes:
        """Takes the result of :meth:`next` and returns output that is certain now.

        Bytes that may still turn out to begin a stop sequence are held back until
        they don't, or until the text ends.

        Args:
          drawn: w bytes, decided at positions known - 1 to count - 1 of the sweep.
          context: the w - 1 bytes that a ``drafted`` sweep used as guesses.
          logprobs: of the drawn bytes, or nothing.

        Raises:
          ServingError: nothing was asked, or the sizes are others than asked.
        """
        sweep = self._sweep
        if sweep is None:
            raise ServingError("a result came that no sweep had asked for")
        self._check(sweep, drawn, context, logprobs)
        self.trips += 1
        self._sweep = None
        matches = _matches(self._guesses(sweep, context), drawn)
        committed = matches + 1 if self._verified() else sweep.window
        self._sweeps_left -= 1
        # Unverified bytes are read once more, in the next sweep, as decided ones.
        self._cached = sweep.start + sweep.known + matches
        again = self.method.name == "sweeps" and self.method.fill != "drafted"
        self._draws = drawn[committed:] if again else b""
        self._commit(drawn[:committed], logprobs[:committed])
        return self._hand_out()

    def _verified(self) -> bool:
        """Whether only exact bytes of the next sweep stand, or of one being taken."""
        if self.method.name == "sweeps":
            return self._sweeps_left > 1
        return self.method.exact

    def _guesses(self, sweep: Sweep, context: bytes) -> bytes:
        if sweep.fill == "given":
            return sweep.bytes[sweep.known :]
        return context if sweep.fill == "drafted" else b""

    def _check(
        self,
        sweep: Sweep,
        drawn: bytes,
        context: bytes,
        logprobs: Sequence[float],
    ) -> None:
        guesses = sweep.window - 1 if sweep.fill == "drafted" else len(context)
        sizes = (len(drawn), len(context), len(logprobs) or sweep.window)
        if sizes != (sweep.window, guesses, sweep.window):
            raise ServingError(
                f"a sweep of {sweep.window} bytes brought {len(drawn)} bytes, "
                f"{len(context)} of context and {len(logprobs)} log-probabilities"
            )

    def _advance(self) -> None:
        """Enters the next segment, or finishes when there is none."""
        segment = next(self._segments, None)
        if segment is None:
            self.finish = "length"
            return
        self._segment = segment
        self._cached = 0
        self._sweeps_left = self.method.sweeps

    def _plan(self) -> Sweep:
        origin, end = self._segment.origin, self._segment.end
        index = origin + self._cached
        known = self._text(index)
        window = end - len(self._decided)
        if self.method.name in ("token", "windowed", "speculative"):
            window = min(window, self.method.window)
        # Draws have a byte for the last position as well, which nothing reads.
        guesses = self._draws[: window - 1]
        fill = "given" if guesses or window == 1 else self._fill()
        return Sweep(
            fresh=self._cached == 0,
            start=self._cached,
            index=index,
            known=len(known),
            count=len(known) + window - 1,
            bytes=known + guesses,
            fill=fill,
        )

    def _fill(self) -> str:
        """Unverified drafts are the text: what was drawn after each doesn't follow."""
        drafts = self.method.fill == "drafted" and not self._verified()
        return "written" if drafts else self.method.fill

    def _text(self, index: int) -> bytes:
        """Prompt and output from an absolute index on."""
        inside = index - len(self._prompt)
        if inside >= 0:
            return bytes(self._decided[inside:])
        return self._prompt[index:] + bytes(self._decided)

    def _commit(self, drawn: bytes, logprobs: Sequence[float]) -> None:
        longest = max(map(len, self.sampling.stop), default=0)
        self._logprobs.extend(logprobs)
        for byte in drawn:
            self._decided.append(byte)
            tail = bytes(self._decided[-longest:]) if longest else b""
            met = [len(stop) for stop in self.sampling.stop if tail.endswith(stop)]
            if met:
                self._ends = len(self._decided) - max(met)
                self.finish = "stop"
                return
        if len(self._decided) == self._segment.end:
            self._advance()

    def _hand_out(self) -> bytes:
        if self.done:
            certain = min(self._ends, len(self._decided))
        else:
            certain = len(self._decided) - self._held()
        new = bytes(self._decided[self._given : certain])
        self._given = max(self._given, certain)
        return new

    def _held(self) -> int:
        """Bytes at the end that begin a stop sequence; the most that do."""
        held = 0
        for stop in self.sampling.stop:
            for size in range(min(len(stop) - 1, len(self._decided)), held, -1):
                if self._decided.endswith(stop[:size]):
                    held = size
                    break
        return held


def _matches(guesses: bytes, drawn: bytes) -> int:
    """How many leading guesses are the bytes drawn one position before."""
    for place, (guess, byte) in enumerate(zip(guesses, drawn, strict=False)):
        if guess != byte:
            return place
    return min(len(guesses), len(drawn))
