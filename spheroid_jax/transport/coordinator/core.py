"""The coordinator: opens rounds, waits, closes them.

    waiting -> open -> closing -> open -> ... -> finished
                  \\-> draining (asked to stop)

A round is done when its checkpoint is on disk, and not before: every accepted update
says in which round it is to be applied, so that after a crash, at any moment, what has
been applied and what has not is read off the newest checkpoint.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from spheroid_jax.checkpoints import CheckpointError
from spheroid_jax.reports.log import MetricsLog
from spheroid_jax.transport.closing import closes_at
from spheroid_jax.transport.coordinator.board import TRIES, Board, Settings
from spheroid_jax.transport.coordinator.books import METHOD, Books, round_line
from spheroid_jax.transport.coordinator.desk import Desk
from spheroid_jax.transport.coordinator.history import History
from spheroid_jax.transport.coordinator.intake import Intake, OpenRound
from spheroid_jax.transport.coordinator.members import Members
from spheroid_jax.transport.coordinator.model import Arrival, Model
from spheroid_jax.transport.coordinator.revoking import watch_tokens
from spheroid_jax.transport.ledger import AcceptedUpdate, Ledger, LedgerError
from spheroid_jax.transport.tokens import Tokens
from spheroid_jax.transport.updates import NormBound

_RETRY_SECONDS = 5.0  # between tries to save on a disk that refuses


class Coordinator(Desk):
    """A run's coordinator; its fronts see a
    :class:`~spheroid_jax.transport.coordinator_api.CoordinatorAPI`.
    """

    def __init__(
        self,
        settings: Settings,
        model: Model,
        ledger: Ledger,
        directory: Path,
        log: MetricsLog,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = print,
    ) -> None:
        """Takes up the run that ``model`` and ``ledger`` hold.

        Args:
          settings: what to do.
          model: restored, or fresh.
          ledger: of the same run.
          directory: where accepted updates are kept.
          log: metrics of the rounds.
          clock: seconds that never go back.
          say: prints a line for the operator.
        """
        self._model, self._ledger, self._log = model, ledger, log
        self._bounds = NormBound()
        self._bounds.restore(ledger.noted("bounds", {}))
        members = Members(settings.blocks, settings.replicas, settings.lease)
        members.recount(ledger.noted("members", {}))
        members.restore(ledger.noted("sessions", {}))
        members.last_trained = ledger.noted("last_trained", members.last_trained)
        history = History(ledger.rounds(), ledger.evaluations(), model.round)
        members.updates = history.updates(settings.blocks)
        board = Board(settings, members, history, clock, say)
        board.before, board.round = ledger.noted("seconds", 0.0), model.round
        log.rewind(METHOD, model.round)
        intake = Intake(
            directory,
            ledger,
            settings.policy,
            model.expected,
            self._bounds,
            model.norms,
            settings.rounds,
            lambda: OpenRound(board.round, board.is_taken),
        )
        super().__init__(board, intake, Tokens(ledger), ledger.run)
        self.parts = model.publish(self.published)
        self._stopping = asyncio.Event()
        self._books = Books(board, ledger, log, self._bounds)
        if model.round < settings.rounds:
            members.recall(self._books.held["slots"], clock())
        self._evaluation: asyncio.Task[None] | None = None
        # JAX and the model's memory belong to one thread.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def run(self) -> str:
        """Goes through the rounds until the run is over, or is asked to stop.

        Returns:
          ``finished`` or ``drained``.

        Raises:
          CheckpointError: asked to stop while the disk refuses a round; what was
            accepted for it is kept.
        """
        board = self.board
        looking = asyncio.create_task(watch_tokens(self))
        try:
            await self._catch_up()
            while board.round < board.settings.rounds:
                self._open()
                if await self._until_closed() == "stop":
                    await self._drain()
                    return "drained"
                await self._close()
            await self._evaluated()
            board.enter("finished", "all rounds are done")
            return "finished"
        finally:
            looking.cancel()
            if self._evaluation is not None:
                await asyncio.wait([self._evaluation])
            self._thread.shutdown()

    def stop(self) -> None:
        """Asks for a graceful end: what was accepted is kept, the run can go on."""
        self._stopping.set()
        self.board.tell()

    def _open(self) -> None:
        board = self.board
        heard = self.intake.heard(board.round)
        board.heard = dict.fromkeys(sorted(heard), board.now())
        if self._books.held["round"] != board.round:
            board.members.reassign()
        board.opened = board.now()
        board.enter("open")

    async def _until_closed(self) -> str:
        """Returns ``close`` when the round is to be closed, or ``stop``."""
        board = self.board
        while not self._stopping.is_set():
            now, seen = board.now(), board.version
            for member in board.members.expire(now):
                board.problem(
                    f"{member.name} starts anew for longer than its lease: its slot is "
                    "free"
                    if board.members.is_starting(member, now)
                    else f"{member.name} is gone: no sign of life"
                )
                board.tell()
            board.fill()
            await self._books.note_moment()
            if why := board.paused():
                board.opened = now
                board.enter("waiting", why)
                wake = board.members.next_expiry()
            else:
                board.enter("open")
                settings = board.settings
                wake = closes_at(settings.policy, board.standing(), settings.blocks)
                if board.hopeless():
                    # Not at once: a run must not be used up in a few seconds.
                    wake = min(wake, board.opened + settings.heartbeat)
                    if wake <= now:
                        said = f"round {board.round + 1}: nobody has an update"
                        board.problem(said)
                if wake <= now:
                    return "close"
                wake = min(wake, board.members.next_expiry())
            if board.version == seen:  # or there was news meanwhile
                await board.news(wake - now)
        return "stop"

    async def _close(self) -> None:
        board, settings = self.board, self.board.settings
        given_up = board.hopeless()
        board.enter("closing")
        board.taken = board.round
        began = board.now()
        await self.intake.settled()
        updates = await asyncio.to_thread(self._ledger.accepted, board.round)
        arrivals = [
            Arrival(self.intake.path(u.name), u.block, u.age, u.worker) for u in updates
        ]
        await self._evaluated()
        for line in await self._in_thread(lambda: self._model.step(arrivals)):
            board.problem(line)
        done = board.round + 1
        due, losses = self._is_due(done), None
        if due and settings.keep_best:
            losses = await self._in_thread(self._model.evaluate)
        age = float(np.mean([u.age for u in updates])) if updates else 0.0
        await self._save(losses, age)
        facts = self._books.facts(
            updates,
            board.now() - board.opened,
            board.now() - began,
            given_up=given_up,
        )
        board.round = done
        board.members.count_missing(set(board.heard))
        self.parts = await self._in_thread(lambda: self._model.publish(self.published))
        await self._write_down(updates, facts)
        if board.history.empty == TRIES and not given_up:
            board.problem(
                f"nothing came in time in {TRIES} rounds in a row: raise "
                "network.deadline, or see to the workers"
            )
        board.say(round_line(done, settings.rounds, facts))
        self._evaluation = asyncio.create_task(self._record(done, facts, losses, due))

    async def _save(self, losses: dict[str, float] | None, age: float) -> None:
        """Saves the step, and tries again for as long as the disk refuses."""
        metric = None if losses is None else losses["ce_chain"]
        while True:
            try:
                await self._in_thread(lambda: self._model.save(metric=metric, age=age))
                self.board.stuck = False
                return
            except CheckpointError as error:
                if self._stopping.is_set():
                    raise
                self.board.stuck = True
                self.board.problem(f"{error}; trying again")
                self.board.enter("closing", f"can't save: {error}")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_SECONDS):
                        await self._stopping.wait()

    async def _catch_up(self) -> None:
        """Writes down what a kill right after a checkpoint has cut off."""
        board, done = self.board, self.board.round
        if done == 0:
            return
        known = [r for r in board.history.rounds if r["round"] == done]
        if not known:
            updates = await asyncio.to_thread(self._ledger.accepted, done - 1)
            known = [self._books.facts(updates)]
            await self._write_down(updates, known[0])
        evaluated = any(point["round"] == done for point in board.history.ce)
        if self._is_due(done) and not evaluated:
            await asyncio.to_thread(self._log.rewind, METHOD, done - 1)
            self._evaluation = asyncio.create_task(
                self._record(done, known[0], None, True)
            )

    def _is_due(self, number: int) -> bool:
        settings = self.board.settings
        return number % settings.eval_every == 0 or number == settings.rounds

    async def _write_down(
        self, updates: list[AcceptedUpdate], facts: dict[str, Any]
    ) -> None:
        """What a restart wants to know; none of it decides what has been applied."""
        board = self.board
        try:
            await self._books.close(updates, facts)
            await self.intake.forget(board.round)
        except (LedgerError, OSError) as error:
            board.problem(f"{error}; the round is saved all the same")

    async def _record(
        self,
        number: int,
        facts: dict[str, Any],
        losses: dict[str, float] | None,
        due: bool,
    ) -> None:
        """Writes the metrics of a round, with its losses where they are due."""
        if due and losses is None:
            try:
                losses = await self._in_thread(self._model.evaluate)
            except Exception as error:  # whatever JAX raises: the run is worth more
                self.board.problem(f"round {number} isn't evaluated: {error}")
        await self._books.evaluated(number, facts, losses)

    async def _evaluated(self) -> None:
        if self._evaluation is not None:
            await self._evaluation
            self._evaluation = None

    async def _drain(self) -> None:
        """Lets uploads end that are on their way; the round itself stays open."""
        board = self.board
        board.enter("draining", "asked to stop")
        ends = board.now() + board.settings.drain
        while any(m.doing == "sending" for m in board.members.live()):
            if (left := ends - board.now()) <= 0:
                break
            await board.news(min(left, 1.0))
            board.members.expire(board.now())
        await self.intake.settled()

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)
