"""Light workers: they do all that a worker does but train.

python -m benchmarks._light SETTINGS.json

Each asks for work, fetches it (and forgets it), sleeps, sends an update that was made
before, and gives signs of life. One process holds many of them. Prints what they saw
as JSON once the time is over.
"""

import asyncio
import collections
import contextlib
import json
import random
import sys
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from spheroid_jax.transport.http.client import HttpLink
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.protocol import (
    VERSION,
    Heartbeat,
    Leave,
    Register,
    Upload,
    WorkRequest,
)

ANNOUNCE, SEND, COMMIT = "POST uploads", "PATCH upload", "commit"
LAG = 0.02  # seconds between looks at the own event loop's clock


class Seen:
    """What the workers of a process saw; times are of the machine's clock."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.requests: dict[str, list[float]] = collections.defaultdict(list)
        self.work: list[tuple[int, float, float]] = []  # round, asked, answered
        self.verdicts: collections.Counter[str] = collections.Counter()
        self.errors: list[str] = []
        self.lag: list[float] = []
        self.down = self.up = 0


class TimedLink(HttpLink):
    """A link that writes down how long its requests take."""

    seen: Seen

    @contextlib.asynccontextmanager
    async def ask(
        self, method: str, path: str, **given: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """As ``HttpLink.ask``."""
        kind = _kind(method, path)
        began = time.monotonic()
        async with super().ask(method, path, **given) as answer:
            yield answer
        self.seen.requests[kind].append(time.monotonic() - began)


def _kind(method: str, path: str) -> str:
    if path == "/uploads":
        return ANNOUNCE
    if method == "PATCH":
        return SEND
    if path.endswith("/commit"):
        return COMMIT
    return f"{method} {path.split('/')[1]}"


class Light:
    """One worker."""

    def __init__(self, settings: dict[str, Any], name: str, seen: Seen) -> None:
        """Connects to nothing yet."""
        token = Token(settings["tokens"][name])
        self._settings, self._seen = settings, seen
        self._link = TimedLink(settings["url"], token, notice=seen.errors.append)
        self._link.seen = seen
        self._session, self._random = uuid.uuid4().hex, random.Random(name)
        self._doing, self._round, self._after = "waiting", 0, -1

    async def run(self, ends: float) -> None:
        """Works until the time is over, and leaves."""
        beating: asyncio.Task[None] | None = None
        async with self._link as link:
            try:
                told = await link.register(Register(VERSION, self._session))
                beating = asyncio.create_task(self._beat(told.heartbeat))
                while time.monotonic() < ends:
                    await self._round_trip(ends)
                await link.leave(Leave(self._session))
            except LinkError as error:
                self._seen.errors.append(str(error))
            finally:
                if beating is not None:
                    beating.cancel()
                    await asyncio.gather(beating, return_exceptions=True)

    async def _round_trip(self, ends: float) -> None:
        asked = time.monotonic()
        wait = max(0.0, min(20.0, ends - asked))
        request = WorkRequest(self._session, self._after, wait)
        work = await self._link.work(request)
        if work.do != "train":
            return
        self._seen.work.append((work.round, asked, time.monotonic()))
        self._doing, self._round = "fetching", work.round
        for item in work.items.values():
            self._seen.down += len(await self._link.read_index(item))
            async for chunk in self._link.read_data(item, 0, item.bytes):
                self._seen.down += len(chunk)
        self._doing = "training"
        await asyncio.sleep(self._random.uniform(0.5, 1.5) * self._settings["think"])
        self._doing = "sending"
        upload = Upload(
            session=self._session,
            round=work.round,
            block=work.block,
            replica=work.replica,
            attempt=0,
            bytes=self._settings["bytes"],
            blake3=self._settings["blake3"],
            ticket=work.ticket,
            loss=1.0,
        )
        verdict = await self._link.submit(upload, Path(self._settings["update"]))
        self._seen.verdicts[verdict.verdict] += 1
        self._seen.up += upload.bytes
        self._after, self._doing = work.round, "waiting"

    async def _beat(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds * self._random.uniform(0.5, 1.0))
            doing: Any = self._doing
            await self._link.heartbeat(Heartbeat(self._session, doing, self._round))


async def watch(seen: Seen) -> None:
    """Writes down how late this process's event loop is."""
    while True:
        due = time.monotonic() + LAG
        await asyncio.sleep(LAG)
        seen.lag.append(time.monotonic() - due)


async def main(settings: dict[str, Any]) -> dict[str, Any]:
    """Runs all workers of the settings; what they saw."""
    seen = Seen()
    ends = time.monotonic() + settings["seconds"]
    watching = asyncio.create_task(watch(seen))
    lights = [Light(settings, name, seen) for name in settings["tokens"]]
    await asyncio.gather(*(light.run(ends) for light in lights))
    watching.cancel()
    return vars(seen)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))))
