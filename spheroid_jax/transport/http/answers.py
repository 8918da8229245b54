"""What a coordinator answered, or why it didn't: in the worker's words."""

import os
import re
import ssl
from typing import TypeVar

import aiohttp
import msgspec
from yarl import URL

from spheroid_jax.transport import protocol
from spheroid_jax.transport.http import tls
from spheroid_jax.transport.http.retry import Again, retry_after
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.protocol import Problem, ProtocolError

Message = TypeVar("Message", bound=msgspec.Struct)

_PROBLEM_LIMIT = 64 << 10  # bytes
_PASSING = {408, 425, 429, 500, 502, 503, 504, 507}  # statuses that pass by themselves
_FINAL = {401, 403, 404, 409, 410, 422}  # if they come with a Problem
_EXPIRED = 10  # codes of OpenSSL
_UNTRUSTED = {18, 19, 20, 21}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}", re.ASCII)
_COUNT = re.compile(r"[0-9]{1,16}", re.ASCII)
_OTHER = "is it the address of a coordinator?"


async def check(answer: aiohttp.ClientResponse, url: str, token: Token) -> None:
    """Lets good answers pass.

    Raises:
      Again: Not a good one, but the next may be.
      LinkError: A refusal, or a redirect.
    """
    status = answer.status
    if 200 <= status < 300:
        encoding = answer.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise Again("it answered in an unknown encoding", cure=_OTHER, garbled=True)
        return
    if 300 <= status < 400:
        raise LinkError(
            f"{url}: it redirects to another address, which isn't followed, for the "
            "token is for this one; give the coordinator's own address",
            code="garbled",
            status=status,
        )
    problem = await _problem(answer, token)
    code = problem.code if problem else ""
    text = problem.error if problem else f"answer {status} {_line(answer.reason or '')}"
    there = answer.headers.get("Upload-Offset", "")
    if status == 409 and _is_count(there):
        raise Again(text, code=code, status=status, offset=int(there))
    if problem and status == 401:
        raise LinkError(
            f"the coordinator at {url} doesn't know {token.told}, or it was revoked: "
            "ask who runs it for a new one",
            code=code,
            status=status,
        )
    if problem and status in _FINAL:
        raise LinkError(f"{url}: {text}", code=code, status=status)
    if status in (401, 403):
        raise LinkError(
            f"{url}: {text}: the token isn't taken; ask who runs the coordinator",
            code="unauthorized" if status == 401 else "forbidden",
            status=status,
        )
    raise Again(
        text,
        cure="" if status in _PASSING else _OTHER,
        after=retry_after(answer.headers),
        garbled=status not in _PASSING,
        code=code,
        status=status,
    )


async def body(answer: aiohttp.ClientResponse, limit: int) -> bytes:
    """The whole answer, if it isn't longer than ``limit`` bytes; else Again."""
    parts, size = [], 0
    async for chunk in answer.content.iter_any():
        parts.append(chunk)
        size += len(chunk)
        if size > limit:
            raise Again(f"it answered more than {limit} bytes", garbled=True)
    return b"".join(parts)


def message(
    answer: aiohttp.ClientResponse, content: bytes, kind: type[Message]
) -> Message:
    """The answer as a message; Again if it isn't one."""
    try:
        return protocol.decode(content, kind)
    except ProtocolError as error:
        is_page = answer.content_type == "text/html"
        said = "a web page" if is_page else _line(str(error))
        raise Again(f"it answered {said}", cure=_OTHER, garbled=True) from None


def check_range(
    answer: aiohttp.ClientResponse, start: int, stop: int, total: int
) -> None:
    """Raises Again if an answer isn't just these bytes."""
    part = answer.headers.get("Content-Range") == f"bytes {start}-{stop - 1}/{total}"
    whole = (start, stop) == (0, total) and answer.content_length == total
    if not (part if answer.status == 206 else answer.status == 200 and whole):
        raise Again("it answered other bytes than were asked for", garbled=True)


def offset(answer: aiohttp.ClientResponse, start: int, stop: int) -> int:
    """What ``Upload-Offset`` says, from ``start`` to ``stop``; else Again."""
    said = answer.headers.get("Upload-Offset", "")
    if _is_count(said) and start <= int(said) <= stop:
        return int(said)
    raise Again("it doesn't say how much arrived", cure=_OTHER, garbled=True)


def segment(name: str) -> str:
    """The name of an upload, fit for a path; else Again."""
    if not _NAME.fullmatch(name):
        raise Again("it names the upload in a way that can't be", garbled=True)
    return name


def failure(error: Exception, url: str) -> Exception:
    """What to raise for a request that got no answer."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return _certificate(error, url)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return Again(
            f"the name {error.host} isn't known",
            cure="check the address, and whether this machine is connected",
        )
    if isinstance(error, aiohttp.ClientSSLError):
        return Again(
            f"no TLS there ({_reason(error)})", cure="is it http://?", garbled=True
        )
    if isinstance(error, TimeoutError):
        return Again("it took too long", cure="check the connection")
    if isinstance(error, aiohttp.ServerDisconnectedError):
        cure = "is it https://?" if url.startswith("http:") else ""
        return Again("the connection was closed without an answer", cure=cure)
    if isinstance(error, aiohttp.ClientPayloadError):
        return Again("the answer broke off")
    if isinstance(error, aiohttp.ClientConnectorError):
        return Again(f"no connection ({_reason(error)})")
    if isinstance(error, OSError):
        return Again(f"the connection broke ({_reason(error)})")
    if isinstance(error, aiohttp.ClientResponseError | ValueError):
        cure = "is it https://, and the address of a coordinator?"
        return Again("the answer isn't HTTP", cure=cure, garbled=True)
    return Again(f"the connection broke ({type(error).__name__})")


def _certificate(error: aiohttp.ClientConnectorCertificateError, url: str) -> Exception:
    cause = error.certificate_error
    code = cause.verify_code if isinstance(cause, ssl.SSLCertVerificationError) else 0
    if code in _UNTRUSTED:
        why = "it isn't trusted here; give it, or that of who signed it, by --ca=FILE"
    elif code == _EXPIRED:
        why = "it has expired; the coordinator needs another"
    elif tls.is_for_another_name(cause):
        where = URL(url).host_port_subcomponent or url
        return LinkError(tls.another_name(where), code="untrusted")
    else:
        return Again(f"its certificate isn't right ({_reason(error)})", garbled=True)
    return LinkError(f"{url}: the coordinator's certificate: {why}", code="untrusted")


async def _problem(answer: aiohttp.ClientResponse, token: Token) -> Problem | None:
    try:
        content = await body(answer, _PROBLEM_LIMIT)
        problem = protocol.decode(content, Problem)
    except (ProtocolError, Again, aiohttp.ClientError, OSError):
        return None
    text = token.redacted(_line(problem.error))
    return Problem(text, token.redacted(_line(problem.code)))


def _is_count(said: str) -> bool:
    return bool(_COUNT.fullmatch(said))


def _reason(error: Exception) -> str:
    inner: BaseException = getattr(error, "os_error", error)
    if isinstance(inner, ssl.SSLError):
        return _line(inner.reason or type(inner).__name__)
    if isinstance(inner, OSError) and inner.errno:  # asyncio has its own strerror
        return os.strerror(inner.errno)
    return type(inner).__name__


def _line(text: str) -> str:
    """A stranger's text, fit for one line of a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)[:300].strip()
