"""What the coordinator answers its workers; whichever front they come by."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spheroid_jax.transport.assignment import Slot
from spheroid_jax.transport.coordinator.board import Board
from spheroid_jax.transport.coordinator.intake import Intake
from spheroid_jax.transport.coordinator.member import PHASES, Member
from spheroid_jax.transport.coordinator.status import describe
from spheroid_jax.transport.items.published import Published
from spheroid_jax.transport.protocol import (
    VERSION,
    Heartbeat,
    Item,
    Leave,
    ProtocolError,
    Pulse,
    Register,
    Registered,
    Upload,
    Verdict,
    Work,
    WorkRequest,
)
from spheroid_jax.transport.tokens import Tokens


class Desk:
    """Implements :class:`~spheroid_jax.transport.coordinator_api.CoordinatorAPI`."""

    def __init__(
        self, board: Board, intake: Intake, tokens: Tokens, run_id: str
    ) -> None:
        """Answers for the run ``run_id``, as ``board`` says."""
        self.board, self.intake = board, intake
        self.published = Published()
        self.parts: list[dict[str, Item]] = []
        self._tokens, self._run_id = tokens, run_id
        self._ousted: set[tuple[str, str]] = set()  # workers, and their sessions

    async def register(self, worker: str, request: Register) -> Registered:
        """See :class:`CoordinatorAPI`."""
        if request.protocol != VERSION:
            raise ProtocolError(
                f"the coordinator speaks version {VERSION} of the protocol, the worker "
                f"{request.protocol}: install the same version of spheroid_jax",
                status=409,
                code="version",
            )
        board = self.board
        admitted = self._tokens.digests().get(worker)
        with self._oldest_told(worker, request.session):
            is_new = board.members.register(worker, request, board.now(), admitted)
        if is_new:
            device = board.members.get(worker).device or "unknown device"
            board.say(f"{worker} is here ({device})")
            board.tell()
        return Registered(
            protocol=VERSION,
            run=self._run_id,
            worker=worker,
            lease=board.settings.lease,
            heartbeat=board.settings.heartbeat,
            **board.settings.welcome,
        )

    async def work(self, worker: str, request: WorkRequest) -> Work:
        """See :class:`CoordinatorAPI`."""
        board = self.board
        ends = board.now() + request.wait
        member = self._speaking(worker, request.session, ready=True)
        # Nobody is through with a round that isn't open yet: who says so was there
        # before the run was put back, or would have rounds pass with nothing in them.
        after = request.after if request.after <= board.round else -1
        if member.after != after:
            member.after = after
            self._note_giving_up(member)
            board.tell(work=board.members.held.get(worker) not in board.heard)
        while True:
            work = self._offer(member, after)
            remaining = ends - board.now()
            if work.do != "wait" or remaining <= 0:
                return work
            await board.news(remaining, work=True)
            # Being asked is a sign of life, being about to answer isn't one.
            with self._oldest_told(worker, request.session):
                member = board.members.known(worker, request.session)

    async def heartbeat(self, worker: str, request: Heartbeat) -> Pulse:
        """See :class:`CoordinatorAPI`."""
        busy = request.doing != "waiting"
        if not busy and self._starts(worker, request.session):
            return Pulse(self.board.round, wanted=True)
        member = self._speaking(worker, request.session, ready=busy)
        if busy and member.working < 0 and request.round > member.done:
            member.working = request.round  # given to it before a restart
        for phase in PHASES:
            member.phases[phase] += getattr(request, f"{phase}_seconds")
        if member.doing != request.doing:
            member.doing = request.doing
            self.board.tell(work=False)
        return Pulse(self.board.round, self.board.wanted(request.round))

    async def leave(self, worker: str, request: Leave) -> None:
        """See :class:`CoordinatorAPI`."""
        board = self.board
        if not board.members.speaks(worker, request.session):
            # It registered, and took nothing over.
            board.members.get(worker).came = None
            board.tell()
            return
        member = self._speaking(worker, request.session)
        self._dismiss(member)
        self.board.say(f"{worker} has left")
        self.board.tell()

    async def begin(self, worker: str, request: Upload) -> Verdict | None:
        """See :class:`CoordinatorAPI`."""
        member = self._speaking(worker, request.session, ready=True)
        verdict = self.intake.precheck(worker, request)
        if verdict is not None:
            self._settle(member, request, verdict)
        elif member.doing != "sending":
            member.doing = "sending"
            self.board.tell(work=False)
        return verdict

    async def commit(self, worker: str, request: Upload, path: Path) -> Verdict:
        """See :class:`CoordinatorAPI`."""
        member = self._speaking(worker, request.session, ready=True)
        try:
            verdict, is_new = await self.intake.take(worker, request, path)
        except ProtocolError as error:
            if error.status >= 500 and not self.board.stuck:  # once, not at every try
                self.board.stuck = True
                self.board.problem(f"{worker}'s update isn't accepted: {error}")
                self.board.tell()
            raise
        if is_new:
            self.board.stuck = False
            member.accepted += 1
            member.missing = member.failed = 0
            member.age_sum += verdict.age
            if request.round == verdict.applies_in == self.board.round:
                slot = Slot(request.block, request.replica)
                self.board.heard[slot] = self.board.now()
        self._settle(member, request, verdict)
        return verdict

    def item(self, digest: str) -> Path | None:
        """See :class:`CoordinatorAPI`."""
        return self.published.path(digest)

    def worker_of(self, token: str) -> str | None:
        """See :class:`CoordinatorAPI`."""
        return self._tokens.name_of(token)

    def status(self) -> dict[str, Any]:
        """See :class:`CoordinatorAPI`."""
        return describe(self.board, self._run_id)

    async def changed(self, seen: int, wait: float) -> int:
        """See :class:`CoordinatorAPI`."""
        board = self.board
        ends = board.now() + wait
        while board.version <= seen and (left := ends - board.now()) > 0:
            await board.news(left)
        return board.version

    def add_bytes(self, worker: str, *, down: int = 0, up: int = 0) -> None:
        """See :class:`CoordinatorAPI`."""
        member = self.board.members.get(worker)
        member.down += down
        member.up += up
        self.board.history.count_bytes(down, up)

    def shut_out_revoked(self) -> None:
        """Frees the slots of workers whose token isn't valid any more.

        What was accepted of them stays.

        Raises:
          LedgerError: the ledger can't be read.
        """
        for member in self.board.members.shut_out(self._tokens.digests()):
            self.board.problem(f"{member.name} is shut out: its token was revoked")
            self.board.tell()

    def _speaking(self, worker: str, session: str, *, ready: bool = False) -> Member:
        board = self.board
        known = board.members.get(worker)
        before = known.live, known.sessions.speaker
        with self._oldest_told(worker, session):
            member = board.members.speaking(worker, session, board.now(), ready=ready)
        if (member.live, session) != before:
            board.tell()
        return member

    def _starts(self, worker: str, session: str) -> bool:
        """Takes up the sign of life of a process that hasn't asked for work yet.

        It takes nothing over: it may still fail, as for a text of its own.
        """
        board = self.board
        with self._oldest_told(worker, session):
            if board.members.speaks(worker, session):
                return False
        if board.members.start(worker, board.now()):
            board.tell()
        return True

    @contextlib.contextmanager
    def _oldest_told(self, worker: str, session: str) -> Iterator[None]:
        """An operator learns, once, that a process is told to end for a newer one."""
        try:
            yield
        except ProtocolError as error:
            if error.code == "superseded" and (worker, session) not in self._ousted:
                self._ousted.add((worker, session))
                self.board.problem(
                    f"an older process of {worker} is told to end: two at a time need "
                    "a token each"
                )
            raise

    def _note_giving_up(self, member: Member) -> None:
        """A worker says that it is through with a round, and has sent nothing."""
        round_ = member.after
        if round_ <= max(member.done, member.judged) or not self.board.wanted(round_):
            return  # it was judged, or merely slow
        if not self.intake.has(member.name, round_):
            member.fail(round_, "nothing was sent, as for a loss that is no number")

    def _offer(self, member: Member, after: int) -> Work:
        board = self.board
        if board.state == "finished":
            self._dismiss(member)
            return Work("stop", why="all rounds are done", round=board.round)
        if board.state != "open":
            return Work("wait", why=board.why or board.state, round=board.round)
        if after >= board.round:
            return Work("wait", why="the round is still open", round=board.round)
        board.fill()
        slot = board.members.held.get(member.name)
        if slot is None:
            return Work("wait", why="a spare: every slot is taken", round=board.round)
        if slot in board.heard:
            return Work("wait", why="the round is still open", round=board.round)
        if (member.working, member.doing) != (board.round, "fetching"):
            member.working, member.doing = board.round, "fetching"
            board.tell(work=False)
        deadline = board.settings.policy.deadline
        left = board.opened + deadline - board.now()
        return Work(
            "train",
            round=board.round,
            block=slot.block,
            replica=slot.replica,
            deadline=None if deadline == float("inf") else max(0.0, left),
            items=self.parts[slot.block],
            ticket=self.intake.ticket(member.name, board.round, slot),
        )

    def _dismiss(self, member: Member) -> None:
        """It goes; a sign of life that is still under way doesn't bring it back."""
        self.board.members.leave(member)
        member.ready, member.told = False, True

    def _settle(self, member: Member, request: Upload, verdict: Verdict) -> None:
        """The worker is told what became of its update; counted once."""
        if member.done < request.round:
            member.done = request.round
            if verdict.verdict in ("late", "stale"):
                member.late += 1
            if verdict.verdict == "rejected":
                member.rejected += 1
                member.fail(request.round, verdict.why)
                self.board.problem(
                    f"rejected the update of {member.name} in round "
                    f"{request.round + 1}: {verdict.why}"
                )
        if member.working <= request.round:
            member.working, member.doing = -1, "waiting"
        self.board.tell(work=verdict.verdict != "accepted")
