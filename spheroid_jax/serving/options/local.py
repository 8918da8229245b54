"""What the command line says where all is in one process."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from spheroid_jax.fields import ConfigError
from spheroid_jax.parser import Parser
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.host.settings import HostSettings
from spheroid_jax.serving.options.frontend import HttpOptions, add_http, http_options


class LocalOptions(NamedTuple):
    """What the command line asks for.

    Attributes:
      checkpoint: a run's directory, or one of its checkpoint directories.
      round: of training; None: the newest.
      stages: of an autoregressive model; None: one for each block.
      settings: limits of every stage.
      http: for clients.
    """

    checkpoint: Path
    round: int | None
    stages: int | None
    settings: HostSettings
    http: HttpOptions


def parse(argv: Sequence[str]) -> LocalOptions:
    """Parses the arguments of ``experiments.serve --local``.

    Raises:
      ConfigError: one line that says what is wrong.
    """
    defaults = HostSettings()
    parser = Parser(
        prog="python -m experiments.serve",
        usage="%(prog)s --local --checkpoint=DIR [--listen=HOST:PORT] [options]",
        description="Answers requests for completions over HTTP, all in one process.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--local", action="store_true", help="front end and stages in one process")
    add("--checkpoint", metavar="DIR", help="of a run, or DIR/checkpoints/METHOD")
    add("--round", metavar="N", type=int, help="of training (default: the newest)")
    add("--of", metavar="N", type=int, help="stages, of an autoregressive model (1)")
    for flag, name, about in (
        ("--slots", "slots", "texts that are held at once"),
        ("--max-batch", "max_batch", "texts that are computed together at most"),
    ):
        value = getattr(defaults, name)
        said = f"{about} (%(default)s)"
        add(flag, metavar="N", type=int, default=value, dest=name, help=said)
    add_http(parser)
    options = parser.parse_args(argv)
    if not options.checkpoint:
        raise ConfigError("--checkpoint=DIR is missing: name the directory of a run")
    try:
        settings = HostSettings(slots=options.slots, max_batch=options.max_batch)
    except ServingError as error:
        raise ConfigError(str(error)) from error
    return LocalOptions(
        Path(options.checkpoint),
        options.round,
        options.of,
        settings,
        http_options(options),
    )
