"""What the command line of a worker asks for."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from spheroid_jax.fields import ConfigError
from spheroid_jax.parser import Parser
from spheroid_jax.transport.http.tls import Token, address, client_context, read_token

FOLDER = Path("runs", "workers")


class WorkerOptions(NamedTuple):
    """What the command line asks for.

    Attributes:
      url: of the coordinator, or of a bucket.
      name: of this worker; of a bucket only, elsewhere the token tells.
      token: who this worker is.
      ca: certificates to trust; None for the system's.
      insecure: whether plain http to another machine is fine.
      corpus: in place of the coordinator's ``data.corpus``; empty: the same.
      workdir: base of the folders of this worker, one a run; others may share it.
      patience: seconds for which a coordinator that doesn't answer is tried.
    """

    url: str
    name: str
    token: Token
    ca: Path | None
    insecure: bool
    corpus: str
    workdir: Path
    patience: float


def is_bucket(url: str) -> bool:
    """Whether an address is that of a bucket."""
    return url.partition("://")[0] in ("s3", "gs", "file", "memory")


def parse(argv: Sequence[str]) -> WorkerOptions:
    """Parses the arguments of ``experiments.worker``.

    Raises:
      ConfigError: one line that says what is wrong.
    """
    options = _parser().parse_args(argv)
    for name in ("coordinator", "token_file"):
        if not getattr(options, name):
            raise ConfigError(
                f"--{name.replace('_', '-')} is missing (--help explains)"
            )
    if is_bucket(options.coordinator) != bool(options.name):
        raise ConfigError(
            f"--coordinator={options.coordinator} is a bucket: add --name=NAME, the "
            "name that goes with the token"
            if not options.name
            else f"--name={options.name} is for buckets: leave it out, the token tells"
        )
    if not options.patience > 0:
        raise ConfigError(f"--patience={options.patience:g} must be above 0 seconds")
    ca = Path(options.ca) if options.ca else None
    try:
        token = read_token(Path(options.token_file))
        if not options.name:
            address(options.coordinator, insecure=options.insecure)
            client_context(ca)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return WorkerOptions(
        options.coordinator,
        options.name,
        token,
        ca,
        options.insecure,
        options.corpus,
        Path(options.workdir or FOLDER),
        options.patience,
    )


def _parser() -> Parser:
    parser = Parser(
        prog="python -m experiments.worker",
        usage="%(prog)s --coordinator=URL --token-file=FILE [--name=NAME] [options]",
        description="Trains for a coordinator, which says what. A worker may come, go "
        "and come back at any time.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--coordinator",
        metavar="URL",
        help="https://host:8470, or a bucket such as s3://bucket/run",
    )
    parser.add_argument(
        "--name", metavar="NAME", default="", help="of this worker, for a bucket"
    )
    parser.add_argument(
        "--token-file", metavar="FILE", help="holds this worker's token"
    )
    parser.add_argument("--ca", metavar="PEM", help="certificates to trust")
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="plain http to another machine, in a net you trust",
    )
    parser.add_argument(
        "--corpus",
        metavar="NAME",
        default="",
        help="where the text is on this machine, such as file:PATH; it must be the "
        "coordinator's, byte for byte",
    )
    parser.add_argument(
        "--workdir",
        metavar="DIR",
        default=str(FOLDER),
        help="for what this worker would miss after a restart, in a folder of its own "
        f"by worker and run; others may share DIR ({FOLDER})",
    )
    parser.add_argument(
        "--patience",
        metavar="S",
        type=float,
        default=600.0,
        help="seconds to try a coordinator that doesn't answer (%(default)g)",
    )
    return parser
