"""The dashboard's routes: the page, its live events, and the same for programs.

They need no token: whoever reaches the coordinator's port may look. Nothing here
changes anything, and what is shown holds no secret.

What is sent doesn't grow with rounds: ``/status`` holds the newest 200 of them and at
most 400 evaluations (:func:`~spheroid_jax.transport.dashboard.feed.for_programs`), an
event only what the page draws, ``/metrics`` the present. All rounds are in the run's
``metrics.jsonl``.
"""

import asyncio
import contextlib
import logging
import time
from typing import Any, NamedTuple

from aiohttp import web

from spheroid_jax.transport.coordinator_api import CoordinatorAPI
from spheroid_jax.transport.dashboard.feed import Feed, encode, for_programs
from spheroid_jax.transport.dashboard.metrics import (
    CONTENT_TYPE,
    counted,
    exposition,
)
from spheroid_jax.transport.dashboard.page import page
from spheroid_jax.transport.http.limits import Gate
from spheroid_jax.transport.http.problems import problem
from spheroid_jax.transport.http.requests import peer_address
from spheroid_jax.transport.protocol import ProtocolError

_LOG = logging.getLogger(__name__)
_SAFE = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Viewing(NamedTuple):
    """Limits on those who watch. Seconds."""

    viewers: int = 32  # at the same time; the next one is told to come later
    each: int = 8  # of them from one address; behind a proxy all have that of it
    interval: float = 0.5  # least time between two events
    refresh: float = 10.0  # most time between two events, so that ages stay right
    keep_alive: float = 15.0  # most silence, while the coordinator has nothing to say
    stall: float = 30.0  # a viewer that hasn't taken an event by then is cut


_USUAL = Viewing()


def add_dashboard(
    app: web.Application, coordinator: CoordinatorAPI, viewing: Viewing = _USUAL
) -> None:
    """Adds ``/``, ``/events``, ``/status``, ``/healthz`` and ``/metrics``.

    Args:
      app: not yet started.
      coordinator: only its ``status`` and ``changed`` are used.
      viewing: limits on viewers of ``/events``.
    """
    dashboard = _Dashboard(coordinator, viewing)
    app.router.add_get("/", dashboard.page)
    # A HEAD of an endless stream would be endless too.
    app.router.add_get("/events", dashboard.events, allow_head=False)
    app.router.add_get("/status", dashboard.status)
    app.router.add_get("/healthz", dashboard.healthz)
    app.router.add_get("/metrics", dashboard.metrics)
    app.on_shutdown.append(dashboard.close)


def health(status: dict[str, Any]) -> tuple[int, str]:
    """HTTP status and word: whether the coordinator can take work and keep it."""
    if status.get("state") == "draining":
        return 503, "draining"
    if not status.get("writable", True):
        return 503, "unwritable"
    return 200, "ok"


class _Dashboard:
    def __init__(self, coordinator: CoordinatorAPI, viewing: Viewing):
        self._coordinator, self._viewing = coordinator, viewing
        self._feed = Feed(coordinator, viewing.interval, viewing.refresh)
        self._each = Gate(viewing.each, "viewers", of="an address")
        self._page, self._policy = page()
        # What a run had before this process is no part of its counters.
        self._before = counted(coordinator.status())

    async def close(self, app: web.Application) -> None:
        self._feed.close()

    async def page(self, request: web.Request) -> web.Response:
        headers = {**_SAFE, "Content-Security-Policy": self._policy}
        return web.Response(text=self._page, content_type="text/html", headers=headers)

    async def status(self, request: web.Request) -> web.Response:
        return _json(for_programs(self._coordinator.status()))

    async def metrics(self, request: web.Request) -> web.Response:
        body = exposition(self._coordinator.status(), self._before)
        return web.Response(body=body, headers={**_SAFE, "Content-Type": CONTENT_TYPE})

    async def healthz(self, request: web.Request) -> web.Response:
        try:
            status = self._coordinator.status()
            code, word = health(status)
        except Exception:
            _LOG.exception("the coordinator can't tell its status")
            return _json({"status": "failing", "state": None, "round": None}, 503)
        facts = {key: status.get(key) for key in ("state", "round")}
        return _json({"status": word, **facts}, code)

    async def events(self, request: web.Request) -> web.StreamResponse:
        if self._feed.closed or self._feed.viewers >= self._viewing.viewers:
            why = f"{self._feed.viewers} watch already: ask again later, or GET /status"
            return _refusal(ProtocolError(why, status=503, code="busy"))
        with contextlib.ExitStack() as place:
            try:
                place.enter_context(self._each.enter(peer_address(request)))
            except ProtocolError as error:
                return _refusal(error)
            return await self._watch(request)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=_SAFE)
        response.content_type = "text/event-stream"
        response.headers["X-Accel-Buffering"] = "no"  # or nginx would hold events back
        with self._feed.watching():
            try:
                await response.prepare(request)
                await self._stream(request, response)
            except ConnectionError:
                pass  # the viewer went
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
        return response

    async def _stream(self, request: web.Request, response: web.StreamResponse) -> None:
        limits, feed = self._viewing, self._feed
        seen, newest = feed.now()
        await self._send(request, response, b"retry: 2000\n\n" + _event(newest))
        sent = time.monotonic()
        while not feed.closed:
            await asyncio.sleep(limits.interval)
            # At most a second, to see it soon when the viewer goes.
            newer = await feed.newer(seen, min(limits.keep_alive, 1.0))
            if request.transport is None or request.transport.is_closing():
                return
            if newer is not None:
                seen, newest = newer
                await self._send(request, response, _event(newest))
            elif time.monotonic() - sent >= limits.keep_alive:
                await self._send(request, response, b": keep-alive\n\n")
            else:
                continue
            sent = time.monotonic()

    async def _send(
        self, request: web.Request, response: web.StreamResponse, data: bytes
    ) -> None:
        """Sends, and returns when the viewer's socket has taken all of it.

        So no more than one event waits for a slow viewer.

        Raises:
          TimeoutError: the viewer didn't take it in time.
        """
        async with asyncio.timeout(self._viewing.stall):
            await response.write(data)
            while not self._feed.closed:
                if request.transport is None:
                    return
                if not request.transport.get_write_buffer_size():
                    return
                await asyncio.sleep(min(self._viewing.interval, 0.25))


def _refusal(error: ProtocolError) -> web.Response:
    response = problem(error)
    response.headers.update({**_SAFE, "Retry-After": "10"})
    return response


def _event(body: bytes) -> bytes:
    return b"event: status\ndata: " + body + b"\n\n"  # JSON of msgspec is one line


def _json(body: Any, code: int = 200) -> web.Response:
    return web.Response(
        body=encode(body),
        status=code,
        content_type="application/json",
        headers=_SAFE,
    )
