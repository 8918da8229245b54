"""What a ledger holds: its rows, its tables, and the way from one to the other."""

import json
import math
import operator
import sqlite3
from typing import Any, NamedTuple

from spheroid_jax.transport.database import Database, Step

VERSION = 2  # of the tables
SCHEMA = {
    "notes": "CREATE TABLE notes (key TEXT PRIMARY KEY, value TEXT, proof BLOB)"
    " WITHOUT ROWID",
    "tokens": "CREATE TABLE tokens (name TEXT PRIMARY KEY COLLATE NOCASE, sha256 TEXT,"
    " added REAL, revoked REAL, proof BLOB) WITHOUT ROWID",
    "updates": "CREATE TABLE updates (name TEXT PRIMARY KEY, worker TEXT,"
    " block INTEGER, replica INTEGER, round INTEGER, applies_in INTEGER,"
    " bytes INTEGER, norm REAL, loss REAL, proof BLOB, UNIQUE (worker, round),"
    " UNIQUE (block, replica, round)) WITHOUT ROWID",
    "rounds": "CREATE TABLE rounds (round INTEGER PRIMARY KEY, facts TEXT, proof BLOB)",
    "evaluations": "CREATE TABLE evaluations (round INTEGER PRIMARY KEY, losses TEXT,"
    " proof BLOB)",
}


class AcceptedUpdate(NamedTuple):
    """An update that was promised to be applied.

    Attributes:
      name: of the upload, as of :func:`spheroid_jax.transport.protocol.upload_name`.
      worker: who sent it.
      block: that it is of.
      replica: the slot's, within the block.
      round: whose model it was trained from.
      applies_in: the round that it is aggregated in.
      bytes: of its file.
      norm: of the pseudo-gradient.
      loss: mean of the local phase.
    """

    name: str
    worker: str
    block: int
    replica: int
    round: int
    applies_in: int
    bytes: int
    norm: float
    loss: float

    @property
    def age(self) -> int:
        """Rounds between the model that it started from and the one it changes."""
        return self.applies_in - self.round


class TokenRow(NamedTuple):
    """What is known of a token.

    Attributes:
      sha256: its digest, hexadecimal.
      added: when, seconds since 1970.
      revoked: when; None while it is valid.
    """

    sha256: str
    added: float
    revoked: float | None


class RoundRow(NamedTuple):
    """A round that was closed, and what there is to say of it (JSON)."""

    round: int
    facts: Any


class Duplicate(ValueError):
    """Another update has the place of this one.

    Attributes:
      which: ``name`` (it is the same upload), ``worker`` (has another one in that
        round), ``slot`` (was trained by another worker), ``old`` (its round is before
        all that is remembered, so it might have been here).
      other: what has the place; None for ``old``.
    """

    def __init__(self, message: str, which: str, other: AcceptedUpdate | None):
        super().__init__(message)
        self.which, self.other = which, other


_LOSSES = "note.ce"  # where version 1 kept the losses of all evaluations


def _with_evaluations(file: Database, db: sqlite3.Connection) -> None:
    """Version 1 kept the losses of all evaluations in one note, anew at each."""
    db.execute(SCHEMA["evaluations"])
    _move_losses(file, db)


def _move_losses(file: Database, db: sqlite3.Connection) -> None:
    query = "SELECT * FROM notes WHERE key = ?"
    for row in db.execute(query, (_LOSSES,)).fetchall():
        for point in json.loads(file.proven(row)[1]):
            losses = {name: loss for name, loss in point.items() if name != "round"}
            file.put(db, "evaluations", (point["round"], json.dumps(losses)))
    db.execute("DELETE FROM notes WHERE key = ?", (_LOSSES,))


def take_up_losses(file: Database) -> None:
    """Those that a program of version 1 has written after another one brought the
    tables up, such as a coordinator at work while a token was added by a new release.
    """
    if file.rows("SELECT * FROM notes WHERE key = ?", (_LOSSES,)):
        with file.transaction() as db:
            _move_losses(file, db)


STEPS = {
    1: Step({k: v for k, v in SCHEMA.items() if k != "evaluations"}, _with_evaluations)
}


def update_row(update: AcceptedUpdate) -> tuple[Any, ...]:
    """A row of plain types: SQLite would keep others as they lie in memory.

    Raises:
      ValueError: if a number isn't a count, or the update is older than its model.
    """
    counts: dict[str, Any] = {}
    for field in ("block", "replica", "round", "applies_in", "bytes"):
        value = operator.index(getattr(update, field))
        if not 0 <= value < 2**63:
            raise ValueError(f"{field}={value} of {update.name} isn't a count")
        counts[field] = value
    if update.applies_in < update.round:
        raise ValueError(
            f"applies_in={update.applies_in} of {update.name} is before its round"
        )
    counts |= {"norm": float(update.norm), "loss": float(update.loss)}
    return tuple(update._replace(**counts))


def update_of(row: tuple[Any, ...]) -> AcceptedUpdate:
    """An update from its row; SQLite keeps NaN as NULL."""
    *rest, norm, loss = row
    norms = (math.nan if value is None else value for value in (norm, loss))
    return AcceptedUpdate(*rest, *norms)


def plain_json(key: str, value: Any) -> str:
    """A value as JSON text; ``key`` names it in the error if it can't be."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key}: not plain JSON ({error})") from error
