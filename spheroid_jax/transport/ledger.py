"""The coordinator's memory: tokens, accepted updates, rounds and small facts, on disk.

Every method returns when what it wrote is on disk, so a coordinator that is killed at
any moment finds all that it has promised. Processes may share the file: tokens are
added and revoked while a coordinator runs.

An update is applied in round ``applies_in``; whether that has happened is not written
here. The newest complete checkpoint alone tells.
"""

import json
import operator
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from spheroid_jax.transport import database
from spheroid_jax.transport.database_errors import LedgerError, damage
from spheroid_jax.transport.ledger_rows import (
    SCHEMA,
    STEPS,
    VERSION,
    AcceptedUpdate,
    Duplicate,
    RoundRow,
    TokenRow,
    plain_json,
    take_up_losses,
    update_of,
    update_row,
)
from spheroid_jax.transport.ledger_tokens import TokenTable

__all__ = [
    "AcceptedUpdate",
    "Duplicate",
    "Ledger",
    "LedgerError",
    "RoundRow",
    "TokenRow",
]

# Rounds for which an update is remembered after its file is gone. More than the
# largest age at which an update may come.
KEEP_ROUNDS = 1000


class Ledger(TokenTable):
    """A ledger on disk; safe for threads. :meth:`open` makes one.

    Attributes:
      path: of the file.
      run: identifies the run, over restarts.
    """

    def __init__(self, path: Path, file: database.Database):
        self.path = path
        self._file = file
        self.run: str = self._internal("run", "")
        if not self.run:
            raise LedgerError(damage(path, "it names no run"))

    @classmethod
    def open(
        cls, path: Path, run: str | None = None, *, create: bool = True
    ) -> "Ledger":
        """Opens the ledger at ``path``, or makes it.

        Args:
          path: of the file; SQLite puts two others beside it.
          run: the run that it must be of, such as the one that checkpoints name; a
            new ledger takes it. None: any, and a new ledger draws one.
          create: whether to make one where there is none.

        Raises:
          LedgerError: if it can't be read or made, is damaged, or is of another
            version or run.
        """
        if create:
            first = json.dumps(run or uuid.uuid4().hex)
            rows = {"notes": [("ledger.run", first)]}
            database.create(path, SCHEMA, VERSION, rows)
        elif not path.exists():
            raise LedgerError(f"there is no ledger {path}: name another run directory")
        file = database.Database(path, SCHEMA, VERSION, STEPS)
        try:
            take_up_losses(file)
            ledger = cls(path, file)
            if run is not None and ledger.run != run:
                raise LedgerError(
                    f"{path} is of run {ledger.run}, not of run {run}: put the right "
                    "one there, or name another run directory"
                )
        except BaseException:
            file.close()
            raise
        return ledger

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Updates.

    def accept(
        self, update: AcceptedUpdate, notes: Mapping[str, Any] | None = None
    ) -> None:
        """Promises that an update will be applied.

        Args:
          update: no two have the same name, worker and round, or slot and round.
          notes: facts that change with it, as of :meth:`note`; all or nothing.

        Raises:
          Duplicate: if another has its place; nothing is written.
          LedgerError: if it can't be written; nothing is.
        """
        row = update_row(update)
        with self._file.transaction() as db:
            self._refuse_duplicates(update)
            self._file.insert(db, "updates", row)
            for key, value in (notes or {}).items():
                self._file.put(db, "notes", (f"note.{key}", plain_json(key, value)))

    def accepted(self, applies_in: int | None = None) -> list[AcceptedUpdate]:
        """Updates of one round, or all; by block, replica, round and worker."""
        low, high = self._internal("forgotten", 0), 2**63 - 1
        if applies_in is not None:
            low, high = max(low, applies_in), applies_in
        rows = self._file.rows(
            "SELECT * FROM updates WHERE applies_in BETWEEN ? AND ? "
            "ORDER BY block, replica, round, worker",
            (low, high),
        )
        return [update_of(row) for row in rows]

    def remembered(self) -> list[AcceptedUpdate]:
        """All that may be in a duplicate's way: :meth:`accepted`, and the forgotten."""
        rows = self._file.rows("SELECT * FROM updates ORDER BY round, worker", ())
        return [update_of(row) for row in rows]

    def find(self, name: str) -> AcceptedUpdate | None:
        """The update of that name, be it forgotten and its file gone.

        So an upload is answered alike however often it is repeated.
        """
        rows = self._file.rows("SELECT * FROM updates WHERE name = ?", (name,))
        return update_of(rows[0]) if rows else None

    def forget(
        self, before_round: int, keep_rounds: int = KEEP_ROUNDS
    ) -> list[AcceptedUpdate]:
        """Drops updates that were applied before a round, and says which.

        They are still in the way of duplicates for ``keep_rounds`` rounds more; what
        is older than that isn't accepted any more.

        Args:
          before_round: of ``applies_in``.
          keep_rounds: more than the largest age of an update.

        Returns:
          What isn't in :meth:`accepted` any more.
        """
        with self._file.transaction() as db:
            gone = [u for u in self.accepted() if u.applies_in < before_round]
            old = self._internal("forgotten", 0)
            horizon = max(self._internal("horizon", 0), before_round - keep_rounds)
            facts = {"forgotten": max(old, before_round), "horizon": horizon}
            for key, value in facts.items():
                self._file.put(db, "notes", (f"ledger.{key}", json.dumps(value)))
            db.execute("DELETE FROM updates WHERE applies_in < ?", (horizon,))
        return gone

    # Small facts, and rounds.

    def note(self, key: str, value: Any) -> None:
        """Keeps a small fact, plain JSON, in the place of an older one."""
        text = plain_json(key, value)
        with self._file.transaction() as db:
            self._file.put(db, "notes", (f"note.{key}", text))

    def noted(self, key: str, default: Any = None) -> Any:
        """The fact under ``key``, or ``default``."""
        return self._note(f"note.{key}", default)

    def record_round(
        self, number: int, facts: Any, notes: Mapping[str, Any] | None = None
    ) -> None:
        """Keeps what there is to say of a round; again, if it was closed again.

        Args:
          number: of the round.
          facts: plain JSON.
          notes: facts that change with it, as of :meth:`note`; all or nothing.
        """
        text = plain_json(f"round {number}", facts)
        with self._file.transaction() as db:
            self._file.put(db, "rounds", (operator.index(number), text))
            for key, value in (notes or {}).items():
                self._file.put(db, "notes", (f"note.{key}", plain_json(key, value)))

    def rounds(self, last: int | None = None) -> list[RoundRow]:
        """All rounds that were recorded, or the last so many, oldest first."""
        limit = -1 if last is None else last
        query = "SELECT * FROM rounds ORDER BY round DESC LIMIT ?"
        rows = self._file.rows(query, (limit,))
        return [RoundRow(number, json.loads(facts)) for number, facts in rows[::-1]]

    def record_losses(self, number: int, losses: Mapping[str, Any]) -> None:
        """Keeps the losses {name: number} of the evaluation after a round."""
        text = plain_json(f"evaluation {number}", dict(losses))
        with self._file.transaction() as db:
            self._file.put(db, "evaluations", (operator.index(number), text))

    def evaluations(self) -> list[dict[str, Any]]:
        """``{"round": number, **losses}`` of every evaluation, oldest first."""
        rows = self._file.rows("SELECT * FROM evaluations ORDER BY round")
        return [{"round": number, **json.loads(text)} for number, text in rows]

    def _refuse_duplicates(self, update: AcceptedUpdate) -> None:
        rows = self._file.rows(
            "SELECT * FROM updates WHERE name = ? OR (worker = ? AND round = ?) "
            "OR (block = ? AND replica = ? AND round = ?)",
            (
                *(update.name, update.worker, update.round),
                *(update.block, update.replica, update.round),
            ),
        )
        others = [update_of(row) for row in rows]
        for other in others:
            if other.name == update.name:
                said = "it was accepted before"
                raise Duplicate(said, "name", other)
        for other in others:
            if other.worker == update.worker:
                said = f"{update.worker} has sent one for round {update.round + 1}"
                raise Duplicate(said, "worker", other)
        for other in others:
            said = f"an update of {other.worker} is there"
            raise Duplicate(said, "slot", other)
        if update.round < self._internal("horizon", 0):
            said = f"round {update.round + 1} is too long ago to be known"
            raise Duplicate(said, "old", None)
        if update.applies_in < (gone := self._internal("forgotten", 0)):
            raise ValueError(
                f"applies_in={update.applies_in} is over: rounds before {gone} have "
                "been applied"
            )

    def _internal(self, key: str, default: Any) -> Any:
        return self._note(f"ledger.{key}", default)

    def _note(self, key: str, default: Any) -> Any:
        rows = self._file.rows("SELECT * FROM notes WHERE key = ?", (key,))
        return json.loads(rows[0][1]) if rows else default
