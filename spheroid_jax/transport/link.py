"""What a worker needs of an exchange; HTTP and the bucket are two of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from spheroid_jax.transport.protocol import (
    Heartbeat,
    Item,
    Leave,
    Pulse,
    Register,
    Registered,
    Upload,
    Verdict,
    Work,
    WorkRequest,
)

Progress = Callable[[int, int], None]  # bytes that are there, bytes of it all


class LinkError(RuntimeError):
    """An exchange that failed for good; one line: where, what, why, and the cure.

    Attributes:
      code: a word for programs. That of the coordinator's refusal (as of
        ``ProtocolError``, such as ``superseded`` or ``unknown``), or one of the
        worker's own: ``unreachable`` (tried for as long as it has patience),
        ``untrusted`` (its certificate), ``garbled`` (answers that make no sense),
        ``corrupted`` (content of another digest), ``disk_full`` and ``disk`` (of
        this machine).
      status: the HTTP status of a refusal, else 0. An item or upload that isn't
        there is ``unknown`` with 404, a process that isn't registered with 409.
    """

    def __init__(self, message: str, *, code: str, status: int = 0):
        super().__init__(message)
        self.code, self.status = code, status


class Link(Protocol):
    """A worker's way to its coordinator; all of it on one event loop.

    Every call tries again by itself where that can help, and every call may be made
    again: the coordinator knows a repetition. All may raise :class:`LinkError`.
    """

    async def register(self, request: Register) -> Registered:
        """Presents this process; its first question supersedes an older one."""

    async def work(self, request: WorkRequest) -> Work:
        """What to do next; waits at most ``request.wait`` seconds for something."""

    async def heartbeat(self, request: Heartbeat) -> Pulse:
        """A sign of life."""

    async def leave(self, request: Leave) -> None:
        """Tells that this worker goes."""

    async def fetch(
        self, item: Item, target: Path, progress: Progress | None = None
    ) -> int:
        """Makes the directory ``target`` hold an item, complete and verified.

        What is there already isn't fetched again: the item itself, what an
        interrupted fetch left, and equal pieces of items in directories beside it.

        Returns:
          Bytes that came over the wire.
        """

    async def submit(
        self, upload: Upload, path: Path, progress: Progress | None = None
    ) -> Verdict:
        """Sends the update in the file ``path``, and returns what became of it.

        The file has ``upload.bytes`` bytes and the digest ``upload.blake3``.
        """

    async def close(self) -> None:
        """Lets go of connections."""
