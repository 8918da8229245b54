"""Proofs that a worker was given its work: nobody sends updates of another one's."""

import hashlib
import hmac
import os

from spheroid_jax.transport.assignment import Slot
from spheroid_jax.transport.ledger import Ledger
from spheroid_jax.transport.protocol import ProtocolError, Upload

_KEY = "ticket_key"


class Tickets:
    """Tickets of one run; those of before a restart are good after it."""

    def __init__(self, ledger: Ledger) -> None:
        """Uses the run's secret, which is drawn once."""
        found = ledger.noted(_KEY)
        if found is None:
            found = os.urandom(32).hex()
            ledger.note(_KEY, found)
        self._secret = bytes.fromhex(str(found))

    def of(self, worker: str, round_: int, slot: Slot) -> str:
        """The ticket of this work."""
        text = f"{worker}|{round_}|{slot.block}|{slot.replica}"
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

    def check(self, worker: str, upload: Upload) -> None:
        """Raises ProtocolError unless the worker was given this work."""
        slot = Slot(upload.block, upload.replica)
        wanted = self.of(worker, upload.round, slot).encode()
        if not hmac.compare_digest(wanted, upload.ticket.encode(errors="replace")):
            raise ProtocolError(
                f"{worker} wasn't given block {upload.block}, replica "
                f"{upload.replica} in round {upload.round + 1}: ask for work first",
                status=403,
                code="forbidden",
            )
