"""What our HTTP servers make of a request: who asks, and who is still there."""

import asyncio
import ipaddress
import re
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiohttp import hdrs, web

_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/-]{1,512}=*)", re.IGNORECASE | re.ASCII)
_Result = TypeVar("_Result")


def bearer(request: web.Request) -> str | None:
    """The token of a request; None if it has none, or several."""
    given = request.headers.getall(hdrs.AUTHORIZATION, [])
    found = _BEARER.fullmatch(given[0].strip()) if len(given) == 1 else None
    return found[1] if found else None


def is_under(request: web.Request, prefix: str) -> bool:
    """Whether a path is ``prefix`` or below it.

    By the route that was found, so that no spelling of a path gets around it.
    """
    resource = request.match_info.route.resource
    path = resource.canonical if resource is not None else request.path
    return path == prefix or path.startswith(f"{prefix}/")


def shown(request: web.Request) -> str:
    """The path, for a log: one short line of printable characters."""
    return ascii(request.path)[1:-1][:200]


def peer_address(request: web.Request) -> str:
    """Whom a request's connection comes from, for counting: as of :func:`network_of`.

    Behind a proxy that is the proxy: what it says of its own peers isn't believed.
    """
    transport = request.transport
    peer = None if transport is None else transport.get_extra_info("peername")
    return network_of(peer[0]) if isinstance(peer, tuple) else "?"


def network_of(host: str) -> str:
    """The part of an address that belongs to one owner: of IPv6 the /64.

    >>> network_of("203.0.113.9"), network_of("2001:db8::1:2"), network_of("what?")
    ('203.0.113.9', '2001:db8::/64', '?')
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return "?"
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), 64), strict=False))


async def while_there(
    request: web.Request, answer: Coroutine[Any, Any, _Result]
) -> _Result:
    """Works on an answer as long as there is somebody to get it.

    Raises:
      ConnectionResetError: the peer hung up; the work was cancelled, and has ended.
    """
    gone: asyncio.Future[None] | None = getattr(request.protocol, "gone", None)
    task = asyncio.ensure_future(answer)
    try:
        either: set[asyncio.Future[Any]] = {task} if gone is None else {task, gone}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ConnectionResetError("the peer is gone")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


async def expect_later(request: web.Request) -> None:
    """``Expect`` waits: the body is asked for by who reads it, once it is wanted."""


async def sign(request: web.Request, response: web.StreamResponse) -> None:
    """Headers of every response."""
    response.headers[hdrs.SERVER] = "spheroid_jax"
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
