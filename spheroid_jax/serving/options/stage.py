"""What the command line of a stage says."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from spheroid_jax.fields import ConfigError
from spheroid_jax.parser import Parser
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.host.settings import HostSettings
from spheroid_jax.serving.methods import FILLS
from spheroid_jax.serving.options.net import add_net, credentials_of, listen_address
from spheroid_jax.serving.wire.auth import Credentials
from spheroid_jax.serving.wire.peers import Peers

# Of requests, and of sweeps in which nothing is to be filled, or all is written.
STAGE_FILLS = (*FILLS, "given", "written")


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
            warm_shapes(options.warm),
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


def _peers(text: str | None) -> Peers | None:
    if text is None:
        return None
    try:
        return Peers(part.strip() for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(f"--peers: {error}") from error


def warm_shapes(text: str) -> tuple[tuple[int, str], ...]:
    """(positions, fill) of what ``--warm`` names.

    Raises:
      ConfigError: it can't be read.
    """
    if text == "none":
        return ()
    found = []
    for part in text.split(","):
        count, _, fill = part.strip().partition(":")
        fill = fill or "given"
        if not count.isdecimal() or not int(count) or fill not in STAGE_FILLS:
            raise ConfigError(
                f"--warm={text} must be like 1,64:expected: numbers of positions, each "
                f"with one of {', '.join(STAGE_FILLS)}; or none"
            )
        found.append((int(count), fill))
    return tuple(found)
