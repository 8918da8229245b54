"""Errors as answers, in the form of OpenAI's, so that its client raises its own."""

from typing import Any

import msgspec
from aiohttp import hdrs, web

from spheroid_jax.transport.protocol import ProtocolError

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(ValueError):
    """Why a request isn't served; one line.

    Attributes:
      status: of HTTP.
      code: a word for programs.
      param: the field of the request that it is about, if it is about one.
      retry_after: seconds after which asking again may help; None where it won't.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str = "invalid_value",
        param: str | None = None,
        retry_after: float | None = None,
    ):
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.retry_after = retry_after


def body_of(error: ApiError) -> dict[str, Any]:
    """The JSON object that tells of an error."""
    usual = "server_error" if error.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": str(error),
            "type": _TYPES.get(error.status, usual),
            "param": error.param,
            "code": error.code,
        }
    }


def answer(error: ApiError, *, close: bool = False) -> web.Response:
    """The answer that tells of an error."""
    headers = {}
    if error.status == 401:
        headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
    if error.retry_after is not None:
        headers[hdrs.RETRY_AFTER] = str(max(1, round(error.retry_after)))
    response = web.Response(
        status=error.status,
        body=msgspec.json.encode(body_of(error)),
        content_type="application/json",
        headers=headers,
    )
    if close or error.status == 408:
        response.force_close()
    return response


def of_body(error: ProtocolError) -> ApiError:
    """What was wrong with a request before its JSON was looked at: its body, mostly."""
    later = 2.0 if error.status in (429, 503) else None
    return ApiError(str(error), status=error.status, code=error.code, retry_after=later)


def of_router(error: web.HTTPException) -> web.StreamResponse:
    """An answer of aiohttp itself, with a body as of ours."""
    if error.status < 400:
        return error
    paths = "POST /v1/completions, POST /v1/generate, GET /v1/models"
    said = f"{error.reason}; there is {paths}, GET /healthz, GET /metrics"
    code = "unknown_url" if error.status == 404 else "invalid_request"
    response = answer(ApiError(said, status=error.status, code=code))
    if hdrs.ALLOW in error.headers:
        response.headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
    return response
