"""What the coordinator answers to workers, under ``protocol.PREFIX``."""

import asyncio
import re

import msgspec
from aiohttp import hdrs, web

from spheroid_jax.transport import protocol
from spheroid_jax.transport.coordinator_api import CoordinatorAPI
from spheroid_jax.transport.http.bodies import Body, read_message
from spheroid_jax.transport.http.buffers import Buffers
from spheroid_jax.transport.http.downloads import send_file
from spheroid_jax.transport.http.limits import Gate, Limits, Pace
from spheroid_jax.transport.http.parts import OFFSET
from spheroid_jax.transport.http.requests import expect_later, while_there
from spheroid_jax.transport.http.uploads import Uploads
from spheroid_jax.transport.protocol import ProtocolError

WORKER = web.RequestKey("worker", str)  # who asks; set once the token is checked
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,16}", re.ASCII)
_FILES = {"index": "index.0.json", "data": "data.0", "step": "step.0"}


class Nothing(msgspec.Struct, frozen=True):
    """A message without fields."""


class Routes:
    """The handlers; every one runs after the token was checked."""

    def __init__(
        self, coordinator: CoordinatorAPI, uploads: Uploads, limits: Limits
    ) -> None:
        self._coordinator, self._uploads, self._limits = coordinator, uploads, limits
        self._buffers = Buffers()
        self._uploading = Gate(limits.transfers, "uploads")
        self._downloading = Gate(limits.transfers, "downloads")

    def add_to(self, app: web.Application) -> None:
        """Adds them to an application."""
        upload = r"/uploads/{name}"
        for method, path, handler in (
            ("POST", "/workers", self.register),
            ("POST", "/work", self.work),
            ("POST", "/heartbeat", self.heartbeat),
            ("POST", "/leave", self.leave),
            ("GET", r"/items/{digest}/{file}", self.item),
            ("HEAD", r"/items/{digest}/{file}", self.item),
            ("POST", "/uploads", self.announce),
            ("PATCH", upload, self.append),
            ("HEAD", upload, self.offset),
            ("POST", f"{upload}/commit", self.commit),
        ):
            app.router.add_route(
                method, protocol.PREFIX + path, handler, expect_handler=expect_later
            )
        others = rf"/v{{version:(?!{protocol.VERSION}/)[0-9]+}}/{{rest:.*}}"
        app.router.add_route("*", others, self.other, expect_handler=expect_later)

    async def other(self, request: web.Request) -> web.Response:
        """Any request of a peer that speaks another version."""
        version = request.match_info["version"][:10]
        raise ProtocolError(
            f"the coordinator speaks version {protocol.VERSION} of the protocol, the "
            f"worker {version}; install the same release",
            status=409,
            code="version",
        )

    async def register(self, request: web.Request) -> web.Response:
        """POST /v2/workers."""
        message = await self._read(request, protocol.Register)
        return _json(await self._coordinator.register(request[WORKER], message))

    async def work(self, request: web.Request) -> web.Response:
        """POST /v2/work; ends early when the worker hangs up."""
        message = await self._read(request, protocol.WorkRequest)
        answer = self._coordinator.work(request[WORKER], message)
        return _json(await while_there(request, answer))

    async def heartbeat(self, request: web.Request) -> web.Response:
        """POST /v2/heartbeat."""
        message = await self._read(request, protocol.Heartbeat)
        return _json(await self._coordinator.heartbeat(request[WORKER], message))

    async def leave(self, request: web.Request) -> web.Response:
        """POST /v2/leave."""
        message = await self._read(request, protocol.Leave)
        await self._coordinator.leave(request[WORKER], message)
        return web.Response(status=204)

    async def item(self, request: web.Request) -> web.StreamResponse:
        """GET and HEAD /v2/items/DIGEST/index, data or step."""
        digest, file = request.match_info["digest"], request.match_info["file"]
        known = _DIGEST.fullmatch(digest) and file in _FILES
        directory = self._coordinator.item(digest) if known else None
        if directory is None or not (directory / _FILES[file]).is_file():
            raise ProtocolError("there is no such item", status=404, code="unknown")
        worker = request[WORKER]
        with self._downloading.enter(worker):
            return await send_file(
                request,
                directory / _FILES[file],
                f"{digest}-{file}",
                self._limits,
                lambda count: self._coordinator.add_bytes(worker, down=count),
            )

    async def announce(self, request: web.Request) -> web.Response:
        """POST /v2/uploads: how much of an update is there, or its verdict."""
        worker = request[WORKER]
        upload = await self._read(request, protocol.Upload)
        if upload.bytes > self._limits.upload:
            raise ProtocolError(
                f"an update may have {self._limits.upload} bytes",
                status=413,
                code="too_large",
            )
        name = protocol.upload_name(worker, upload)
        verdict = await self._coordinator.begin(worker, upload)
        if verdict is not None:
            self._uploads.discard(worker, upload)
            return _json(protocol.Uploading(name, verdict=verdict))
        return _json(
            protocol.Uploading(name, await self._uploads.begin(worker, upload))
        )

    async def append(self, request: web.Request) -> web.Response:
        """PATCH /v2/uploads/NAME."""
        worker, name = request[WORKER], request.match_info["name"]
        given = request.headers.getall(OFFSET, [])
        if len(given) != 1 or not _NUMBER.fullmatch(given[0]):
            raise ProtocolError(f"{OFFSET} has to be one header, a number of bytes")
        offset = int(given[0])
        rest = max(0, self._uploads.announced(worker, name) - offset)
        pace = Pace(self._limits, _now())
        body = Body(request, rest, pace, self._buffers)

        def cut() -> None:
            if request.transport is not None:
                request.transport.abort()

        with self._uploading.enter(worker):
            try:
                size = await self._uploads.receive(
                    worker, name, offset, body.pieces(), cut
                )
            finally:
                self._coordinator.add_bytes(worker, up=body.bytes)
        return web.Response(status=204, headers={OFFSET: str(size)})

    async def offset(self, request: web.Request) -> web.Response:
        """HEAD /v2/uploads/NAME."""
        size = self._uploads.offset(request[WORKER], request.match_info["name"])
        return web.Response(headers={OFFSET: str(size), hdrs.CACHE_CONTROL: "no-store"})

    async def commit(self, request: web.Request) -> web.Response:
        """POST /v2/uploads/NAME/commit; goes on when the worker hangs up."""
        await self._read(request, Nothing)
        verdict = asyncio.ensure_future(
            self._uploads.commit(
                request[WORKER], request.match_info["name"], self._coordinator
            )
        )
        return _json(await asyncio.shield(verdict))

    async def _read(
        self, request: web.Request, kind: type[protocol.Message]
    ) -> protocol.Message:
        body = await read_message(request, self._limits)
        self._coordinator.add_bytes(request[WORKER], up=len(body))
        return protocol.decode(body, kind)


def _json(message: msgspec.Struct) -> web.Response:
    return web.Response(body=protocol.encode(message), content_type="application/json")


def _now() -> float:
    return asyncio.get_running_loop().time()
