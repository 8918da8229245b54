"""The rounds so far: what was heard, moved and measured, and what went wrong."""

import collections
from collections.abc import Iterable, Mapping
from typing import Any

SHOWN_PROBLEMS, PARTICIPATION_ROUNDS = 50, 20


class History:
    """The rounds so far, and what went wrong in them.

    Attributes:
      rounds: what there is to say of each.
      ce: losses of those that were evaluated.
      problems: the newest lines for an operator.
      empty: rounds since the last one with an update.
      given_up: those of them that ended as nobody there could have one any more.
    """

    def __init__(
        self,
        rounds: Iterable[tuple[int, Mapping[str, Any]]],
        ce: Iterable[Mapping[str, Any]],
        round_: int,
    ) -> None:
        """Takes up the records of a ledger, up to ``round_``."""
        self.rounds = [{"round": n, **facts} for n, facts in rounds if n <= round_]
        self.ce = [dict(point) for point in ce if point["round"] <= round_]
        self.problems: collections.deque[dict[str, Any]] = collections.deque(
            maxlen=SHOWN_PROBLEMS
        )
        self._bytes = {"bytes_up": 0, "bytes_down": 0}
        # Kept up to date: whoever looks at the status, often, doesn't go through all.
        self._total = {
            way: sum(r[f"bytes_{way}"] for r in self.rounds) for way in ("down", "up")
        }
        self._ages = collections.Counter(a for r in self.rounds for a in r["ages"])
        self.empty = self.given_up = 0
        for record in self.rounds:
            self._count(record)

    def add(self, number: int, facts: Mapping[str, Any]) -> None:
        """A round is done."""
        self.rounds.append({"round": number, **facts})
        self._ages.update(facts["ages"])
        self._count(facts)

    def _count(self, facts: Mapping[str, Any]) -> None:
        if facts["ages"]:
            self.empty = self.given_up = 0
        else:
            self.empty += 1
            self.given_up += facts.get("given_up", False)

    def problem(self, text: str, seconds: float) -> None:
        """Something an operator should know; ``seconds`` since the start of the run."""
        self.problems.append({"time": seconds, "text": text})

    def count_bytes(self, down: int, up: int) -> None:
        """Bytes over the wire, seen from the workers."""
        self._bytes["bytes_down"] += down
        self._bytes["bytes_up"] += up
        self._total["down"] += down
        self._total["up"] += up

    def take_bytes(self) -> dict[str, int]:
        """Bytes since the last call."""
        taken, self._bytes = self._bytes, {"bytes_up": 0, "bytes_down": 0}
        return taken

    def total_bytes(self) -> dict[str, int]:
        """Bytes of all rounds, and of the open one."""
        return dict(self._total)

    def staleness(self) -> list[int]:
        """How many updates were applied at which age."""
        return [self._ages[age] for age in range(max(self._ages, default=0) + 1)]

    def updates(self, blocks: int) -> list[int]:
        """How many updates of each block were applied."""
        return [sum(r["blocks"][block] for r in self.rounds) for block in range(blocks)]

    def participation(self, block: int, replicas: int) -> float:
        """Share of a block's slots heard over the last rounds."""
        recent = self.rounds[-PARTICIPATION_ROUNDS:]
        if not recent:
            return 0.0
        return sum(r["blocks"][block] for r in recent) / (len(recent) * replicas)
