"""What goes wrong on a connection, and at which byte: plans that can be repeated.

A fault is tied to a byte of the conversation, never to the clock, so that a test that
found something finds it again.
"""

import collections
import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Literal

Kind = Literal["cut", "stall", "flip", "duplicate", "delay", "reset"]
Direction = Literal["up", "down"]

KINDS: tuple[Kind, ...] = ("cut", "stall", "flip", "duplicate", "delay", "reset")
RECORDED = 64 << 20  # bytes of a connection that can be sent once more


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that happens to a connection.

    ``after_bytes`` bytes pass, then comes the fault, where the next byte would have
    passed. So ``after_bytes=0`` downwards means: the target answers, and none of the
    answer is heard. Where the next byte never comes, nothing happens.

    The kinds:

    * ``cut``: both ends see the connection closed.
    * ``reset``: both ends see it reset; the last bytes before may be lost with it.
    * ``stall``: from now on nothing passes, either way, and nobody is told, as when a
      cable is pulled. The connection stays until both ends have given up.
    * ``flip``: one bit of the next byte changes.
    * ``delay``: this direction waits ``seconds``.
    * ``duplicate``: as soon as the target has answered to more than ``after_bytes``
      bytes, or else at the end of the connection, what it was sent until then is sent
      to it once more, on a connection of its own whose answers nobody reads. At most
      ``RECORDED`` bytes. Upwards only.

    Attributes:
      kind: as above.
      connection: which, counted from 0 in the order in which they were opened.
      after_bytes: bytes of this direction that pass before.
      direction: ``up`` to the target, ``down`` from it.
      seconds: of a ``delay``.
      bit: that a ``flip`` changes, 0 to 7.
    """

    kind: Kind
    connection: int = 0
    after_bytes: int = 0
    direction: Direction = "up"
    seconds: float = 0.0
    bit: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind = {self.kind!r}: use one of {', '.join(KINDS)}")
        if self.direction not in ("up", "down"):
            raise ValueError(f"direction = {self.direction!r}: use up or down")
        if self.kind == "duplicate" and self.direction == "down":
            raise ValueError("direction = 'down': only what goes up can be duplicated")
        for name, most in (
            *(("connection", None), ("after_bytes", None)),
            *(("seconds", None), ("bit", 7)),
        ):
            value = getattr(self, name)
            if value < 0 or (most is not None and value > most):
                raise ValueError(f"{name} = {value}: take 0 to {most or 'any'}")


# Which faults a connection has, by its number.
Plan = Callable[[int], Sequence[Fault]]


def listed(faults: Sequence[Fault]) -> Plan:
    """The plan of these faults; a connection without any is left alone."""
    by_connection: dict[int, list[Fault]] = collections.defaultdict(list)
    for fault in faults:
        by_connection[fault.connection].append(fault)
    return lambda connection: tuple(by_connection.get(connection, ()))


def seeded(
    seed: int,
    share: float = 0.3,
    *,
    kinds: Sequence[Kind] = KINDS,
    span: int = 1 << 20,
    seconds: float = 1.0,
) -> Plan:
    """A plan that draws at most one fault for a connection.

    What a connection gets hangs on the seed and its number alone.

    Args:
      seed: of the draws.
      share: of the connections that get a fault.
      kinds: that are drawn from, each equally likely.
      span: the most bytes before it; small numbers are as likely as large ones, in
        powers of two.
      seconds: the longest ``delay``.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share = {share}: take 0 to 1")
    for kind in kinds:
        Fault(kind)  # refuses what it doesn't know

    def plan(connection: int) -> Sequence[Fault]:
        rng = random.Random(f"{seed}/{connection}")
        if rng.random() >= share:
            return ()
        kind = rng.choice(kinds)
        down = rng.random() < 0.5 and kind != "duplicate"
        after = rng.randrange(1 << rng.randrange(max(span, 1).bit_length() + 1))
        return (
            Fault(
                kind,
                connection,
                min(after, span),
                "down" if down else "up",
                rng.uniform(0, seconds),
                rng.randrange(8),
            ),
        )

    return plan


@dataclasses.dataclass
class Counts:
    """What happened at a proxy so far.

    Attributes:
      connections: that were opened.
      refused: of these, where the target wasn't there, or the link was down.
      bytes_up, bytes_down: that were passed on, without those sent once more.
      lost_segments: by the model; see :mod:`spheroid_jax.transport.shaping.link`.
      happened: the faults, in the order in which they happened.
    """

    connections: int = 0
    refused: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    lost_segments: int = 0
    happened: list[Fault] = dataclasses.field(default_factory=list)

    @property
    def faults(self) -> dict[str, int]:
        """How many faults of each kind happened."""
        return dict(collections.Counter(fault.kind for fault in self.happened))
