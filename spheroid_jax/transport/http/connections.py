"""What of a connection isn't left to aiohttp: its end, its errors, their number."""

import asyncio
import logging
import ssl
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from spheroid_jax.transport.http.problems import plain, problem
from spheroid_jax.transport.protocol import ProtocolError

log = logging.getLogger(__name__)


class Connection(web.RequestHandler):
    """A connection that tells when it is gone, and whose errors are ours."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.gone: asyncio.Future[None] = options["loop"].create_future()

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


class Refused(asyncio.Protocol):
    """One connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hangs up."""
        transport.close()
