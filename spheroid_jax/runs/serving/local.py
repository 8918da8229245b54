"""A front end and all stages in one process, to try a model on this machine."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spheroid_jax.commandline import Parser
from spheroid_jax.fields import ConfigError
from spheroid_jax.runs.exchange.frame import say
from spheroid_jax.runs.serving.frontend import (
    STOPS,
    FrontendOptions,
    HttpOptions,
    add_http,
    drain,
    http_options,
    running,
)
from spheroid_jax.runs.serving.options import StageOptions
from spheroid_jax.runs.serving.stage import Loaded, start_stage
from spheroid_jax.runs.serving.stopping import signals
from spheroid_jax.runs.serving.warming import warm
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.host.settings import HostSettings
from spheroid_jax.serving.loading import load_model
from spheroid_jax.serving.wire.auth import Credentials
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.tokens import mint

_HOST = "127.0.0.1"


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


def serve_local(options: LocalOptions) -> str:
    """Serves until it is asked to stop.

    Returns:
      ``finished``.

    Raises:
      ConfigError: it can't be served; one line.
    """
    try:
        stages, parts, facts = load_model(
            options.checkpoint, count=options.stages, round_=options.round
        )
    except ServingError as error:
        raise ConfigError(str(error)) from error
    loaded = [Loaded(*one, facts) for one in zip(stages, parts, strict=True)]
    asyncio.run(_serve(options, loaded))
    say("has stopped")
    return "finished"


def _own(options: LocalOptions, index: int, credentials: Credentials) -> StageOptions:
    """The options of a stage of this process."""
    return StageOptions(
        stage=index,
        stages=options.stages,
        checkpoint=options.checkpoint,
        round=options.round,
        host=_HOST,
        port=0,
        settings=options.settings,
        credentials=credentials,
        warm=(),
    )


async def _serve(options: LocalOptions, loaded: list[Loaded]) -> None:
    stopped = signals(STOPS)
    # Between the parts of this process; nobody else learns it.
    credentials = Credentials.shared(Token(mint()[0]))
    async with contextlib.AsyncExitStack() as stack:
        served = []
        for one in loaded:
            own = _own(options, one.stage.index, credentials)
            stage = await start_stage(one, own)
            stack.push_async_callback(stage.close)
            served.append(stage)
        addresses = tuple(f"{_HOST}:{stage.port}" for stage in served)
        whole = FrontendOptions(addresses, credentials, options.http)
        frontend, _ = await stack.enter_async_context(running(whole))
        hosts = [stage.host for stage in served]
        warming = asyncio.create_task(warm(hosts, options.http.method, stopped, say))
        # Ends before the stages do, with what it has begun.
        stack.push_async_callback(asyncio.wait, [warming])
        waits = asyncio.ensure_future(stopped.wait())
        broken: list[asyncio.Future[Any]] = [stage.broken for stage in served]
        ends: list[asyncio.Future[Any]] = [waits, *broken]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for future in broken:
            if future.done():
                future.result()
        await drain(frontend)
