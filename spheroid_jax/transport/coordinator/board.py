"""The moment of a run: which round, who is there, who was heard; and news of it."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

from spheroid_jax.transport.assignment import Slot
from spheroid_jax.transport.closing import Policy, Standing, fate
from spheroid_jax.transport.coordinator.history import History
from spheroid_jax.transport.coordinator.member import Member
from spheroid_jax.transport.coordinator.members import Members

# Rounds in a row that may fail for want of any update that can be taken; no more.
TRIES = 3
_NAMED = 3  # workers, in a line
STATES = ("waiting", "open", "closing", "finished", "draining")


class Settings(NamedTuple):
    """What a coordinator does, as its configuration says.

    Attributes:
      blocks: B.
      replicas: K; there are B x K slots.
      rounds: how many; then the run is over.
      local_steps: H, for the log.
      workers: that must be there before the first round opens.
      policy: when a round closes, and what becomes of late updates.
      heartbeat: seconds between signs of life.
      lease: seconds of silence after which a slot is given away.
      drain: seconds to let uploads end when asked to stop.
      eval_every: rounds between evaluations.
      keep_best: whether the evaluation comes before the checkpoint.
      welcome: what every worker is told: ``config``, ``config_sha256`` and
        ``corpus_sha256`` of :class:`~spheroid_jax.transport.protocol.Registered`.
    """

    blocks: int
    replicas: int
    rounds: int
    local_steps: int
    workers: int
    policy: Policy
    heartbeat: float
    lease: float
    drain: float
    eval_every: int
    keep_best: bool
    welcome: dict[str, Any]


class Board:
    """What the rounds write and the desk reads; of one event loop.

    Attributes:
      round: that is open, or the next one to open; counts from 0.
      state: one of ``STATES``.
      why: for a reader, where the state alone doesn't say it.
      opened: when the round opened, by the clock.
      began: when this coordinator did.
      taken: the newest round whose updates were counted up; it takes no more.
      heard: slots whose update of this round is accepted, and when it was.
      stuck: whether the disk refuses what has to be written.
      version: counts changes that can be seen.
    """

    def __init__(
        self,
        settings: Settings,
        members: Members,
        history: History,
        clock: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        """Nobody is there yet."""
        self.settings, self.members, self.history = settings, members, history
        self.now, self.say = clock, say
        self.round = 0
        self.state, self.why = "waiting", "no worker is there"
        self.opened = self.began = clock()
        self.before = 0.0
        self.taken = -1
        self.heard: dict[Slot, float] = {}
        self.stuck = False
        self.version = 0
        self._news, self._work = asyncio.Event(), asyncio.Event()

    @property
    def seconds(self) -> float:
        """Seconds that the run has taken, over all restarts."""
        return self.before + self.now() - self.began

    def enter(self, state: str, why: str = "") -> None:
        """Goes into a state, if it isn't in it, and tells."""
        if (self.state, self.why) == (state, why):
            return
        if state == "waiting":
            self.say(f"waiting: {why}")
        self.state, self.why = state, why
        self.tell()

    def tell(self, *, work: bool = True) -> None:
        """There is news: wakes whoever waits for some.

        Without ``work`` it is none to those who wait for work: with many of them,
        waking all at every step of each is most of what there is to do.
        """
        self.version += 1
        news, self._news = self._news, asyncio.Event()
        news.set()
        if work:
            news, self._work = self._work, asyncio.Event()
            news.set()

    async def news(self, seconds: float, *, work: bool = False) -> None:
        """Waits for news, or for what may be work for somebody, at most so long."""
        event = self._work if work else self._news
        # Not wait_for: that of Python 3.11 may swallow a cancellation.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(max(seconds, 0.0), 3600.0)):
                await event.wait()

    @property
    def is_taken(self) -> bool:
        """Whether :attr:`round` takes no more updates, being aggregated."""
        return self.taken == self.round

    def wanted(self, round_: int) -> bool:
        """Whether an update of that round can still count."""
        policy, rounds = self.settings.policy, self.settings.rounds
        found = fate(policy, round_, self.round, self.is_taken, rounds)
        return found.verdict == "accepted"

    def behind(self, member: Member) -> bool:
        """Whether a worker is still at an earlier round's update, and may be."""
        return 0 <= member.working < self.round and self.wanted(member.working)

    def standing(self) -> Standing:
        """Of whom the round has heard, and of whom it may yet hear."""
        expected = set()
        for name, slot in self.members.held.items():
            member = self.members.get(name)
            if member.after < self.round and not self.behind(member):
                expected.add(slot)
        slots = frozenset(expected | self.heard.keys())
        return Standing(self.opened, slots, dict(self.heard))

    def through(self) -> set[str]:
        """Workers that have nothing (more) for this round.

        Theirs was rejected, or their loss wasn't a number, if it isn't in.
        """
        return {m.name for m in self.members.live() if m.after >= self.round}

    def hopeless(self) -> bool:
        """Whether all who are there are through with the round and nothing is in."""
        live = {m.name for m in self.members.live()}
        return bool(live) and not self.heard and live == self.through()

    def fill(self) -> None:
        """Gives free slots to those who wait for one."""
        self.members.fill(set(self.heard), self.through())

    def paused(self) -> str:
        """Why no time passes in this round, or nothing."""
        # After a restart some have a lease who haven't been heard of yet.
        live = sum(member.heard for member in self.members.live())
        needed = self.settings.workers
        if self.round == 0 and not self.heard and live < needed:
            return f"{live} of {needed} workers are there{self._coming()}"
        if not live and not self.heard:
            return f"no worker is there{self._coming()}"
        return self.fruitless()

    def _coming(self) -> str:
        starting = self.members.starting(self.now())
        if not starting:
            return ""
        return f", {starting} {'is' if starting == 1 else 'are'} starting"

    def fruitless(self) -> str:
        """Who is there and won't have an update, try what they may; or nothing.

        Rounds are not to be used up by them. One who has failed in so many rounds is
        given up, and after as many rounds that all gave up everybody who is through
        with this one.
        """
        live = self.members.live()
        if self.heard or not live:
            return ""
        tried = self.history.given_up >= TRIES - 1 and self.hopeless()
        if not tried and any(m.failed < TRIES for m in live):
            return ""
        names = [m.name for m in live]
        who = ", ".join(names[:_NAMED])
        if len(names) > _NAMED:
            who += f" and {len(names) - _NAMED} more"
        return (
            f"every update of the last {TRIES} rounds was refused or never came, of "
            f"{who} ({live[0].reason or 'it gave up'}): mend or revoke them; the run "
            "goes on when a worker is started"
        )

    def problem(self, text: str) -> None:
        """Something an operator should know."""
        self.history.problem(text, self.seconds)
        self.say(text)
