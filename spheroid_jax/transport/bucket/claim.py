"""Whose a prefix is: ``run.json`` says it, and one prefix belongs to one run."""

from collections.abc import Callable

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.errors import BucketError
from spheroid_jax.transport.bucket.layout import Run
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.protocol import ProtocolError, decode, encode

_EVERY = 15  # looks, so that this costs next to nothing


class Claim:
    """Writes a coordinator's ``run.json``, and sees whether it stays there."""

    def __init__(self, store: BlobStore, run: Run, say: Callable[[str], None]) -> None:
        """Nothing is written yet; ``say`` gets a line for the operator."""
        self._store, self._run, self._say = store, run, say
        self._looks = 0
        # Epochs of which there is nothing to say (any more). That of the start before
        # is one: what a store shows may be old for a while.
        self._known = {run.epoch}

    async def take(self) -> None:
        """Writes it over that of an earlier start of the same run.

        Raises:
          BucketError: ``taken``: it is another run's, and nothing was written. Or it
            can't be read or written.
        """
        try:
            found = await self._store.read(layout.RUN)
            there = None if found is None else decode(found.content, Run)
        except (BucketError, ProtocolError) as error:
            if isinstance(error, BucketError) and error.code != "too_large":
                raise
            there = None  # it names no run
        if there is not None and there.run != self._run.run:
            raise BucketError(
                f"{self._store.address.url} holds run {_short(there.run)}, and this is "
                f"run {_short(self._run.run)}: one prefix belongs to one run; take "
                "another --bucket prefix, or delete what is there",
                code="taken",
            )
        if there is not None:
            self._known.add(there.epoch)
        await self._store.put(layout.RUN, encode(self._run))

    async def look(self) -> None:
        """Now and then: says once whose it is now, and writes it if it is missing.

        It isn't written over another's: two would then do so for ever.

        Raises:
          BucketError: it can't be read or written.
        """
        self._looks += 1
        if self._looks % _EVERY:
            return
        found = await self._store.read(layout.RUN)
        if found is None:
            await self._store.put(layout.RUN, encode(self._run))
            return
        try:
            there = decode(found.content, Run)
        except ProtocolError:
            self._tell("", "can't be read as one")
            return
        who = f"is of run {_short(there.run)} now"
        if there.run == self._run.run:
            who = "is of another coordinator of this same run now"
        self._tell(there.epoch, who)

    def _tell(self, epoch: str, what: str) -> None:
        if epoch in self._known:
            return
        self._known.add(epoch)
        self._say(
            f"{self._store.address.url}{layout.RUN} {what}, so workers don't hear this "
            "coordinator: end what else writes there, and delete that object; this "
            "coordinator then writes its own again"
        )


def _short(run: str) -> str:
    """A run as it is told; what others wrote is kept off the terminal."""
    return ascii(run[:8])[1:-1]
