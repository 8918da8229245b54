"""What goes wrong in a run, and at which event: drawn from a seed alone."""

import math
import random
from typing import Literal, NamedTuple

from spheroid_jax.transport.closing import Policy
from spheroid_jax.transport.shaping.faults import Kind
from spheroid_jax.transport.updates import Encoding
from tests.faults import failpoints
from tests.faults.counting import BLOCKS

KINDS = ("work", "heartbeat", "index", "data", "announce", "patch", "commit")
LINK = ("refuse", "lose", "twice", "later", "cross", "delay")
WIRE: tuple[Kind, ...] = ("cut", "stall", "flip", "duplicate", "delay", "reset")
POISON = ("nan", "huge", "shape", "leaf")


How = Literal["kill", "gone", "replace", "stop", "twin"]


class Strike(NamedTuple):
    """A process ends, when it passes a failpoint for the nth time.

    ``how``: ``kill``, it is started again with the same folder and token; ``gone``, it
    isn't; ``replace``, a new worker comes; ``stop``, it is asked to end and started
    again; ``twin``, it lives, but a second process comes with its token.
    """

    point: str
    nth: int
    how: How


class Trouble(NamedTuple):
    """What becomes of the nth request of a kind that a worker sends.

    ``refuse``: it never arrives; ``lose``: it is carried out, the answer is lost;
    ``twice``: it is sent twice; ``later``: once more, after some others; ``cross``: it
    waits until another worker's request of the kind was answered; ``delay``.
    """

    worker: str
    kind: str
    nth: int
    what: str


class Poisoned(NamedTuple):
    """An update that must not touch the model."""

    worker: str
    round: int
    what: str


class Schedule(NamedTuple):
    """A run and its faults."""

    seed: int
    replicas: int
    rounds: int
    workers: tuple[str, ...]
    policy: Policy
    encoding: Encoding
    coordinator: tuple[Strike, ...]  # of one process after the other
    strikes: dict[str, tuple[Strike, ...]]  # of workers, likewise
    troubles: tuple[Trouble, ...]
    poison: tuple[Poisoned, ...]
    wire: float  # share of connections with a fault

    def __str__(self) -> str:
        p = self.policy
        lines = [
            f"seed {self.seed}: {BLOCKS} blocks x {self.replicas}, {self.rounds} "
            f"rounds, {len(self.workers)} workers, {self.encoding.kind}",
            f"  deadline {p.deadline:g}, late {p.late}, quorum {p.quorum}, "
            f"max_age {p.max_age}; {self.wire:.0%} of connections have a fault",
            *(f"  coordinator: {s}" for s in self.coordinator),
            *(f"  {w}: {s}" for w, each in self.strikes.items() for s in each),
            *(f"  {t}" for t in self.troubles),
            *(f"  {p}" for p in self.poison),
        ]
        return "\n".join(lines)


def draw(seed: int) -> Schedule:
    """The schedule of a seed."""
    rng = random.Random(f"faults/{seed}")
    replicas = rng.choice((1, 1, 2))
    slots = BLOCKS * replicas
    count = max(2, rng.choice((slots - 1, slots, slots, slots + 1)))
    workers = tuple(f"w{i}" for i in range(count))
    rounds = rng.choice((3, 4))
    intensity = rng.choice((0.0, 0.5, 1.0, 1.0))
    poison = tuple(
        Poisoned(rng.choice(workers), rng.randrange(rounds), rng.choice(POISON))
        for _ in range(rng.choice((0, 0, 0, 1)))
    )
    encoding = rng.choice((Encoding(), Encoding("bfloat16"), Encoding("float32", 3)))
    if poison:  # which is put into the file as it is, and owes nothing
        encoding = Encoding()
    return Schedule(
        seed,
        replicas,
        rounds,
        workers,
        _policy(rng),
        encoding,
        tuple(_of_coordinator(rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))),
        {w: _of_worker(rng, w) for w in workers},
        tuple(_trouble(rng, workers) for _ in range(round(intensity * 8))),
        poison,
        rng.choice((0.0, 0.1, 0.25)),
    )


def _policy(rng: random.Random) -> Policy:
    kind = rng.choice(("lockstep", "deadline", "quorum", "gate", "gate"))
    return Policy(
        deadline=math.inf if kind == "lockstep" else rng.choice((0.1, 0.3, 1.0)),
        late="gate" if kind == "gate" else "drop",
        quorum=1 if kind == "quorum" or rng.random() < 0.2 else 0,
        grace=0.02,
        max_age=rng.choice((1, 2)),
    )


def _of_coordinator(rng: random.Random) -> Strike:
    if rng.random() < 0.7:
        name = rng.choice(failpoints.COORDINATOR)
        nth = rng.choice((1, 1, 2, 3))
    else:
        name = f"serve {rng.choice(KINDS)}"
        nth = rng.choice((1, 2, 4, 8))
    how: How = "stop" if rng.random() < 0.15 else "kill"
    return Strike(f"{name}.{rng.choice(('before', 'after'))}", nth, how)


def _of_worker(rng: random.Random, worker: str) -> tuple[Strike, ...]:
    found: list[Strike] = []
    while rng.random() < 0.35:
        if rng.random() < 0.5:
            name = rng.choice(failpoints.WORKER)
        else:
            name = f"ask {rng.choice(KINDS)}"
        hows: list[How] = ["kill", "kill", "twin", "stop"]
        if worker != "w0":  # who always comes back, so that the run ends
            hows += ["gone", "replace"]
        how = rng.choice(hows)
        nth = rng.choice((1, 1, 2, 3))
        found.append(Strike(f"{name}.{rng.choice(('before', 'after'))}", nth, how))
    return tuple(found)


def _trouble(rng: random.Random, workers: tuple[str, ...]) -> Trouble:
    # Most of them where most can go wrong.
    kinds = (*KINDS, "announce", "patch", "commit", "commit")
    return Trouble(
        rng.choice(workers),
        rng.choice(kinds),
        rng.choice((1, 1, 2, 3)),
        rng.choice(LINK),
    )
