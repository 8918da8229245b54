"""Looks for tokens that other processes have revoked."""

import asyncio

from spheroid_jax.transport.coordinator.desk import Desk
from spheroid_jax.transport.ledger import LedgerError

_LOOK_SECONDS = 0.5  # between looks


async def watch_tokens(desk: Desk) -> None:
    """Shuts workers out until it is cancelled: no slot waits for a lease to end."""
    said = ""
    while True:
        try:
            desk.shut_out_revoked()
            said = ""
        except LedgerError as error:
            if str(error) != said:
                said = str(error)
                desk.board.problem(said)
        await asyncio.sleep(_LOOK_SECONDS)
