"""Whom a stage may dial: who has its token could else send it anywhere."""

import ipaddress
from collections.abc import Iterable

from spheroid_jax.serving.wire.dialling import split_address


class Peers:
    """Hosts, or single ports of hosts, by the names that routes give them.

    Names aren't looked up: ``b:8480`` isn't ``10.0.0.2:8480``, whatever b is.

    Args:
      allowed: ``HOST`` or ``HOST:PORT`` each; ``[IPv6]`` or ``[IPv6]:PORT``.

    Raises:
      ValueError: one is neither; one line.

    >>> peers = Peers(["a:8480", "10.0.0.2"])
    >>> [peers.allow(to) for to in ("A:8480", "a:22", "10.0.0.2:22", "b:8480", "a")]
    [True, False, True, False, False]
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = {_parsed(text) for text in allowed}

    def allow(self, address: str) -> bool:
        """Whether ``HOST:PORT`` may be dialled."""
        try:
            host, port = split_address(address)
        except ValueError:
            return False
        return bool({(_same(host), port), (_same(host), None)} & self._allowed)


def _parsed(text: str) -> tuple[str, int | None]:
    has_port = ":" in text.rpartition("]")[2]
    if has_port:
        host, port = split_address(text)
        return _same(host), port
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not host or any(c in host for c in "[]/@ "):
        raise ValueError(f"{text!r} is neither HOST nor HOST:PORT")
    return _same(host), None


def _same(host: str) -> str:
    """One spelling of a host."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower().rstrip(".")
