"""Around every request: who asks, what goes wrong, what is counted."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import hdrs, web
from yarl import URL

from spheroid_jax.serving.frontend import errors
from spheroid_jax.serving.frontend.errors import ApiError
from spheroid_jax.serving.frontend.metrics import Metrics
from spheroid_jax.transport.http.bodies import Body
from spheroid_jax.transport.http.reception import Reception
from spheroid_jax.transport.http.requests import bearer, is_under, shown
from spheroid_jax.transport.http.tls import is_loopback
from spheroid_jax.transport.ledger import LedgerError
from spheroid_jax.transport.protocol import ProtocolError

log = logging.getLogger(__name__)
PREFIX = "/v1"
_EVERYBODY = ""  # the name of all who need no token
OUTCOME = web.RequestKey("outcome", str)  # where the status doesn't tell it
_OUTCOMES = {401: "unauthorized", 429: "busy", 503: "unavailable", 504: "timeout"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
NameOf = Callable[[str], str | None]


def front(metrics: Metrics, reception: Reception, name_of: NameOf | None) -> Any:
    """The middleware.

    Args:
      metrics: that count.
      reception: that knows who asks too often.
      name_of: whose token it is, None for nobody's; without it everybody may ask, and
        as often as they like: they are on this machine.
    """

    @web.middleware
    async def around(request: web.Request, handler: Handler) -> web.StreamResponse:
        began, said = time.monotonic(), "gone"
        counted = is_under(request, PREFIX)
        outcome = "cancelled"
        try:
            try:
                if name_of is None:
                    _check_host(request)
                    with reception.visit(request, _EVERYBODY):
                        response = await handler(request)
                else:
                    name = _name(request, name_of) if counted else None
                    with reception.visit(request, name):
                        await _check(reception, request, name, counted)
                        response = await handler(request)
            except ApiError as error:
                response = errors.answer(error)
            except ProtocolError as error:
                response = errors.answer(errors.of_body(error))
            except web.HTTPException as error:
                response = errors.of_router(error)
            except (ConnectionError, asyncio.CancelledError):
                raise  # nobody is there to be told
            except Exception:
                log.exception("%s %s failed", request.method, shown(request))
                broken = ApiError("internal error", status=500, code="internal")
                response = errors.answer(broken, close=True)
            said = str(response.status)
            outcome = outcome_of(response.status)
            return response
        finally:
            if counted:
                metrics.requests.labels(request.get(OUTCOME, outcome)).inc()
            path, seconds = shown(request), time.monotonic() - began
            log.debug("%s %s %s %.3fs", request.method, path, said, seconds)

    return around


def outcome_of(status: int) -> str:
    """The word for how a request ended, as of ``metrics.OUTCOMES``."""
    if status < 400:
        return "ok"
    return _OUTCOMES.get(status, "refused" if status < 500 else "broken")


async def json_body(request: web.Request, most: int, seconds: float) -> bytes:
    """A body of JSON.

    Asking for the type of content keeps web pages out: a browser sends JSON to another
    site only after that site has allowed it, which this one doesn't.

    Raises:
      ApiError: 415, it isn't said to be JSON.
      ProtocolError: 413 too long, 408 too slow, 400 not framed as HTTP wants.
    """
    if request.content_type != "application/json":
        raise ApiError(
            "send JSON, with the header Content-Type: application/json",
            status=415,
            code="invalid_content_type",
        )
    until = asyncio.get_running_loop().time() + seconds
    return await Body(request, most, until).whole()


def _check_host(request: web.Request) -> None:
    """Keeps out pages whose site has its name point here (DNS rebinding)."""
    named = request.headers.get(hdrs.HOST, "localhost")
    try:
        host = URL(f"http://{named}").host or ""
    except ValueError:
        host = ""
    if not is_loopback(host):
        raise ApiError(
            "this front end serves its own machine only: ask it by localhost, or have "
            "it started with --clients",
            status=403,
            code="wrong_host",
        )


def _name(request: web.Request, name_of: NameOf) -> str | None:
    """Whose token a request shows; None: nobody's."""
    token = bearer(request)
    try:
        return None if token is None else name_of(token)
    except LedgerError as error:
        log.error("tokens can't be read: %s", error)
        raise ApiError(
            "tokens can't be read just now; ask again later",
            status=503,
            code="unavailable",
            retry_after=2.0,
        ) from None


async def _check(
    reception: Reception, request: web.Request, name: str | None, needs_token: bool
) -> None:
    """Raises ApiError for who has no token and needs one, and who asks too often."""
    seconds = await reception.ask(request, name)
    if name is None and needs_token:
        raise ApiError(
            "this needs a token ('Authorization: Bearer TOKEN', api_key of OpenAI's "
            "client) that is known here and not revoked: ask who runs this for one",
            status=401,
            code="invalid_api_key",
        )
    if seconds:
        raise ApiError(
            "too many requests at once: ask again a little later",
            status=429,
            code="busy",
            retry_after=seconds,
        )
