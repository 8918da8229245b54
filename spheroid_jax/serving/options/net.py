"""Where a program listens, which tokens and certificates it has."""

import argparse
from pathlib import Path

from spheroid_jax.fields import ConfigError
from spheroid_jax.serving.wire.auth import Credentials, LedgerTokens, OneToken
from spheroid_jax.serving.wire.dialling import split_address
from spheroid_jax.transport.http.tls import (
    Token,
    client_context,
    is_loopback,
    read_token,
)
from spheroid_jax.transport.ledger import Ledger
from spheroid_jax.transport.options.certificate import server_context
from spheroid_jax.transport.tokens import LEDGER


def add_net(parser: argparse.ArgumentParser, listen: str) -> None:
    """Adds the options of who listens and dials: address, tokens, certificates."""
    add = parser.add_argument
    add(
        "--listen",
        metavar="HOST:PORT",
        default=listen,
        help="where to listen (%(default)s)",
    )
    add(
        "--token-file",
        metavar="FILE",
        help="the token of this process; who has the same one is let in",
    )
    add(
        "--workdir",
        metavar="DIR",
        help="let in who has a token of experiments.tokens --workdir=DIR instead",
    )
    add("--certificate", metavar="PEM", help="chain, for TLS")
    add("--key", metavar="PEM", help="of the certificate")
    add("--ca", metavar="PEM", help="certificates to trust at stages, by TLS")
    add(
        "--insecure",
        action="store_true",
        help="plain TCP to other machines, in a net you trust",
    )


def listen_address(text: str) -> tuple[str, int]:
    """Host and port of ``--listen``; port 0 is any that is free.

    Raises:
      ConfigError: it isn't an address.
    """
    host, _, port = text.rpartition(":")
    if port == "0" and host:
        return host.strip("[]"), 0
    try:
        return split_address(text)
    except ValueError as error:
        raise ConfigError(f"--listen: {error}") from error


def credentials_of(options: argparse.Namespace) -> Credentials:
    """What :func:`add_net`'s options say of tokens and certificates.

    Raises:
      ConfigError: they don't go together, or a file can't be read.
      LedgerError: the ledger of ``--workdir`` can't be read.
    """
    if not options.token_file and not options.workdir:
        raise ConfigError(
            "--token-file=FILE is missing: write one token into a file that only you "
            "can read, and give it to all processes; or --workdir=DIR for a token each"
        )
    server, client = server_context(options), None
    host, _ = listen_address(options.listen)
    if server is None and not options.insecure and not is_loopback(host):
        raise ConfigError(
            f"--listen={options.listen} lets other machines in, and plain TCP can be "
            "read and changed on the way: give --certificate and --key for TLS, or "
            "--insecure in a net you trust"
        )
    try:
        token = read_token(Path(options.token_file)) if options.token_file else None
        if options.ca or options.certificate:
            client = client_context(Path(options.ca) if options.ca else None)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    admits = _ledger(Path(options.workdir)) if options.workdir else _one(token)
    return Credentials(token, admits, client, server, options.insecure)


def ledger_path(flag: str, workdir: Path) -> Path:
    """The ledger of a run directory that ``flag`` names.

    Raises:
      ConfigError: it has none.
    """
    path = workdir / LEDGER
    if not path.exists():
        raise ConfigError(
            f"{flag}={workdir} has no tokens: make some with python -m "
            f"experiments.tokens --workdir={workdir} --add=NAME"
        )
    return path


def _one(token: Token | None) -> OneToken | None:
    return OneToken(token) if token is not None else None


def _ledger(workdir: Path) -> LedgerTokens:
    return LedgerTokens(Ledger.open(ledger_path("--workdir", workdir)))
