"""A stage as a process: from its options to the signal that ends it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from spheroid_jax.fields import ConfigError
from spheroid_jax.leaving import leave_at_once
from spheroid_jax.ports import check_free
from spheroid_jax.runs.exchange.frame import say
from spheroid_jax.runs.serving.stopping import AFTER_COMPILE, signals
from spheroid_jax.runs.serving.warming import usual
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.host.serve import Serving, facts_of, serve_host, shapes
from spheroid_jax.serving.loading import Facts, load_stage
from spheroid_jax.serving.options.stage import StageOptions
from spheroid_jax.serving.packing import bucket
from spheroid_jax.serving.stages import Stage

_STOPS = "stops once what it computes is sent"


class Loaded(NamedTuple):
    """A stage and its parameters, and what they are of."""

    stage: Stage
    params: Any
    facts: Facts


def serve_stage(options: StageOptions) -> str:
    """Serves a stage until it is asked to stop.

    Returns:
      ``finished``.

    Raises:
      ConfigError: it can't be served; one line.
    """
    try:
        say(f"loads stage {options.stage} of {options.checkpoint} ...")
        # Outside of the loop, where Ctrl-C ends it.
        loaded = load(options)
        done = asyncio.run(_serve(loaded, options))
    except ServingError as error:
        raise ConfigError(str(error)) from error
    say("has stopped" if done else "has stopped, though something was still computed")
    if not done:
        leave_at_once(0)  # a thread that hangs must not keep the process
    return "finished"


async def _serve(loaded: Loaded, options: StageOptions) -> bool:
    starting = asyncio.create_task(start_stage(loaded, options))
    stop = signals(lambda: _STOPS if starting.done() else AFTER_COMPILE)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([stopped, starting], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        return True
    served = starting.result()
    cold = not_warm(loaded.stage, options.warm)
    if cold:
        say(
            f"stage {loaded.stage.index}: a first text waits while programs are "
            f"compiled for it; --warm={cold} compiles them at the start"
        )
    ends: list[asyncio.Future[Any]] = [stopped, served.broken]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    done = await served.close(drain=not served.broken.done())
    if served.broken.done():
        served.broken.result()
    return done


def not_warm(stage: Stage, warm: Sequence[tuple[int, str]]) -> str:
    """What ``--warm`` would be for usual texts; empty if it is so already.

    Args:
      stage: that is served.
      warm: (positions, fill) of programs that are compiled at the start.
    """
    there = {(bucket(min(n, stage.places), stage.places), fill) for n, fill in warm}
    wanted = {(shape.positions, shape.fill) for shape in usual(stage, None)}
    if wanted <= there:
        return ""
    return ",".join(
        str(n) if fill == "given" else f"{n}:{fill}"
        for n, fill in sorted(there | wanted)
    )


def load(options: StageOptions) -> Loaded:
    """Loads a stage's part of a checkpoint.

    Raises:
      ServingError: it can't be loaded; one line.
      ConfigError: something is missing on the command line; one line.
    """
    stage, params, facts = load_stage(
        options.checkpoint,
        index=options.stage,
        count=options.stages,
        round_=options.round,
    )
    if not stage.last and options.credentials.token is None:
        raise ConfigError(
            f"--token-file=FILE is missing: stage {stage.index} shows that token to "
            "the next stage"
        )
    return Loaded(stage, params, facts)


async def start_stage(
    loaded: Loaded, options: StageOptions, tell: Callable[[str], None] = say
) -> Serving:
    """Compiles what is asked for, and serves a stage.

    Raises:
      ConfigError: it can't listen; one line.
    """
    (stage, params, facts), settings = loaded, options.settings
    tell(
        f"stage {stage.index} of {stage.count}: {facts.method} of {facts.config}, "
        f"round {facts.round}; {settings.slots} slots of {stage.places} bytes"
    )
    try:
        served = await serve_host(
            stage,
            params,
            facts_of(stage, facts.fingerprint, facts.config, settings),
            settings,
            options.credentials,
            options.host,
            options.port,
            peers=options.peers,
            warm=shapes(stage, options.warm, settings.max_batch),
            say=lambda line: tell(f"stage {stage.index}: {line}"),
        )
    except ValueError as error:
        check_free(options.host, options.port)  # says it in our words
        raise ConfigError(str(error)) from error
    tell(f"stage {stage.index} listens on {options.host}:{served.port}")
    return served
