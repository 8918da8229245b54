"""How much, how many and how slowly: what a peer may take of the coordinator."""

import contextlib
import dataclasses
import resource
from collections import Counter
from collections.abc import Iterator

from spheroid_jax.transport.http.rates import Rate
from spheroid_jax.transport.protocol import MESSAGE_LIMIT, ProtocolError

# With rounds of two seconds a worker asks 3.5 times a second; toys have shorter ones.
_ASKS = Rate(100.0, 300)
_STRANGER_ASKS = Rate(20.0, 100)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of the HTTP server; seconds and bytes.

    Attributes:
      message: bytes of a JSON body.
      message_seconds: for a JSON body to arrive whole.
      upload: bytes of an update.
      idle: seconds without a byte after which a transfer is cut.
      rate: bytes per second below which a transfer is cut; over ``window``.
      window: seconds over which ``rate`` is a mean.
      requests: of one worker at once, long polls among them.
      transfers: of one worker at once, uploads and downloads each.
      keepalive: seconds that a connection may wait for its next request, and for
        the headers of one.
      linger: seconds to read and forget a refused body, so that the peer gets the
        answer in place of a reset.
      connections: of everybody at once; a quarter is for those without a token.
      connections_each: of them for one token.
      new_seconds: that a connection has to show a token, before it counts as one of
        those without.
      strangers_each: without a token from one address; at most half of the quarter.
      stranger_seconds: for the whole head of a request of a connection whose last one
        showed no token.
      asks: requests with one token.
      stranger_asks: requests without a valid token from one address.
      hold: seconds for which who asks too often waits for the answer that says so.
      line: bytes of a request line and of a header.
      headers: number of them.
      shutdown: seconds for running requests when the server closes.
    """

    message: int = MESSAGE_LIMIT
    message_seconds: float = 10.0
    upload: int = 64 << 30
    idle: float = 30.0
    rate: float = 1024.0
    window: float = 60.0
    requests: int = 16
    transfers: int = 4
    keepalive: float = 75.0
    linger: float = 2.0
    connections: int = 1024
    connections_each: int = 32
    new_seconds: float = 5.0
    strangers_each: int = 32
    stranger_seconds: float = 10.0
    asks: Rate = _ASKS
    stranger_asks: Rate = _STRANGER_ASKS
    hold: float = 1.0
    line: int = 4096
    headers: int = 64
    shutdown: float = 5.0

    @property
    def strangers(self) -> int:
        """Connections at once that have shown no token."""
        return max(2, self.connections // 4)


_OTHER_FILES = 256  # that may be open besides connections and what they move


def connections_for(files: int) -> int:
    """How many there may be, so that files can be opened for all of them, and more.

    Or a stranger who only connects would have everything else fail. The process may
    open more files from now on, where it is allowed to.

    Args:
      files: that a connection takes, its socket included.
    """
    most = Limits.connections
    wanted = files * most + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    if soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    return max(16, min(most, (soft - _OTHER_FILES) // files))


class Pace:
    """Whether a peer moves bytes fast enough; ``limits.idle`` and ``limits.rate``.

    Pure but for the clock: times are given. ``deadline`` is when the peer has to be
    cut, unless ``moved`` is called before.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._last = self._start = now
        self._bytes = 0

    @property
    def deadline(self) -> float:
        """Seconds, of the clock of ``now``."""
        limits = self._limits
        idle = self._last + limits.idle
        if self._bytes >= limits.rate * limits.window:
            return idle
        return min(idle, self._start + limits.window)

    def moved(self, count: int, now: float) -> None:
        """``count`` bytes came or went since the last call."""
        self._last = now
        self._bytes += count
        if now - self._start >= self._limits.window:
            # The window was passed, or ``deadline`` would have been missed.
            self._start, self._bytes = now, 0

    def excuse(self, seconds: float) -> None:
        """The peer had to wait for us that long."""
        self._last += seconds
        self._start += seconds


class Gate:
    """At most so many at once for each worker, or for each of something else.

    Args:
      most: at once.
      what: they are, for the refusal.
      of: whose they are, likewise.
    """

    def __init__(self, most: int, what: str, of: str = "a worker") -> None:
        self._most, self._what, self._of = most, what, of
        self._inside: Counter[str] = Counter()

    @contextlib.contextmanager
    def enter(self, whose: str) -> Iterator[None]:
        """Holds one of the places of a worker, or whatever ``of`` says.

        Raises:
          ProtocolError: 429, all are taken.
        """
        if self._inside[whose] >= self._most:
            raise ProtocolError(
                f"{self._most} {self._what} at once are all that {self._of} may "
                "have; wait for one to end",
                status=429,
                code="busy",
            )
        self._inside[whose] += 1
        try:
            yield
        finally:
            self._inside[whose] -= 1
            if not self._inside[whose]:
                del self._inside[whose]
