"""Bytes that workers read of a bucket: only they know, so they say it."""

from spheroid_jax.transport.bucket.layout import Moved
from spheroid_jax.transport.coordinator_api import CoordinatorAPI


class Tally:
    """Counts what workers say, each byte once; of one start of a coordinator."""

    def __init__(self, coordinator: CoordinatorAPI, epoch: str) -> None:
        """Nothing was read in ``epoch`` yet."""
        self._coordinator, self._epoch = coordinator, epoch
        self._known: dict[tuple[str, str], int] = {}

    def heard(self, worker: str, session: str, moved: Moved | None, size: int) -> None:
        """A message was read.

        Args:
          worker: whose.
          session: of the worker, registered.
          moved: what it says; sums, of which an older one may be read later.
          size: the message's bytes.
        """
        down = 0
        if moved is not None and moved.epoch == self._epoch:
            before = self._known.get((worker, session), 0)
            down = max(0, moved.down - before)
            self._known[worker, session] = before + down
        self._coordinator.add_bytes(worker, down=down, up=size)
