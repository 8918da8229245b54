"""Whether one could listen at an address: asked before what takes long."""

import errno
import os
import socket

from spheroid_jax.fields import ConfigError


def check_free(host: str, port: int) -> None:
    """Whether one could listen there now: asked before what takes long.

    Raises:
      ConfigError: one couldn't; one line.
    """
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError):
        raise ConfigError(
            f"--listen={where}: no machine is known as {host}; give a name or an "
            "address of this one"
        ) from None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                # As a server does: a port whose last connections linger is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:
                continue
            raise ConfigError(_refused(where, error)) from None


def _refused(where: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"{where} is taken by another process: end it, or choose another --listen"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"{where} is no address of this machine: choose another --listen, such as "
            "0.0.0.0 for all that it has"
        )
    if error.errno == errno.EACCES:
        return f"{where} is not for ordinary users: choose a port from 1024 as --listen"
    said = os.strerror(error.errno).lower() if error.errno else str(error)
    return f"can't listen on {where} ({said}): choose another --listen"
