"""What a run's ledger and log are told: rounds, losses, who holds what.

None of it decides what has been applied; that the newest checkpoint alone tells.
"""

import asyncio
from typing import Any

import numpy as np

from spheroid_jax.reports.log import MetricsLog
from spheroid_jax.transport.coordinator.board import Board
from spheroid_jax.transport.ledger import AcceptedUpdate, Ledger, LedgerError
from spheroid_jax.transport.updates import NormBound

METHOD = "blocktrain"


class Books:
    """Writes down what a restart, or a reader, wants to know."""

    def __init__(
        self, board: Board, ledger: Ledger, log: MetricsLog, bounds: NormBound
    ) -> None:
        """Takes up the books of a run."""
        self._board, self._ledger, self._log = board, ledger, log
        self._bounds = bounds
        self.held = ledger.noted("held", {"round": -1, "slots": {}})
        self._sessions = ledger.noted("sessions", {})

    def facts(
        self,
        updates: list[AcceptedUpdate],
        seconds: float = 0.0,
        closing: float = 0.0,
        *,
        given_up: bool = False,
    ) -> dict[str, Any]:
        """What there is to say of a round.

        Args:
          updates: that it has aggregated.
          seconds: from its opening to its end.
          closing: those of them in which it took nothing any more.
          given_up: whether nobody there could have an update any more.
        """
        settings = self._board.settings
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
            "given_up": given_up,
            **self._board.history.take_bytes(),
        }

    async def close(self, updates: list[AcceptedUpdate], facts: dict[str, Any]) -> None:
        """A round is done, and the board is at the next one.

        Raises:
          LedgerError: it can't be written.
        """
        board, ledger = self._board, self._ledger
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
        await asyncio.to_thread(ledger.record_round, board.round, facts, notes)

    async def evaluated(
        self, number: int, facts: dict[str, Any], losses: dict[str, float] | None
    ) -> None:
        """Metrics of a round, with its losses if it was evaluated."""
        board = self._board
        seconds = board.seconds
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
                await asyncio.to_thread(self._ledger.record_losses, number, losses)
            except LedgerError as error:
                board.problem(str(error))
        board.tell()

    async def note_moment(self) -> None:
        """Who holds what and who speaks, so that after a restart nobody is forgotten.

        Nor does a process speak again that a newer one has ousted.
        """
        board = self._board
        slots = {name: list(slot) for name, slot in board.members.held.items()}
        held = {"round": board.round, "slots": slots}
        sessions = board.members.sessions()
        try:
            if held != self.held:
                self.held = held
                await asyncio.to_thread(self._ledger.note, "held", held)
            if sessions != self._sessions:
                self._sessions = sessions
                await asyncio.to_thread(self._ledger.note, "sessions", sessions)
        except LedgerError as error:
            board.problem(str(error))


def round_line(number: int, rounds: int, facts: dict[str, Any]) -> str:
    """A closed round in a line for the operator."""
    late = facts["heard"] - facts["timely"]
    moved = (facts["bytes_up"] + facts["bytes_down"]) / 1e6
    return (
        f"round {number}/{rounds}: {facts['heard']} updates"
        f"{f', {late} of them late' if late else ''}, {facts['seconds']:.1f} s, "
        f"{moved:.1f} MB"
    )
