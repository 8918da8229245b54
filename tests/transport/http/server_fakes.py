"""A coordinator that remembers what it was asked, and a server around it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from blake3 import blake3

from spheroid_jax.transport import protocol
from spheroid_jax.transport.http.limits import Limits
from spheroid_jax.transport.http.server import Running, make_app, serve
from spheroid_jax.transport.http.uploads import Uploads
from spheroid_jax.transport.protocol import ProtocolError, Upload, Verdict

TOKENS = {"token-a": "ada", "token-b": "bob"}
SESSION = "0" * 32


class FakeCoordinator:
    """Accepts everything once; answers by name after that, as the real one."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.items: dict[str, Path] = {}
        self.verdicts: dict[str, Verdict] = {}
        self.contents: dict[str, bytes] = {}
        self.commits = 0
        self.asked: list[tuple[str, Any]] = []
        self.down = dict.fromkeys(TOKENS.values(), 0)
        self.up = dict.fromkeys(TOKENS.values(), 0)
        self.fails: Exception | None = None
        self.ready = asyncio.Event()  # ends long polls
        self.polls = 0  # that run

    def _note(self, worker: str, request: Any) -> None:
        self.asked.append((worker, request))
        if self.fails is not None:
            raise self.fails

    async def register(self, worker: str, request: Any) -> protocol.Registered:
        self._note(worker, request)
        return protocol.Registered(
            protocol.VERSION, "run", worker, {"a": 1}, "0" * 64, "1" * 64, 30.0, 5.0
        )

    async def work(self, worker: str, request: Any) -> protocol.Work:
        self._note(worker, request)
        self.polls += 1
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ready.wait(), request.wait)
        finally:
            self.polls -= 1
        return protocol.Work("wait")

    async def heartbeat(self, worker: str, request: Any) -> protocol.Pulse:
        self._note(worker, request)
        return protocol.Pulse(3, True)

    async def leave(self, worker: str, request: Any) -> None:
        self._note(worker, request)

    async def begin(self, worker: str, request: Upload) -> Verdict | None:
        self._note(worker, request)
        return self.verdicts.get(protocol.upload_name(worker, request))

    async def commit(self, worker: str, request: Upload, path: Path) -> Verdict:
        self._note(worker, request)
        self.commits += 1
        name = protocol.upload_name(worker, request)
        self.contents[name] = path.read_bytes()
        path.replace(self.home / f"{name}.update")
        self.verdicts[name] = Verdict("accepted", applies_in=request.round)
        return self.verdicts[name]

    def item(self, digest: str) -> Path | None:
        return self.items.get(digest)

    def worker_of(self, token: str) -> str | None:
        token.encode("ascii")  # as the real one hashes it
        return TOKENS.get(token)

    def status(self) -> dict[str, Any]:
        return {"version": 1}

    async def changed(self, seen: int, wait: float) -> int:
        return 1

    def add_bytes(self, worker: str, *, down: int = 0, up: int = 0) -> None:
        self.down[worker] += down
        self.up[worker] += up


class Served(NamedTuple):
    """A running server and who talks to it."""

    coordinator: FakeCoordinator
    uploads: Uploads
    running: Running
    http: aiohttp.ClientSession  # as ada
    url: str


@contextlib.asynccontextmanager
async def served(
    home: Path,
    limits: Limits | None = None,
    quota: int = 64 << 20,
    **options: Any,
) -> AsyncIterator[Served]:
    """A server over a directory; what is in it is taken up."""
    home.mkdir(exist_ok=True)
    coordinator = FakeCoordinator(home)
    uploads = Uploads(home / "parts", quota, **options)
    app = make_app(coordinator, uploads, limits or Limits(shutdown=0.2))
    running = await serve(app, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{running.port}"
    timeout = aiohttp.ClientTimeout(total=20)
    session = aiohttp.ClientSession(url, timeout=timeout, headers=bearer("token-a"))
    try:
        async with session as http:
            yield Served(coordinator, uploads, running, http, url)
    finally:
        await running.close()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def run(
    home: Path,
    test: Callable[[Served], Awaitable[None]],
    limits: Limits | None = None,
    **options: Any,
) -> None:
    """Runs a test against a server; half a minute at most."""

    async def main() -> None:
        async with asyncio.timeout(30), served(home, limits, **options) as there:
            await test(there)

    asyncio.run(main())


def announce(data: bytes, **changed: Any) -> dict[str, Any]:
    """The message that announces ``data`` as an update."""
    message = {
        "session": SESSION,
        "round": 3,
        "block": 1,
        "replica": 0,
        "attempt": 0,
        "bytes": len(data),
        "blake3": blake3(data).hexdigest(),
        "ticket": "given with the work",
    }
    return message | changed


async def raw(
    there: Served, data: bytes, *, until: bytes | None = None, seconds: float = 5.0
) -> bytes:
    """Sends bytes as they are; what comes back until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", there.running.port)
    got = b""
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
            async with asyncio.timeout(seconds):
                while (piece := await reader.read(65536)) and (
                    until is None or until not in got + piece
                ):
                    got += piece
                got += piece
    finally:
        writer.close()
    return got


async def refused(answer: aiohttp.ClientResponse, status: int, code: str) -> str:
    """Checks an answer that is an error; its line."""
    body = await answer.json()
    assert (answer.status, body["code"]) == (status, code), body
    assert set(body) == {"error", "code"}
    assert "\n" not in body["error"]
    assert "Traceback" not in body["error"]
    return str(body["error"])


def problem_error() -> ProtocolError:
    return ProtocolError("another process took over", status=409, code="superseded")
