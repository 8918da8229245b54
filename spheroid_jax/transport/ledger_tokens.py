"""Who may work for a run: the part of its ledger that other processes change."""

import re
import time
from collections.abc import Callable

from spheroid_jax.transport.database import Database, LedgerError
from spheroid_jax.transport.ledger_rows import TokenRow
from spheroid_jax.transport.protocol import NAME

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(NAME)


class TokenTable:
    """Tokens by name; a part of :class:`~spheroid_jax.transport.ledger.Ledger`."""

    _file: Database

    def add_token(
        self,
        name: str,
        sha256: str,
        *,
        replace: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Lets the token with this digest in, under ``name``.

        Args:
          name: as of :data:`spheroid_jax.transport.protocol.NAME`.
          sha256: hexadecimal.
          replace: whether a valid token of that name gives way.
          now: seconds since 1970.

        Raises:
          LedgerError: if the name has a valid token, or one that differs in case only
            is taken: names become those of files.
        """
        if not _NAME.match(name):
            raise ValueError(
                f"name={name!r} isn't one: letters, digits, and _.- inside"
            )
        if not _SHA256.fullmatch(sha256):
            raise ValueError(f"sha256={sha256!r} isn't one: give 64 hexadecimal digits")
        with self._file.transaction() as db:
            query = "SELECT * FROM tokens WHERE name = ?"
            for row in map(self._file.proven, db.execute(query, (name,))):
                taken, _, _, revoked = row
                if taken != name:
                    raise LedgerError(
                        f"{name} differs from {taken} in capitals only, and is a "
                        "file's name: choose another"
                    )
                if revoked is None and not replace:
                    raise LedgerError(
                        f"{name} has a token: revoke it first, or replace it"
                    )
            self._file.put(db, "tokens", (name, sha256, float(now()), None))

    def revoke(self, name: str, *, now: Callable[[], float] = time.time) -> bool:
        """Shuts the token of ``name`` out; False if it was before.

        Raises:
          LedgerError: if there is none.
        """
        with self._file.transaction() as db:
            query = "SELECT * FROM tokens WHERE name = ?"
            rows = [self._file.proven(row) for row in db.execute(query, (name,))]
            rows = [row for row in rows if row[0] == name]
            if not rows:
                raise LedgerError(f"{name!r} has no token: look the names up")
            ((_, sha256, added, revoked),) = rows
            if revoked is not None:
                return False
            self._file.put(db, "tokens", (name, sha256, added, float(now())))
            return True

    def tokens(self) -> dict[str, TokenRow]:
        """{name: its token}, by name; never waits for a write of this process."""
        rows = self._file.rows_apart("SELECT * FROM tokens ORDER BY name")
        return {name: TokenRow(*rest) for name, *rest in rows}

    def data_version(self) -> int:
        """Another number after any process has written; cheap to ask."""
        return self._file.data_version()
