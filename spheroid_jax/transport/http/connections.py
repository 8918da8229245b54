"""What of a connection isn't left to aiohttp: its end, its errors, its owner."""

import asyncio
import logging
import ssl
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from spheroid_jax.transport.http.guests import Guest, Guests
from spheroid_jax.transport.http.limits import Limits
from spheroid_jax.transport.http.problems import plain, problem
from spheroid_jax.transport.protocol import ProtocolError

log = logging.getLogger(__name__)


class Connection(web.RequestHandler):
    """A connection that tells when it is gone, and whose errors are ours.

    While it belongs to a stranger, each head of a request has to be there in time.

    Args:
      server: of aiohttp.
      guest: that this is; it has entered.
      guests: where it is.
      limits: of HTTP.
    """

    def __init__(
        self, server: web.Server, guest: Guest, guests: Guests, limits: Limits
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # means none
            keepalive_timeout=limits.keepalive,
            lingering_time=limits.linger,
            max_line_size=limits.line,
            max_field_size=limits.line,
            max_headers=limits.headers,
            auto_decompress=False,  # a small body must not become a large one
            logger=log,
        )
        self.gone: asyncio.Future[None] = loop.create_future()
        self._guest, self._guests = guest, guests
        self._patience = limits.stranger_seconds
        self._hurry: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there, after TLS if there is TLS."""
        self._guest.cut = cast(asyncio.Transport, transport).abort
        super().connection_made(transport)
        self._await_head()

    def begin(self, name: str | None) -> None:
        """A request came, with a token of ``name``. Raises as ``Guests.begin``."""
        if self._hurry is not None:
            self._hurry.cancel()
        self._guests.begin(self._guest, name)

    def end(self) -> None:
        """The request was answered, but for the sending."""
        self._guests.end(self._guest)
        if self._guest.name is None and not self.gone.done():
            self._await_head()

    def _await_head(self) -> None:
        self._hurry = self._loop.call_later(self._patience, self.force_close)

    async def start(self) -> None:
        """Serves the connection's requests; whatever happens, it ends then.

        aiohttp 3.14 fails on a CONNECT without a target, and leaves the connection
        open for ever.
        """
        try:
            await super().start()
        except Exception as error:
            log.warning("a connection failed outside of a request: %r", error)
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The peer hung up."""
        if not self.gone.done():
            self.gone.set_result(None)
        if self._hurry is not None:
            self._hurry.cancel()
        self._guests.leave(self._guest)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What isn't HTTP, and what failed outside of the handlers."""
        if status < 500 and isinstance(exc, HttpProcessingError):
            log.debug("%s sent what isn't HTTP", request.remote)
            return problem(ProtocolError("this isn't HTTP as it should be"), close=True)
        self.log_exception("a request of %s failed", request.remote, exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionResetError("an answer has begun, no other can be given")
        return problem(
            ProtocolError("internal error", status=500, code="internal"), close=True
        )

    async def finish_response(
        self,
        request: web.BaseRequest,
        resp: web.StreamResponse,
        start_time: float | None,
    ) -> tuple[web.StreamResponse, bool]:
        """Sends an answer."""
        if isinstance(resp, web.HTTPException):  # raised before our middleware
            resp = plain(resp)
        return await super().finish_response(request, resp, start_time)

    def log_exception(self, *args: Any, **options: Any) -> None:
        """A peer's garbage and its going are its own affair."""
        theirs = (
            ConnectionError,
            TimeoutError,
            ssl.SSLError,
            HttpProcessingError,
            web.RequestPayloadError,
        )
        if isinstance(options.get("exc_info"), theirs):
            log.debug(*args)
        else:
            super().log_exception(*args, **options)
