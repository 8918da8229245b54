"""A worker's link that makes trouble: the real one over HTTP, with faults."""

import asyncio
import collections
import contextlib
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from spheroid_jax.transport import protocol
from spheroid_jax.transport.http.asking import Timeouts
from spheroid_jax.transport.http.client import HttpLink
from spheroid_jax.transport.http.retry import Again, Pace, Tools
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.link import LinkError, Progress
from spheroid_jax.transport.protocol import Upload, Uploading, Verdict
from tests.faults.hosts import here, point
from tests.faults.schedules import Trouble

TIMEOUTS = Timeouts(connect=1.0, sock_connect=1.0, sock_read=0.5, stall=0.5)
PACE = Pace(
    patience=60.0, first_patience=60.0, first_delay=0.01, longest_delay=0.05, garbled=6
)
LONGEST = 0.1  # seconds: a test waits no longer, whatever an answer asks for
CROSSING = 0.15  # seconds for another worker's request to come


class Seen(NamedTuple):
    """What a worker was told of an update."""

    worker: str
    name: str
    verdict: Verdict


class Notes:
    """What the workers of a run saw; of all threads."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.rounds: dict[str, list[int]] = collections.defaultdict(list)
        self.answers: list[tuple[str, int]] = []  # kind and status, of repetitions
        self.answered: collections.Counter[str] = collections.Counter()
        self.events: list[str] = []
        self.troubles: list[str] = []
        self.lock = threading.Lock()

    def event(self, text: str) -> None:
        with self.lock:
            self.events.append(text)


def kind(method: str, path: str) -> str:
    """What a request is, in a word."""
    last = path.rsplit("/", 1)[-1]
    if method == "PATCH":
        return "patch"
    if method == "HEAD":
        return "offset"
    return {"workers": "register", "uploads": "announce"}.get(last, last)


class _Request(NamedTuple):
    kind: str
    method: str
    path: str
    body: bytes | None
    headers: dict[str, str]


class FaultyLink(HttpLink):
    """Does to requests what a schedule says."""

    def __init__(
        self,
        url: str,
        token: str,
        worker: str,
        troubles: tuple[Trouble, ...],
        notes: Notes,
    ) -> None:
        tools = Tools(sleep=_short)
        super().__init__(url, Token(token), timeouts=TIMEOUTS, pace=PACE, tools=tools)
        self._worker, self._notes = worker, notes
        self._troubles = {
            (t.kind, t.nth): t.what for t in troubles if t.worker == worker
        }
        self._sent: collections.Counter[str] = collections.Counter()
        self._due: list[tuple[int, _Request]] = []
        self._again: set[asyncio.Task[None]] = set()

    async def submit(
        self, upload: Upload, path: Path, progress: Progress | None = None
    ) -> Verdict:
        verdict = await super().submit(upload, path, progress)
        name = protocol.upload_name(self._worker, upload)
        if not _is_dead():
            self._notes.seen.append(Seen(self._worker, name, verdict))
        return verdict

    async def work(self, request: protocol.WorkRequest) -> protocol.Work:
        work = await super().work(request)
        if not _is_dead():
            self._notes.rounds[self._worker].append(work.round)
        return work

    async def heartbeat(self, request: protocol.Heartbeat) -> protocol.Pulse:
        pulse = await super().heartbeat(request)
        if not _is_dead():
            rounds = self._notes.rounds[f"{self._worker} (heartbeat)"]
            rounds.append(pulse.round)
        return pulse

    @contextlib.asynccontextmanager
    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        wait: float | None = 0.0,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        what = kind(method, path)
        self._sent[what] += 1
        trouble = self._troubles.get((what, self._sent[what]), "")
        if trouble:
            self._notes.event(f"{self._worker}: {what} {self._sent[what]}: {trouble}")
            self._notes.troubles.append(f"request {trouble}")
        point(f"ask {what}.before")
        request: _Request | None = None
        if trouble in ("twice", "later"):
            if body is not None and not isinstance(body, bytes):
                body = await body.as_bytes()
            request = _Request(what, method, path, body, dict(headers or {}))
        if trouble == "refuse":
            raise Again("it was never sent")
        if trouble == "delay":
            await asyncio.sleep(0.05)
        if trouble == "cross":
            await self._crossed(what)
        given = {"body": body, "headers": headers, "wait": wait}
        async with super().ask(method, path, **given) as answer:
            self._notes.answered[what] += 1
            point(f"ask {what}.after")
            if trouble == "lose":
                await answer.read()
                raise Again("the answer was lost")
            yield answer
        if request is not None:
            if trouble == "twice":
                await self._repeat(request)
            else:
                self._due.append((sum(self._sent.values()) + 5, request))
        self._repeat_due()

    async def close(self) -> None:
        for task in self._again:
            task.cancel()
        await asyncio.gather(*self._again, return_exceptions=True)
        await super().close()

    async def _crossed(self, what: str) -> None:
        """Waits until somebody else's request of this kind was answered."""
        before = self._notes.answered[what]
        ends = asyncio.get_running_loop().time() + CROSSING
        while self._notes.answered[what] == before:
            if asyncio.get_running_loop().time() > ends:
                return
            await asyncio.sleep(0.003)

    def _repeat_due(self) -> None:
        now = sum(self._sent.values())
        for count, request in [d for d in self._due if d[0] <= now]:
            self._due.remove((count, request))
            task = asyncio.ensure_future(self._repeat(request))
            self._again.add(task)
            task.add_done_callback(self._again.discard)

    async def _repeat(self, request: _Request) -> None:
        """Sends a finished request once more, and notes what came of it."""
        said = {"Content-Type": "application/json", **request.headers}
        url = self.url + protocol.PREFIX + request.path
        try:
            async with self._session().request(
                request.method,
                url,
                data=request.body,
                headers=said,
                timeout=aiohttp.ClientTimeout(total=2),
            ) as answer:
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return
        if _is_dead():
            return
        self._notes.answers.append((request.kind, answer.status))
        self._notes.event(f"{self._worker}: {request.kind} again: {answer.status}")
        if answer.status == 200:
            self._note(request, content)

    def _note(self, request: _Request, content: bytes) -> None:
        name = request.path.split("/")[-2]
        with contextlib.suppress(protocol.ProtocolError):
            if request.kind == "commit":
                verdict = protocol.decode(content, Verdict)
                self._notes.seen.append(Seen(self._worker, name, verdict))
            elif request.kind == "announce":
                begun = protocol.decode(content, Uploading)
                if begun.verdict is not None:
                    seen = Seen(self._worker, begun.upload, begun.verdict)
                    self._notes.seen.append(seen)


def _is_dead() -> bool:
    """What a host hears while it is buried, it never heard."""
    host = here()
    return host is not None and host.dead.is_set()


async def _short(seconds: float) -> None:
    await asyncio.sleep(min(seconds, LONGEST))


__all__ = ["FaultyLink", "LinkError", "Notes", "kind"]
