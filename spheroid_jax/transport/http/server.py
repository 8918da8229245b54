"""The coordinator's HTTP server: who may ask, what goes wrong, when it ends."""

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

from aiohttp import web

from spheroid_jax.transport import protocol
from spheroid_jax.transport.coordinator_api import CoordinatorAPI
from spheroid_jax.transport.http.bodies import LAST
from spheroid_jax.transport.http.connections import Connection
from spheroid_jax.transport.http.doors import Doors
from spheroid_jax.transport.http.guests import Guest, Guests
from spheroid_jax.transport.http.limits import Gate, Limits
from spheroid_jax.transport.http.problems import plain, problem
from spheroid_jax.transport.http.reception import Reception, TooOften
from spheroid_jax.transport.http.requests import bearer, is_under, shown, sign
from spheroid_jax.transport.http.routes import WORKER, Routes
from spheroid_jax.transport.http.uploads import Uploads
from spheroid_jax.transport.protocol import ProtocolError

log = logging.getLogger(__name__)
LIMITS = web.AppKey("limits", Limits)
RECEPTION = web.AppKey("reception", Reception)
_SWEEP = 60.0  # seconds between looks for parts that don't grow

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(
    coordinator: CoordinatorAPI,
    uploads: Uploads,
    limits: Limits,
    extra: Iterable[Callable[[web.Application], None]] = (),
) -> web.Application:
    """The application: the protocol under its prefix, for who has a token.

    Args:
      coordinator: that answers.
      uploads: where updates grow; closed with the application.
      limits: of everything.
      extra: each adds further routes, outside of that, which need no token.
    """
    reception = Reception(limits)
    app = web.Application(middlewares=[_Front(coordinator, limits, reception)])
    app[LIMITS], app[RECEPTION] = limits, reception
    Routes(coordinator, uploads, limits).add_to(app)
    for add in extra:
        add(app)
    app.on_response_prepare.append(sign)

    async def sweep(app: web.Application) -> AsyncIterator[None]:
        async def forever() -> None:
            while True:
                await asyncio.sleep(min(_SWEEP, uploads.expire / 4))
                uploads.drop_expired()

        task = asyncio.create_task(forever())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        uploads.close()

    app.cleanup_ctx.append(sweep)
    return app


@web.middleware
class _Front:
    """Around every handler: the token, the errors, a line in the log."""

    def __init__(
        self, coordinator: CoordinatorAPI, limits: Limits, reception: Reception
    ) -> None:
        self._coordinator, self._reception = coordinator, reception
        self._requests = Gate(limits.requests, "requests")

    async def __call__(
        self, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        started = time.monotonic()
        response: web.StreamResponse | None = None
        protected = is_under(request, protocol.PREFIX)
        who = self._worker(request) if protected else None
        try:
            with self._reception.visit(request, who):
                response = await self._respond(request, handler, who, protected)
        except ProtocolError as error:
            response = problem(error)
        finally:
            if response is not None and LAST in request:
                response.force_close()
            if log.isEnabledFor(logging.DEBUG):
                status = response.status if response is not None else "gone"
                seconds = time.monotonic() - started
                asked = who or "-", request.method, shown(request)
                log.debug("%s %s %s %s %.3fs", *asked, status, seconds)
        return response

    async def _respond(
        self, request: web.Request, handler: Handler, who: str | None, protected: bool
    ) -> web.StreamResponse:
        seconds = await self._reception.ask(request, who)
        if who is None and protected:
            return problem(_unauthorized(), close=bool(seconds))
        if seconds:
            return problem(TooOften(seconds), close=who is None)
        if who is None:
            return await _answer(request, handler)
        request[WORKER] = who
        with self._requests.enter(who):
            response = await _answer(request, handler)
        if isinstance(response, web.Response) and response.body:
            sent = len(response.body)  # type: ignore[arg-type]
            self._coordinator.add_bytes(who, down=sent)
        return response

    def _worker(self, request: web.Request) -> str | None:
        token = bearer(request)
        return None if token is None else self._coordinator.worker_of(token)


def _unauthorized() -> ProtocolError:
    return ProtocolError(
        "this needs a token ('Authorization: Bearer TOKEN') that the coordinator "
        "knows and has not revoked: ask who runs it for another",
        status=401,
        code="unauthorized",
    )


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The handler's answer; what it raises as an error for the peer."""
    try:
        return await handler(request)
    except ProtocolError:
        raise
    except web.HTTPException as error:
        return plain(error)
    except ConnectionError:
        raise  # nobody is there to be told
    except Exception:
        log.exception("%s %s failed", request.method, shown(request))
        return problem(
            ProtocolError("internal error", status=500, code="internal"), close=True
        )


class Running:
    """A server that runs.

    Attributes:
      port: where.
      guests: its connections.
    """

    def __init__(
        self,
        runner: web.AppRunner,
        server: asyncio.Server,
        doors: Doors,
        guests: Guests,
    ) -> None:
        self._runner, self._server, self._doors = runner, server, doors
        self.guests = guests
        self.port: int = server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Takes no more, gives running requests a little time, and ends."""
        self._server.close()
        await self._doors.close()
        await self._runner.cleanup()


async def serve(
    app: web.Application,
    host: str,
    port: int,
    ssl_context: ssl.SSLContext | None = None,
) -> Running:
    """Serves an application of ``make_app``.

    Args:
      app: to serve.
      host: to listen on.
      port: to listen on; 0 for any.
      ssl_context: of ``tls_context``; None for plain HTTP.

    Raises:
      ValueError: nobody can listen there; one line.
    """
    limits, guests = app[LIMITS], app[RECEPTION].guests
    runner = web.AppRunner(app, shutdown_timeout=limits.shutdown, access_log=None)
    await runner.setup()
    server = runner.server
    assert server is not None  # set up just now

    def connection(guest: Guest) -> Connection:
        return Connection(server, guest, guests, limits)

    doors = Doors(guests, connection, ssl_context, limits)
    try:
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(doors.door, host, port)
    except OSError as error:
        await runner.cleanup()
        said = error.strerror or error
        raise ValueError(
            f"can't listen on {host}:{port}: {said}; choose another --listen"
        ) from error
    for listener in listening.sockets:
        _cut_the_stuck(listener, limits.idle)
    return Running(runner, listening, doors, guests)


def _cut_the_stuck(listener: socket.socket, seconds: float) -> None:
    """Has the kernel end connections whose peer takes nothing of what it was sent.

    Connections inherit it of their listener. Where there is no such option, a peer
    that reads no answer holds a connection for as long as it lives.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = max(1, int(1000 * seconds))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """What TLS needs: a certificate chain and its key, PEM files.

    Raises:
      ValueError: a file is missing, isn't PEM, has a password, or they don't match;
        one line.
    """

    def refuse() -> str:
        raise ValueError(f"the key {key} has a password; give a key without one")

    for what, path in (("certificate", certificate), ("key", key)):
        if not path.is_file():
            raise ValueError(f"there is no {what} {path}; give a PEM file")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, refuse)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(
                f"the key {key} isn't that of the certificate {certificate}; "
                "give the two that were made together"
            ) from error
        raise ValueError(
            f"certificate {certificate} and key {key} can't be read: "
            f"{error.reason or 'not PEM'}; give PEM files"
        ) from error
    except OSError as error:
        raise ValueError(
            f"certificate {certificate} and key {key} can't be read: {error.strerror}"
        ) from error
    return context
