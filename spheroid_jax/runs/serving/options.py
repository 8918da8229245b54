"""What the command line of a stage says."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from spheroid_jax.commandline import Parser
from spheroid_jax.fields import ConfigError
from spheroid_jax.runs.certificate import server_context
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.host.settings import HostSettings
from spheroid_jax.serving.stages import FILLS
from spheroid_jax.serving.wire.auth import Credentials, LedgerTokens, OneToken
from spheroid_jax.serving.wire.dialling import split_address
from spheroid_jax.serving.wire.peers import Peers
from spheroid_jax.transport.http.tls import Token, client_context, read_token
from spheroid_jax.transport.ledger import Ledger
from spheroid_jax.transport.tokens import LEDGER


class StageOptions(NamedTuple):
    """What the command line asks for.

    Attributes:
      stage: which one, from 0.
      stages: how many there are; None: as many as the model has blocks.
      checkpoint: a run's directory, or one of its checkpoint directories.
      round: of training; None: the newest.
      host: to listen on.
      port: likewise; 0 for any.
      settings: limits.
      credentials: for both sides.
      warm: (positions, fill) of programs to compile at the start.
      peers: stages that this one may dial; None: all.
    """

    stage: int
    stages: int | None
    checkpoint: Path
    round: int | None
    host: str
    port: int
    settings: HostSettings
    credentials: Credentials
    warm: tuple[tuple[int, str], ...]
    peers: Peers | None = None


def parse(argv: Sequence[str]) -> StageOptions:
    """Parses the arguments of ``experiments.serve`` for a stage.

    Raises:
      ConfigError: one line that says what is wrong.
    """
    options = _parser().parse_args(argv)
    for name in ("stage", "checkpoint"):
        if getattr(options, name) is None:
            raise ConfigError(f"--{name} is missing (--help explains)")
    try:
        settings = HostSettings(
            options.slots, options.max_batch, options.queue, options.idle
        )
        host, port = listen_address(options.listen)
        return StageOptions(
            options.stage,
            options.of,
            Path(options.checkpoint),
            options.round,
            host,
            port,
            settings,
            credentials_of(options),
            _warm(options.warm),
            _peers(options.peers),
        )
    except ServingError as error:
        raise ConfigError(str(error)) from error


def _parser() -> Parser:
    defaults = HostSettings()
    parser = Parser(
        prog="python -m experiments.serve",
        usage="%(prog)s --stage=N --checkpoint=DIR --listen=HOST:PORT "
        "[--token-file=FILE] [--workdir=DIR] [options]",
        description="Serves one stage of a model: a block, or a share of the layers "
        "of an autoregressive reference.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--stage", metavar="N", type=int, help="which stage, from 0")
    add("--of", metavar="N", type=int, help="stages, of an autoregressive model")
    add("--checkpoint", metavar="DIR", help="of a run, or DIR/checkpoints/METHOD")
    add("--round", metavar="N", type=int, help="of training (default: the newest)")
    add(
        "--slots",
        metavar="N",
        type=int,
        default=defaults.slots,
        help="texts that are held at once (%(default)s)",
    )
    add(
        "--max-batch",
        metavar="N",
        type=int,
        default=defaults.max_batch,
        help="texts that are computed together at most (%(default)s)",
    )
    add(
        "--queue",
        metavar="N",
        type=int,
        default=defaults.queue,
        help="sweeps that may wait (%(default)s)",
    )
    add(
        "--idle",
        metavar="S",
        type=float,
        default=defaults.idle,
        help="seconds after which a text nobody asks for is dropped (%(default)g)",
    )
    add(
        "--warm",
        metavar="N[:FILL],...",
        default="1",
        help="positions of sweeps whose programs are compiled at the start, such as "
        "1,64:expected; none for nothing (%(default)s)",
    )
    add_net(parser, "127.0.0.1:8480")
    add(
        "--peers",
        metavar="HOST[:PORT],...",
        help="next stages that this one may dial, as front ends name them; without it "
        "who has its token may send it anywhere",
    )
    return parser


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


def _peers(text: str | None) -> Peers | None:
    if text is None:
        return None
    try:
        return Peers(part.strip() for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(f"--peers: {error}") from error


def _warm(text: str) -> tuple[tuple[int, str], ...]:
    if text == "none":
        return ()
    found = []
    for part in text.split(","):
        count, _, fill = part.strip().partition(":")
        fill = fill or "given"
        if not count.isdecimal() or not int(count) or fill not in FILLS:
            raise ConfigError(
                f"--warm={text} must be like 1,64:expected: numbers of positions, each "
                f"with one of {', '.join(FILLS)}; or none"
            )
        found.append((int(count), fill))
    return tuple(found)
