"""When bytes arrive that leave now: a link's delay, rate and loss.

The times are plain arithmetic on a clock that the caller reads; nothing here waits.

What is modelled, a direction of a link at a time:

* **Rate.** One token bucket for all connections, ``DEPTH`` seconds deep. They take
  turns, a chunk each, so that they share it about equally.
* **Delay.** Every chunk arrives ``delay_seconds`` after it left, plus up to
  ``jitter_seconds``, evenly distributed. A connection's chunks keep their order.
* **Setting up.** A connection's first byte leaves one round trip after it was opened,
  as after SYN and SYN-ACK.
* **Loss.** TCP loses no data; a lost segment costs time. Two effects are modelled. The
  window that halves at every loss bounds a connection's rate at
  ``MSS / RTT * 1.22 / sqrt(loss)`` (Mathis, Semke, Mahdavi and Ott, "The macroscopic
  behavior of the TCP congestion avoidance algorithm", 1997, equation 3). And all that
  follows a lost segment waits for its repetition: the chunk arrives ``max(RTT, 200
  ms)`` later, once more for every time the repetition is lost too. 200 ms is the
  shortest retransmission time-out of Linux; a fast retransmission takes one RTT, so
  short messages are rather slower here than in truth. Repeated segments take their
  share of the rate.

What isn't: slow start, the receiver's window (a fixed one of 4 MiB takes its place),
queues that overflow, other traffic, acknowledgements and handshakes that get lost,
losses that come in bursts. The bound on the rate is that of Reno: CUBIC is somewhat
faster on a long link, and BBR hardly minds the loss.
"""

import dataclasses
import math
import random

MSS = 1460  # bytes of data in a segment, on Ethernet
RETRANSMISSION = 0.2  # seconds; the least that Linux waits before it sends again
DEPTH = 0.02  # seconds of the rate that an idle link saves up
CHUNK = 1 << 16  # bytes that are sent in one go, at most
TURN = 0.005  # seconds that a chunk takes of a slow link


@dataclasses.dataclass(frozen=True)
class Shape:
    """One direction of a link.

    Attributes:
      delay_seconds: from one end to the other; a round trip takes both directions'.
      rate_bytes: bytes per second, of all connections together; inf: no bound.
      loss: the share of segments that get lost, from 0 to below 1.
      jitter_seconds: what is added to the delay at most, at random.
    """

    delay_seconds: float = 0.0
    rate_bytes: float = math.inf
    loss: float = 0.0
    jitter_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("delay_seconds", "jitter_seconds"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} = {value}: take seconds, from 0")
        if not self.rate_bytes > 0:
            raise ValueError(f"rate_bytes = {self.rate_bytes}: take more than 0")
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss = {self.loss}: take a share from 0 to below 1")


def round_trip(up: Shape, down: Shape) -> float:
    """Seconds from one end to the other and back, on average."""
    jitter = (up.jitter_seconds + down.jitter_seconds) / 2
    return up.delay_seconds + down.delay_seconds + jitter


def rate_bound(rtt: float, loss: float) -> float:
    """Bytes per second that one connection can carry, by Mathis et al. 1997.

    >>> round(rate_bound(0.08, 0.01))
    222650
    """
    if rtt <= 0 or loss <= 0:
        return math.inf
    return MSS / rtt * 1.22 / math.sqrt(loss)


class Bucket:
    """Bytes per second, with ``DEPTH`` seconds saved up at most."""

    def __init__(self, rate: float):
        self.rate, self._free = rate, -math.inf

    def take(self, size: int, now: float) -> float:
        """Returns when the last of ``size`` bytes that wait from ``now`` is out."""
        if math.isinf(self.rate):
            return now
        self._free = max(self._free, now - DEPTH) + size / self.rate
        return max(now, self._free)


class Lane:
    """One direction of a link: what its connections share.

    Attributes:
      lost: segments that got lost so far.
    """

    def __init__(self, shape: Shape, rtt: float, rng: random.Random):
        self.shape, self.rtt, self.rng = shape, rtt, rng
        self.bucket = Bucket(shape.rate_bytes)
        self.lost = 0

    @property
    def chunk(self) -> int:
        """Bytes that a connection may send before it's another's turn."""
        rate = min(self.shape.rate_bytes, rate_bound(self.rtt, self.shape.loss))
        return int(min(CHUNK, max(MSS, rate * TURN)))

    def tries(self, size: int) -> tuple[int, int]:
        """Draws the losses of ``size`` bytes: all of them, and the worst segment's."""
        if not self.shape.loss:
            return 0, 0
        losses = worst = 0
        for _ in range(math.ceil(size / MSS)):
            again = 0
            while self.rng.random() < self.shape.loss:
                again += 1
            losses, worst = losses + again, max(worst, again)
        self.lost += losses
        return losses, worst


class Flow:
    """A connection's bytes in one direction of a link.

    Attributes:
      opens: when its first byte may be sent.
    """

    def __init__(self, lane: Lane, opened: float):
        self._lane = lane
        self._bound = Bucket(rate_bound(lane.rtt, lane.shape.loss))
        self.opens = opened + lane.rtt
        self._arrived = -math.inf

    def send(self, size: int, now: float) -> tuple[float, float]:
        """Sends ``size`` bytes, a chunk's at most, not before `opens`; 0: the end.

        Returns:
          When the next bytes may be sent, and when these are there.
        """
        lane, shape = self._lane, self._lane.shape
        losses, worst = lane.tries(size)
        left = max(
            self._bound.take(size, now), lane.bucket.take(size + losses * MSS, now)
        )
        arrives = left + shape.delay_seconds + worst * max(lane.rtt, RETRANSMISSION)
        if shape.jitter_seconds:
            arrives += lane.rng.uniform(0, shape.jitter_seconds)
        self._arrived = max(self._arrived, arrives)
        return left, self._arrived
