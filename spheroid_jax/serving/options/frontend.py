"""What the command line of a front end says."""

import argparse
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from spheroid_jax.fields import ConfigError
from spheroid_jax.parser import Parser
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.frontend.settings import Settings
from spheroid_jax.serving.methods import Method
from spheroid_jax.serving.options.net import ledger_path, listen_address
from spheroid_jax.serving.wire.auth import Credentials
from spheroid_jax.serving.wire.dialling import split_address
from spheroid_jax.serving.wire.messages import WireDtype
from spheroid_jax.transport.http.tls import client_context, is_loopback, read_token
from spheroid_jax.transport.options.certificate import server_context

LISTEN = "127.0.0.1:8471"


class HttpOptions(NamedTuple):
    """What a front end is for its clients.

    Attributes:
      host: to listen on.
      port: likewise; 0 for any.
      context: for https; None: http.
      clients: run directory whose tokens let in; None: everybody who can connect.
      settings: limits.
      method: where a request names none; None: as the model can.
      wire_dtype: of what stages send each other.
    """

    host: str
    port: int
    context: ssl.SSLContext | None
    clients: Path | None
    settings: Settings
    method: Method | None
    wire_dtype: WireDtype


class FrontendOptions(NamedTuple):
    """What the command line asks for.

    Attributes:
      stages: addresses.
      credentials: for them.
      http: for clients.
    """

    stages: tuple[str, ...]
    credentials: Credentials
    http: HttpOptions


def parse(argv: Sequence[str]) -> FrontendOptions:
    """Parses the arguments of ``experiments.serve --frontend``.

    Raises:
      ConfigError: one line that says what is wrong.
    """
    parser = Parser(
        prog="python -m experiments.serve",
        usage="%(prog)s --frontend --stages=HOST:PORT,... --token-file=FILE "
        "[--listen=HOST:PORT] [--clients=DIR] [options]",
        description="Answers requests for completions over HTTP, with the stages of a "
        "model. Stages with the same block are replicas.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--frontend", action="store_true", help="this is the front end")
    add("--stages", metavar="HOST:PORT,...", help="all stages, in any order")
    add("--token-file", metavar="FILE", help="the token that is shown to stages")
    add("--ca", metavar="PEM", help="talk TLS to stages, and trust these certificates")
    add_http(parser)
    options = parser.parse_args(argv)
    if not options.stages:
        raise ConfigError("--stages is missing: name all stages, HOST:PORT,HOST:PORT")
    if not options.token_file:
        raise ConfigError("--token-file=FILE is missing: give the one of the stages")
    try:
        token = read_token(Path(options.token_file))
        client = client_context(Path(options.ca)) if options.ca else None
    except ValueError as error:
        raise ConfigError(str(error)) from error
    credentials = Credentials(token, client=client, insecure=options.insecure)
    stages = _stages(options.stages)
    if client is None and not options.insecure:
        for stage in stages:
            _check_near(stage)
    return FrontendOptions(stages, credentials, http_options(options))


def add_http(parser: argparse.ArgumentParser) -> None:
    """Adds the options of what a front end is for its clients."""
    defaults, add = Settings(), parser.add_argument
    add(
        "--listen",
        metavar="HOST:PORT",
        default=LISTEN,
        help="where to listen (%(default)s)",
    )
    add(
        "--clients",
        metavar="DIR",
        help="let in who has a token of experiments.tokens --workdir=DIR; without it "
        "everybody on this machine",
    )
    add("--certificate", metavar="PEM", help="chain, for https")
    add("--key", metavar="PEM", help="of the certificate")
    add(
        "--insecure",
        action="store_true",
        help="plain http and TCP to other machines, in a net you trust",
    )
    add(
        "--method",
        metavar="METHOD",
        help="of requests that name none, such as token (speculative=16 for a model "
        "of blocks, which writes the same text in fewer trips; token for a reference)",
    )
    add(
        "--wire-dtype",
        choices=get_args(WireDtype),
        default="float32",
        help="of what stages send each other (%(default)s); fewer bits change texts",
    )
    for flag, name, about in (
        ("--waiting", "queue", "texts that may wait; more get 429"),
        ("--longest", "length", "bytes of a text"),
        ("--request-seconds", "request", "that a request may take"),
        ("--sweep-seconds", "sweep", "of a trip through the stages"),
        ("--patience", "patience", "seconds to wait for a stage that went away"),
    ):
        value = getattr(defaults, name)
        add(
            flag,
            metavar="N" if isinstance(value, int) else "S",
            type=type(value),
            default=value,
            dest=name,
            help=f"{about} (%(default)g)",
        )


def http_options(options: argparse.Namespace) -> HttpOptions:
    """What :func:`add_http`'s options say.

    Raises:
      ConfigError: they don't go together, or a file can't be read.
    """
    host, port = listen_address(options.listen)
    context = server_context(options)
    near = is_loopback(host)
    if not near and not options.clients:
        raise ConfigError(
            f"--listen={options.listen} is open to other machines, and everybody could "
            "ask: add --clients=DIR, with tokens of python -m experiments.tokens "
            "--workdir=DIR"
        )
    if not near and context is None and not options.insecure:
        raise ConfigError(
            f"--listen={options.listen} is open to other machines, and tokens and "
            "texts would go over the net in clear: add --certificate=PEM --key=PEM, or "
            "--insecure behind a proxy that does TLS"
        )
    clients = Path(options.clients) if options.clients else None
    if clients is not None:
        ledger_path("--clients", clients)  # there is one
    limits = {}
    for name in ("queue", "length", "request", "sweep", "patience"):
        limits[name] = getattr(options, name)
        if not 0 <= limits[name] < 1e9 or (name != "queue" and not limits[name]):
            raise ConfigError(f"{name}={limits[name]} makes no sense: give more than 0")
    # What may take so long is no sign that a stage hangs.
    limits["oldest"] = limits["sweep"]
    try:
        method = Method.parse(options.method) if options.method else None
    except ServingError as error:
        raise ConfigError(f"--method: {error}") from error
    return HttpOptions(
        host, port, context, clients, Settings(**limits), method, options.wire_dtype
    )


def _stages(text: str) -> tuple[str, ...]:
    stages = tuple(part.strip() for part in text.split(",") if part.strip())
    for stage in stages:
        try:
            split_address(stage)
        except ValueError as error:
            raise ConfigError(f"--stages: {error}") from error
        if stages.count(stage) > 1:
            raise ConfigError(f"--stages names {stage} twice: name each stage once")
    if not stages:
        raise ConfigError("--stages is empty: name all stages, HOST:PORT,HOST:PORT")
    return stages


def _check_near(stage: str) -> None:
    host, _ = split_address(stage)
    if not is_loopback(host):
        raise ConfigError(
            f"--stages: {stage} is another machine, and plain TCP can be read and "
            "changed on the way; give --ca=PEM for TLS, or --insecure in a net you "
            "trust"
        )
