"""A server in a process of its own, to be thrown at; prints its port.

    python -m tests.transport.http.fuzzed_server DIRECTORY

All that it logs goes to standard error.
"""

import asyncio
import logging
import sys
from pathlib import Path

from spheroid_jax.transport.http.limits import Limits
from spheroid_jax.transport.http.server import make_app, serve
from spheroid_jax.transport.http.uploads import Uploads
from tests.transport.http.server_fakes import FakeCoordinator

DIGEST = "ab" * 32
LIMITS = Limits(
    message_seconds=0.7,
    upload=1 << 20,
    idle=0.3,
    requests=500,
    transfers=500,
    keepalive=0.5,
    linger=0.1,
)


async def main(home: Path) -> None:
    coordinator = FakeCoordinator(home)
    item = home / "item"
    item.mkdir()
    (item / "data.0").write_bytes(bytes(5000))
    (item / "index.0.json").write_bytes(b"{}")
    coordinator.items[DIGEST] = item
    uploads = Uploads(home / "parts", 1 << 28)
    running = await serve(make_app(coordinator, uploads, LIMITS), "127.0.0.1", 0)
    print(running.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.DEBUG)
    asyncio.run(main(Path(sys.argv[1])))
