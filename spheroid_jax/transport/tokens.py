"""Bearer tokens: 256 random bits each, known to the coordinator by their digest only.

A digest needs no salt and no slow hash here. Both are against guessing: of passwords,
which people choose from few. Nobody guesses 256 random bits, and no table of digests
can hold them.
"""

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

from spheroid_jax.transport.ledger import Ledger, TokenRow

# Of a run's directory: where its tokens are kept.
LEDGER = Path("exchange", "ledger.db")
# By which a token that leaked into a log or a repository is recognised.
PREFIX = "spheroid_"
# Seconds for which a revocation by another process may go unseen.
REFRESH_SECONDS = 0.25


def mint() -> tuple[str, str]:
    """Returns a new token, for the worker alone, and its digest, for the ledger."""
    token = PREFIX + secrets.token_urlsafe(32)
    return token, digest(token)


def digest(token: str) -> str:
    """The SHA-256 of a token, hexadecimal; of any text, be it no token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Tokens:
    """Who is who, by the tokens of a ledger; safe for threads.

    Args:
      ledger: whose tokens other processes may change.
      clock: monotonic seconds.
    """

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.monotonic):
        self._ledger = ledger
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: dict[str, TokenRow] = {}
        self._version: int | None = None
        self._looked = -float("inf")

    def name_of(self, token: str) -> str | None:
        """The name that goes with a valid token; None for any other text.

        How long it takes doesn't depend on how much of a token is right, or on whose
        it is.

        Raises:
          LedgerError: if the ledger can't be read, and it is time to.
        """
        found = digest(token)
        name = _match(found, self._current(REFRESH_SECONDS))
        # A token of this very moment is worth another look.
        return name or _match(found, self._current(0.0))

    def digests(self) -> dict[str, str | None]:
        """{name: the digest of its token}, None where it is revoked; of this moment.

        Raises:
          LedgerError: if the ledger can't be read.
        """
        rows = self._current(0.0)
        return {
            n: row.sha256 if row.revoked is None else None for n, row in rows.items()
        }

    def _current(self, old: float) -> dict[str, TokenRow]:
        """Tokens as they were at most ``old`` seconds ago."""
        with self._lock:
            now = self._clock()
            if now - self._looked >= old:
                version = self._ledger.data_version()
                if version != self._version:
                    self._rows = self._ledger.tokens()
                    self._version = version
                self._looked = now
            return self._rows


def _match(found: str, rows: dict[str, TokenRow]) -> str | None:
    name = None
    for candidate, row in rows.items():
        # Compared whatever came before, and to the end.
        same = hmac.compare_digest(found, row.sha256)
        if same and row.revoked is None:
            name = candidate
    return name
