"""Numbers that a report needs of a run between processes, from its summary alone."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Summary = Mapping[str, Any]

FLOAT = 4  # bytes
LAYERS = 4  # of a block, in the published runs


class Phases(NamedTuple):
    """Where the time of the rounds went: seconds, a worker's mean over the run.

    ``rounds`` is the sum of the others: from the opening of every round to when its
    checkpoint was on disk.
    """

    train: float
    fetch: float
    send: float
    closing: float
    wait: float
    rounds: float


class SetUp(NamedTuple):
    """What the bytes of a published run tell of it, by our arithmetic."""

    workers: int
    rounds: int
    width: int

    @property
    def part_params(self) -> int:
        """Parameters of a block of ``LAYERS`` layers and of the interface."""
        d = self.width
        return LAYERS * (12 * d * d + 13 * d) + 2 * d * d + 355 * d

    @property
    def moved(self) -> int:
        """Bytes of float32 parts, to every worker and back, in every round."""
        return moved(self.workers, self.rounds, self.part_params)


PUBLISHED: Mapping[str, SetUp] = {
    "same_node": SetUp(6, 16, 512),
    "public_ip": SetUp(3, 12, 1024),
}


def moved(workers: int, rounds: int, part_params: int) -> int:
    """Bytes of float32 parts, to every worker and back, in every round."""
    return 2 * workers * rounds * part_params * FLOAT


def rounds_of(summary: Summary) -> Sequence[Mapping[str, Any]]:
    """The coordinator's records of the rounds."""
    rounds: Sequence[Mapping[str, Any]] = summary["rounds_log"]
    return rounds


def total(summary: Summary, way: str) -> int:
    """Bytes ``up`` from or ``down`` to all workers, registering included."""
    return sum(member[way] for member in summary["members"].values())


def ce_ends(summary: Summary, ce: str = "ce_chain") -> tuple[float | None, float]:
    """Before the first round, and after the last one evaluated."""
    points = summary["ce"]
    first = points[0][ce] if points[0]["round"] == 0 else None
    return first, points[-1][ce]


def participation(summary: Summary) -> tuple[int, int, int]:
    """Updates in time, later ones that counted, and those there were slots for."""
    rounds = rounds_of(summary)
    timely, heard, expected = (
        sum(r[key] for r in rounds) for key in ("timely", "heard", "expected")
    )
    return timely, heard - timely, expected


def phases(summary: Summary) -> Phases:
    """Where the time went."""
    members = summary["members"].values()
    count = max(1, len(members))
    train, fetch, send = (
        sum(m["phases"][name] for m in members) / count
        for name in ("train", "fetch", "send")
    )
    rounds = sum(r["seconds"] for r in rounds_of(summary))
    closing = sum(r["closing_seconds"] for r in rounds_of(summary))
    wait = max(0.0, rounds - train - fetch - send - closing)
    return Phases(train, fetch, send, closing, wait, rounds)


def chunks(
    records: Sequence[Mapping[str, Any]], most: int
) -> list[Sequence[Mapping[str, Any]]]:
    """Records in at most so many runs of one length; the last may be shorter."""
    size = max(1, -(-len(records) // most))
    return [records[i : i + size] for i in range(0, len(records), size)]
