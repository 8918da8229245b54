"""Errors as answers: a status and a line, whoever found what is wrong."""

from aiohttp import hdrs, web

from spheroid_jax.transport import protocol
from spheroid_jax.transport.protocol import Problem, ProtocolError

_RETRY = "2"  # seconds, where waiting helps
_WORDS = {404: "unknown", 408: "too_slow", 413: "too_large"}


def problem(error: ProtocolError, *, close: bool = False) -> web.Response:
    """An error as an answer."""
    headers = dict(getattr(error, "headers", {}))
    if error.status == 401:
        headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
    if error.status in (429, 503):
        headers.setdefault(hdrs.RETRY_AFTER, _RETRY)
    response = web.Response(
        status=error.status,
        body=protocol.encode(Problem(str(error), error.code)),
        content_type="application/json",
        headers=headers,
    )
    if close or error.status == 408:
        response.force_close()
    return response


def plain(error: web.HTTPException) -> web.StreamResponse:
    """An answer of aiohttp itself, with a body as of ours."""
    if error.status < 400:
        return error
    code = _WORDS.get(error.status, "malformed")
    response = problem(ProtocolError(error.reason, status=error.status, code=code))
    for name in (hdrs.ALLOW, hdrs.RETRY_AFTER):
        if name in error.headers:
            response.headers[name] = error.headers[name]
    return response
