"""A front end and all stages in one process, to try a model on this machine."""

import asyncio
import contextlib
import logging
from typing import Any

from spheroid_jax.fields import ConfigError
from spheroid_jax.leaving import leave_at_once
from spheroid_jax.runs.exchange.frame import say
from spheroid_jax.runs.serving.frontend import STOPS, drain, running
from spheroid_jax.runs.serving.stage import Loaded, start_stage
from spheroid_jax.runs.serving.stopping import AFTER_COMPILE, signals
from spheroid_jax.runs.serving.warming import warm
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.host.serve import Serving
from spheroid_jax.serving.loading import load_model
from spheroid_jax.serving.options.frontend import FrontendOptions
from spheroid_jax.serving.options.local import LocalOptions
from spheroid_jax.serving.options.stage import StageOptions
from spheroid_jax.serving.wire.auth import Credentials
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.tokens import mint

_HOST = "127.0.0.1"


def serve_local(options: LocalOptions) -> str:
    """Serves until it is asked to stop.

    Returns:
      ``finished``.

    Raises:
      ConfigError: it can't be served; one line.
    """
    say(f"loads {options.checkpoint} ...")
    try:
        stages, parts, facts = load_model(
            options.checkpoint, count=options.stages, round_=options.round
        )
    except ServingError as error:
        raise ConfigError(str(error)) from error
    loaded = [Loaded(*one, facts) for one in zip(stages, parts, strict=True)]
    done = asyncio.run(_serve(options, loaded))
    say("has stopped" if done else "has stopped, though something was still computed")
    if not done:
        leave_at_once(0)  # a thread that hangs must not keep the process
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


async def _serve(options: LocalOptions, loaded: list[Loaded]) -> bool:
    """Serves; whether all that was computed came to its end."""
    served: list[Serving] = []
    ended: list[bool] = []

    def stopping() -> str:
        _hush()
        compiles = any(stage.host.compiling for stage in served)
        return AFTER_COMPILE if compiles else STOPS

    async def close(stage: Serving) -> None:
        ended.append(await stage.close())

    stopped = signals(stopping)
    # Between the parts of this process; nobody else learns it.
    credentials = Credentials.shared(Token(mint()[0]))
    async with contextlib.AsyncExitStack() as stack:
        for one in loaded:
            own = _own(options, one.stage.index, credentials)
            stage = await start_stage(one, own)
            stack.push_async_callback(close, stage)
            served.append(stage)
        if not stopped.is_set():
            await _answer(stack, options, credentials, served, stopped)
    return all(ended)


async def _answer(
    stack: contextlib.AsyncExitStack,
    options: LocalOptions,
    credentials: Credentials,
    served: list[Serving],
    stopped: asyncio.Event,
) -> None:
    """The front end, until it is asked to stop or a stage can't go on."""
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


def _hush() -> None:
    """Both ends of every connection are here: that they end is no news to anybody."""
    logging.getLogger("spheroid_jax.serving.wire").setLevel(logging.ERROR)
