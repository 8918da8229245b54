"""A small coordinator for the tests of the client: as it should be, and then not.

``faults`` are asked first, in turn: each gets a request and may answer it in its own
way, or return None to have it answered as it should be. A fault is used once.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from blake3 import blake3

from spheroid_jax.transport import protocol
from spheroid_jax.transport.http.asking import Timeouts
from spheroid_jax.transport.http.client import HttpLink
from spheroid_jax.transport.http.retry import Pace, Tools
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.protocol import (
    Heartbeat,
    Item,
    Leave,
    Problem,
    Pulse,
    Register,
    Registered,
    Upload,
    Uploading,
    Verdict,
    Work,
    WorkRequest,
)
from tests.transport.items.making import item_of, layout, numbers

SECRET = "spheroid_0123456789abcdefghijklmnopqrstuvwxyz"
SESSION = "0" * 32
ACCEPTED = Verdict("accepted", applies_in=7)

Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


def answer(message: msgspec.Struct, status: int = 200, **headers: str) -> web.Response:
    return web.Response(
        body=protocol.encode(message),
        status=status,
        content_type="application/json",
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


def problem(status: int, code: str, error: str = "told", **headers: str) -> Fault:
    async def fault(request: web.Request) -> web.StreamResponse:
        await request.read()
        return answer(Problem(error, code), status, **headers)

    return fault


def plain(status: int = 200, body: bytes = b"", **settings: Any) -> Fault:
    async def fault(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(status=status, body=body, **settings)

    return fault


async def cut(request: web.Request) -> web.StreamResponse:
    """The connection breaks before there is an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()  # which nobody gets


async def no_http(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    request.transport.close()
    return web.Response()  # which nobody gets


async def fine(request: web.Request) -> web.StreamResponse | None:
    return None


class Coordinator:
    """One that knows one item and takes every update."""

    def __init__(self) -> None:
        index, self.data = layout({"w": numbers(30_000)}, piece=8000)
        self.item, self.index = item_of(index, len(self.data))
        self.faults: list[Fault] = []
        self.asked: list[str] = []
        self.ranges: list[str] = []
        self.bodies: list[Any] = []
        self.parts: dict[str, bytearray] = {}
        self.announced: dict[str, Upload] = {}
        self.verdicts: dict[str, Verdict] = {}
        self.patched: list[tuple[int, int]] = []
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def start(self, context: ssl.SSLContext | None = None) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner,
            "127.0.0.1",
            self.port,
            ssl_context=context,
            reuse_address=True,
        )
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        assert request.headers["Authorization"] == f"Bearer {SECRET}"
        if self.faults:
            done = await self.faults.pop(0)(request)
            if done is not None:
                return done
        path = request.path.removeprefix("/v2")
        if path.startswith("/items/"):
            return self._send(request, path)
        if path.startswith("/uploads"):
            return await self._upload(request, path)
        return await self._control(request, path)

    async def _control(self, request: web.Request, path: str) -> web.Response:
        answers: dict[str, tuple[type[Any], Any]] = {
            "/workers": (Register, registered()),
            "/work": (WorkRequest, Work("wait", why="nothing yet")),
            "/heartbeat": (Heartbeat, Pulse(3, True)),
            "/leave": (Leave, None),
        }
        kind, told = answers[path]
        self.bodies.append(protocol.decode(await request.read(), kind))
        return web.Response(status=204) if told is None else answer(told)

    def _send(self, request: web.Request, path: str) -> web.Response:
        content = self.index if path.endswith("/index") else self.data
        assert path.split("/")[2] == self.item.digest
        asked = request.headers.get("Range")
        if asked is None:
            return web.Response(body=content)
        self.ranges.append(asked)
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        said = f"bytes {first}-{last}/{len(content)}"
        return web.Response(
            body=content[first : last + 1], status=206, headers={"Content-Range": said}
        )

    async def _upload(self, request: web.Request, path: str) -> web.Response:
        if path == "/uploads":
            upload = protocol.decode(await request.read(), Upload)
            name = protocol.upload_name("w", upload)
            self.announced[name] = upload
            if name in self.verdicts:
                return answer(Uploading(name, verdict=self.verdicts[name]))
            return answer(
                Uploading(name, len(self.parts.setdefault(name, bytearray())))
            )
        name, _, verb = path.removeprefix("/uploads/").partition("/")
        if verb == "commit":
            return self._commit(name)
        part, at = self.parts[name], int(request.headers["Upload-Offset"])
        if at != len(part):
            return answer(Problem("no", "conflict"), 409, Upload_Offset=str(len(part)))
        try:
            async for chunk in request.content.iter_any():
                part += chunk
        finally:
            self.patched.append((at, len(part)))
        return web.Response(status=204, headers={"Upload-Offset": str(len(part))})

    def _commit(self, name: str) -> web.Response:
        if name not in self.verdicts:
            digest = blake3(self.parts.pop(name)).hexdigest()
            if digest != self.announced[name].blake3:
                return answer(Problem("other bytes", "corrupted"), 422)
            self.verdicts[name] = ACCEPTED
        return answer(self.verdicts[name])


def registered(version: int = protocol.VERSION) -> Registered:
    return Registered(version, "run", "w", {}, "0" * 64, "", lease=30.0, heartbeat=10.0)


class Clock:
    """Time that only sleeping lets pass; ``on_sleep`` may do something meanwhile."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []
        self.on_sleep: Callable[[], Coroutine[Any, Any, None]] | None = None

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        if self.on_sleep is not None:
            await self.on_sleep()
        await asyncio.sleep(0)

    def tools(self, fraction: float = 1.0) -> Tools:
        return Tools(
            lambda: self.now,
            self.sleep,
            lambda low, high: low + fraction * (high - low),
        )


class Setting:
    """A coordinator, a link to it, and what was noticed."""

    def __init__(self, coordinator: Coordinator, link: HttpLink, clock: Clock) -> None:
        self.coordinator, self.link, self.clock = coordinator, link, clock
        self.notices: list[str] = []


@contextlib.asynccontextmanager
async def setting(
    *faults: Fault,
    timeouts: Timeouts = Timeouts(),  # noqa: B008
    pace: Pace = Pace(),  # noqa: B008
    port: int | None = None,
) -> AsyncIterator[Setting]:
    coordinator, clock = Coordinator(), Clock()
    coordinator.faults = list(faults)
    await coordinator.start()
    notices: list[str] = []
    url = f"http://127.0.0.1:{coordinator.port if port is None else port}"
    link = HttpLink(
        url,
        Token(SECRET),
        timeouts=timeouts,
        pace=pace,
        tools=clock.tools(),
        notice=notices.append,
    )
    here = Setting(coordinator, link, clock)
    here.notices = notices
    try:
        yield here
    finally:
        await link.close()
        await coordinator.stop()


def run(scenario: Coroutine[Any, Any, Any], seconds: float = 20.0) -> Any:
    return asyncio.run(asyncio.wait_for(scenario, seconds))


def update(path: Path, size: int, seed: int = 0) -> Upload:
    """An update's file, and what announces it."""
    content = numbers(-(-size // 4), seed).tobytes()[:size]
    path.write_bytes(content)
    digest = blake3(content).hexdigest()
    return Upload(SESSION, 6, 1, 0, 0, size, digest, ticket="t")


def other(item: Item) -> Item:
    return Item("f" * 64, item.bytes)
