"""What a front needs of a coordinator: HTTP and the bucket are two fronts of one."""

from pathlib import Path
from typing import Any, Protocol

from spheroid_jax.transport.protocol import (
    Heartbeat,
    Leave,
    Pulse,
    Register,
    Registered,
    Upload,
    Verdict,
    Work,
    WorkRequest,
)


class CoordinatorAPI(Protocol):
    """The coordinator as its fronts see it; all of it on one event loop.

    Every method may raise :class:`~spheroid_jax.transport.protocol.ProtocolError`.
    """

    async def register(self, worker: str, request: Register) -> Registered:
        """A process of the worker starts; its first question ousts an older one."""

    async def work(self, worker: str, request: WorkRequest) -> Work:
        """What to do next; waits at most ``request.wait`` seconds for something."""

    async def heartbeat(self, worker: str, request: Heartbeat) -> Pulse:
        """A sign of life."""

    async def leave(self, worker: str, request: Leave) -> None:
        """The worker goes; its slot is free at once."""

    async def begin(self, worker: str, request: Upload) -> Verdict | None:
        """Whether an update would be accepted; None: send it."""

    async def commit(self, worker: str, request: Upload, path: Path) -> Verdict:
        """Takes the file at ``path``, complete and of the right digest, or deletes it.

        An accepted update is on disk when this returns.
        """

    def item(self, digest: str) -> Path | None:
        """The directory of an item, with ``index.0.json`` and ``data.0``."""

    def worker_of(self, token: str) -> str | None:
        """The name that goes with a token, or None."""

    def status(self) -> dict[str, Any]:
        """All that there is to see, as JSON."""

    async def changed(self, seen: int, wait: float) -> int:
        """The version of ``status``, once it is above ``seen`` or ``wait`` s passed."""

    def add_bytes(self, worker: str, *, down: int = 0, up: int = 0) -> None:
        """Counts bytes that went over the wire."""
