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
from spheroid_jax.transport.coordinator.board import Board, Settings
from spheroid_jax.transport.coordinator.desk import Desk
from spheroid_jax.transport.coordinator.history import History
from spheroid_jax.transport.coordinator.intake import Intake, OpenRound
from spheroid_jax.transport.coordinator.members import Members
from spheroid_jax.transport.coordinator.model import Arrival, Model
from spheroid_jax.transport.ledger import AcceptedUpdate, Ledger, LedgerError
from spheroid_jax.transport.tokens import Tokens
from spheroid_jax.transport.updates import NormBound

METHOD = "blocktrain"
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
        members.last_trained = ledger.noted("last_trained", members.last_trained)
        history = History(ledger.rounds(), ledger.noted("ce", []), model.round)
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
        self._held = ledger.noted("held", {"round": -1, "slots": {}})
        if model.round < settings.rounds:
            members.recall(self._held["slots"], clock())
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
        if self._held["round"] != board.round:
            board.members.reassign()
        board.opened = board.now()
        board.enter("open")

    async def _until_closed(self) -> str:
        """Returns ``close`` when the round is to be closed, or ``stop``."""
        board = self.board
        while not self._stopping.is_set():
            now, seen = board.now(), board.version
            for member in board.members.expire(now):
                board.problem(f"{member.name} is gone: no sign of life")
                board.tell()
            board.fill()
            await self._note_held()
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
                        board.problem(f"round {board.round}: nobody has an update")
                if wake <= now:
                    return "close"
                wake = min(wake, board.members.next_expiry())
            if board.version == seen:  # or there was news meanwhile
                await board.news(wake - now)
        return "stop"

    async def _close(self) -> None:
        board, settings = self.board, self.board.settings
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
        facts = self._facts(updates, board.now() - board.opened, board.now() - began)
        board.round = done
        board.members.count_missing(set(board.heard))
        self.parts = await self._in_thread(lambda: self._model.publish(self.published))
        await self._write_down(updates, facts)
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

    def _facts(
        self, updates: list[AcceptedUpdate], seconds: float, closing: float
    ) -> dict[str, Any]:
        """What there is to say of a round."""
        settings = self.board.settings
        ages = [u.age for u in updates]
        return {
            "seconds": round(seconds, 3),
            "closing_seconds": round(closing, 3),
            "heard": len(updates),
            "timely": sum(age == 0 for age in ages),
            "expected": settings.blocks * settings.replicas,
            "blocks": np.bincount(
                np.array([u.block for u in updates], int), minlength=settings.blocks
            ).tolist(),
            "ages": ages,
            "age": float(np.mean(ages)) if ages else 0.0,
            "loss": float(np.mean([u.loss for u in updates])) if updates else None,
            **self.board.history.take_bytes(),
        }

    async def _catch_up(self) -> None:
        """Writes down what a kill right after a checkpoint has cut off."""
        board, done = self.board, self.board.round
        if done == 0:
            return
        known = [r for r in board.history.rounds if r["round"] == done]
        if not known:
            updates = await asyncio.to_thread(self._ledger.accepted, done - 1)
            known = [self._facts(updates, 0.0, 0.0)]
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
        board, ledger = self.board, self._ledger
        for update in updates:
            board.members.last_trained[update.block] = board.round - 1
            board.members.updates[update.block] += 1
        board.history.add(board.round, facts)
        notes = {
            "members": board.members.counts(),
            "last_trained": board.members.last_trained,
            "bounds": self._bounds.state(),
            "seconds": board.seconds,
            "round": board.round,
        }

        def write() -> None:
            ledger.record_round(board.round, facts)
            for key, value in notes.items():
                ledger.note(key, value)

        try:
            await asyncio.to_thread(write)
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
        board = self.board
        seconds = board.seconds
        if due and losses is None:
            try:
                losses = await self._in_thread(self._model.evaluate)
            except Exception as error:  # whatever JAX raises: the run is worth more
                board.problem(f"round {number} isn't evaluated: {error}")
        record = {
            "round_seconds": facts["seconds"],
            "train_loss": facts["loss"],
            **{k: facts[k] for k in ("heard", "timely", "expected", "age")},
            **{k: facts[k] for k in ("bytes_up", "bytes_down", "closing_seconds")},
            **(losses or {}),
        }
        if losses is not None:
            said = ", ".join(
                f"CE_{n.removeprefix('ce_')} {x:.3f}" for n, x in losses.items()
            )
            board.say(f"after round {number}: {said} nats per byte on validation")
            board.history.ce.append({"round": number, **losses})
        step = number * board.settings.local_steps
        try:
            await asyncio.to_thread(
                self._log.write, METHOD, number, record, step=step, seconds=seconds
            )
        except OSError as error:
            board.problem(f"metrics of round {number} not written: {error.strerror}")
        if losses is not None:  # last: what isn't in here is done again
            try:
                await asyncio.to_thread(self._ledger.note, "ce", board.history.ce)
            except LedgerError as error:
                board.problem(str(error))
        board.tell()

    async def _note_held(self) -> None:
        """Who holds what, so that after a restart nobody is forgotten in a round."""
        board = self.board
        slots = {name: list(slot) for name, slot in board.members.held.items()}
        held = {"round": board.round, "slots": slots}
        if held == self._held:
            return
        self._held = held
        try:
            await asyncio.to_thread(self._ledger.note, "held", held)
        except LedgerError as error:
            board.problem(str(error))

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


def round_line(number: int, rounds: int, facts: dict[str, Any]) -> str:
    """A closed round in a line for the operator."""
    late = facts["heard"] - facts["timely"]
    moved = (facts["bytes_up"] + facts["bytes_down"]) / 1e6
    return (
        f"round {number}/{rounds}: {facts['heard']} updates"
        f"{f', {late} of them late' if late else ''}, {facts['seconds']:.1f} s, "
        f"{moved:.1f} MB"
    )
