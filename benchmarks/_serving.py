"""The coordinator's HTTP server as a process of its own, with nothing behind it.

python -m benchmarks._serving DIRECTORY DIGEST [CERTIFICATE KEY]

Serves the item in ``DIRECTORY/item``. An update is flushed to disk and renamed as a
coordinator does it, and replaces its worker's last one. Whose token it is, is said by
the token. Prints its port; ends when it is told to.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from spheroid_jax import manifests
from spheroid_jax.transport.http.limits import Limits
from spheroid_jax.transport.http.server import make_app, serve, tls_context
from spheroid_jax.transport.http.uploads import Uploads
from spheroid_jax.transport.protocol import Upload, Verdict

PREFIX = "spheroid_benchmark_"


def token_of(worker: str) -> str:
    """A token of a worker, letters and digits."""
    return PREFIX + worker


class Acceptor:
    """Accepts every update; a coordinator as far as transfers need one."""

    def __init__(self, directory: Path, digest: str) -> None:
        """Serves ``directory/item`` under its digest."""
        self._item, self._digest = directory / "item", digest
        self._accepted = directory / "accepted"
        self._accepted.mkdir(exist_ok=True)

    async def register(self, worker: str, request: Any) -> Any:
        """Nobody asks."""
        raise NotImplementedError

    work = heartbeat = leave = register

    async def begin(self, worker: str, request: Upload) -> Verdict | None:
        """Everything is welcome."""
        return None

    async def commit(self, worker: str, request: Upload, path: Path) -> Verdict:
        """On disk when this returns."""
        await asyncio.to_thread(self._store, path, self._accepted / worker)
        return Verdict("accepted")

    def _store(self, path: Path, target: Path) -> None:
        manifests.sync(path)
        os.replace(path, target)
        manifests.sync(target.parent)

    def item(self, digest: str) -> Path | None:
        """The one item."""
        return self._item if digest == self._digest else None

    def worker_of(self, token: str) -> str | None:
        """As the token says; this is no place for secrets."""
        return token.removeprefix(PREFIX) if token.startswith(PREFIX) else None

    def status(self) -> dict[str, Any]:
        """Nothing to see."""
        return {}

    async def changed(self, seen: int, wait: float) -> int:
        """Nothing ever changes."""
        await asyncio.sleep(wait)
        return seen

    def add_bytes(self, worker: str, *, down: int = 0, up: int = 0) -> None:
        """Not counted."""


async def run(directory: Path, digest: str, tls: list[str]) -> None:
    """Serves until the process is told to end."""
    uploads = Uploads(directory / "parts", 64 << 30)
    app = make_app(Acceptor(directory, digest), uploads, Limits())
    context = tls_context(Path(tls[0]), Path(tls[1])) if tls else None
    running = await serve(app, "127.0.0.1", 0, context)
    print(running.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
