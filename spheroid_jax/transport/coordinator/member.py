"""A worker as the coordinator knows it: what it says, has, and has done."""

import dataclasses

from spheroid_jax.transport.coordinator.sessions import Sessions

PHASES = ("fetch", "train", "send", "wait")


@dataclasses.dataclass
class Member:
    """A worker of the present or of the past.

    Attributes:
      name: that of its token.
      order: in which it joined.
      sessions: its processes, and which of them speaks for it.
      heard: whether one has spoken since the coordinator was started.
      seen: when it gave a sign of life, by the coordinator's clock.
      came: when a process of it that hasn't asked for work yet did; None: there is
        none.
      ready: whether its process has asked for work; before, it loads and compiles.
      live: whether it holds a lease.
      told: whether it has left, or heard that the run is over.
      doing: what it said.
      working: round of the work that it was given and hasn't delivered; -1 for none.
      after: newest round that it said it is through with, delivered or not.
      missing: rounds that closed without its slot since anything of it was accepted.
      failed: rounds in a row in which it had no update that may touch the model.
      judged: the newest of these; -1 for none.
      reason: why the newest had none.
      phases: seconds by phase, over all its rounds.
    """

    name: str
    order: int
    sessions: Sessions = dataclasses.field(default_factory=Sessions)
    heard: bool = False
    seen: float = 0.0
    came: float | None = None
    ready: bool = False
    live: bool = False
    told: bool = False
    device: str = ""
    doing: str = "waiting"
    working: int = -1
    after: int = -1
    done: int = -1
    missing: int = 0
    failed: int = 0
    judged: int = -1
    reason: str = ""
    accepted: int = 0
    late: int = 0
    rejected: int = 0
    age_sum: int = 0
    down: int = 0
    up: int = 0
    phases: dict[str, float] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(PHASES, 0.0)
    )

    def fail(self, round_: int, why: str) -> None:
        """It has no update of a round; that counts once, whatever it tries again."""
        if round_ > self.judged:
            self.judged = round_
            self.failed += 1
        self.reason = why
