"""A coordinator as a process: from its options to the end of its run."""

import asyncio
import contextlib
from pathlib import Path

from ml_collections import ConfigDict

from spheroid_jax import data, heap
from spheroid_jax.checkpoints import Checkpoints
from spheroid_jax.fields import ConfigError
from spheroid_jax.leaving import on_signals
from spheroid_jax.ports import check_free
from spheroid_jax.reports.log import MetricsLog
from spheroid_jax.runs.exchange import ending, setup, telling
from spheroid_jax.runs.exchange.frame import say
from spheroid_jax.runs.exchange.options import CoordinatorOptions
from spheroid_jax.runs.workdir import WorkdirError, open_workdir
from spheroid_jax.transport.bucket.coordinator_side import serve_bucket
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.coordinator import Coordinator, Model
from spheroid_jax.transport.dashboard import add_dashboard
from spheroid_jax.transport.http.limits import Limits, connections_for
from spheroid_jax.transport.http.server import make_app, serve
from spheroid_jax.transport.http.uploads import Uploads
from spheroid_jax.transport.ledger import Ledger
from spheroid_jax.transport.lock import Lock
from spheroid_jax.transport.tokens import LEDGER

AGAIN = "what was accepted is kept; the same command goes on with the run"
_FILES = 2  # of a connection: the socket, and the file that goes over it
_FAREWELL = 60.0  # seconds in which workers may ask and hear that the run is over
_LINGER = 2.0  # seconds more, once all have heard it


def coordinate(options: CoordinatorOptions) -> str:
    """Runs a coordinator until its run is over or it is asked to stop.

    Either way its directory ends with a report; with ``report`` of ``only`` nothing is
    run, and the report alone is drawn.

    Returns:
      ``finished`` or ``drained``.
    """
    config, workdir = options.config, options.workdir
    if config is None:
        say(ending.report_on(workdir))
        return "finished"
    ended = _run(options, config, workdir)
    if options.report == "end":
        ending.leave_report(workdir, say)
    return ended


def _run(options: CoordinatorOptions, config: ConfigDict, workdir: Path) -> str:
    heap.give_back()
    corpus = setup.corpus_of(config)
    _open(workdir, config)
    folder = setup.exchange_folder(workdir)
    directory = workdir / "checkpoints" / setup.METHOD
    settings = config.checkpoint
    with (
        Lock(folder / "lock"),
        Ledger.open(workdir / LEDGER) as ledger,
        Checkpoints(
            directory,
            keep=settings.keep,
            keep_best=settings.keep_best,
            timeout=settings.timeout,
            identity=setup.identity_of(config),
            digest="blake3",  # workers must be able to trust what they fetch
            wait=True,  # nothing else happens meanwhile, so no copy is needed
        ) as checkpoints,
        MetricsLog(workdir) as log,
    ):
        for line in telling.opening(config, corpus, workdir):
            say(line)
        keys, init = setup.keys_of(config), setup.init_of(config)
        engine, weigh = setup.engine_of(config)
        model = Model(
            engine,
            setup.rules_of(config, weigh),
            lambda: (init(keys.init), keys.rounds),
            setup.judge_of(config, corpus),
            checkpoints,
            directory,
            setup.broadcast_of(config),
        )
        _check_ledger(ledger, model, workdir)
        ending.note_about(ledger, corpus, options.command)
        model.compile()
        heap.trim()  # compiling took much, for once
        return asyncio.run(_serve(options, config, corpus, model, ledger, log, folder))


async def _serve(
    options: CoordinatorOptions,
    config: ConfigDict,
    corpus: data.Corpus,
    model: Model,
    ledger: Ledger,
    log: MetricsLog,
    folder: Path,
) -> str:
    coordinator = Coordinator(
        setup.settings_of(config, corpus),
        model,
        ledger,
        folder / "updates",
        log,
        say=say,
    )
    uploads = Uploads(folder / "uploads", int(config.exchange.quota * 2**30))
    limits = Limits(idle=config.exchange.idle, connections=connections_for(_FILES))
    app = make_app(
        coordinator, uploads, limits, [lambda app: add_dashboard(app, coordinator)]
    )
    try:
        server = await serve(app, options.host, options.port, options.context)
    except ValueError as error:
        check_free(options.host, options.port)  # says it in our words
        raise ConfigError(str(error)) from error
    say(telling.welcome(options, server.port, coordinator.board))
    asked = asyncio.Event()

    def stop() -> str:
        asked.set()
        words = telling.stopping(coordinator.board)
        coordinator.stop()
        return words

    on_signals(stop, say, AGAIN)
    beside = [asyncio.create_task(_tidy(coordinator, uploads, config))]
    if options.bucket is not None:
        beside.append(
            asyncio.create_task(
                _serve_bucket(config, options.bucket, coordinator, ledger, folder)
            )
        )
    running = asyncio.create_task(coordinator.run())
    try:
        # Neither of those beside ends but by an error.
        await asyncio.wait([running, *beside], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            coordinator.stop()
        ended = await running
        for task in beside:
            if task.done():
                task.result()
        if ended == "finished":
            say(
                f"all rounds are done; the model is in {options.workdir}/checkpoints/"
                f"{setup.METHOD}/{coordinator.board.round}, every round's figures are "
                f"in {options.workdir}/metrics.jsonl"
            )
            await _say_goodbye(coordinator, asked)
            # With what the workers said of the last round.
            counts = coordinator.board.members.counts()
            await asyncio.to_thread(ledger.note, "members", counts)
        return ended
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await server.close()


async def _serve_bucket(
    config: ConfigDict,
    bucket: BlobStore,
    coordinator: Coordinator,
    ledger: Ledger,
    folder: Path,
) -> None:
    def key(name: str) -> bytes | None:
        row = ledger.tokens().get(name)
        known = row is not None and row.revoked is None
        return bytes.fromhex(row.sha256) if row is not None and known else None

    network = config.network
    await serve_bucket(
        coordinator,
        bucket,
        folder / "from_bucket",
        keys=key,
        keep_rounds=1 + max(2, network.max_age if network.late == "gate" else 0),
        say=coordinator.board.problem,
    )


async def _tidy(coordinator: Coordinator, uploads: Uploads, config: ConfigDict) -> None:
    """Deletes half uploads of rounds that are too long ago."""
    kept = config.network.max_age if config.network.late == "gate" else 0
    seen, round_ = 0, -1
    while True:
        seen = await coordinator.changed(seen, 3600.0)
        if coordinator.board.round != round_:
            round_ = coordinator.board.round
            uploads.drop(round_ - kept)  # here: parts belong to the event loop


async def _say_goodbye(coordinator: Coordinator, asked: asyncio.Event) -> None:
    """Waits until the workers know that the run is over, also who is away just now.

    Not any more once it is ``asked`` to stop: they are told when it runs again.
    """
    board = coordinator.board
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FAREWELL):
            while board.members.awaited(board.now(), board.began, _FAREWELL):
                if asked.is_set():
                    return
                await board.news(1.0)
            async with asyncio.timeout(_LINGER):  # somebody's answer may be lost
                await asked.wait()


def _open(workdir: Path, config: ConfigDict) -> None:
    """A new run, or the one that is there: a coordinator may be restarted by anyone."""
    is_there = (workdir / "config.json").exists()
    open_workdir(workdir, config, is_there, besides=("exchange",))


def _check_ledger(ledger: Ledger, model: Model, workdir: Path) -> None:
    known = ledger.noted("round", 0)
    if model.round < known:
        raise WorkdirError(
            f"{workdir} has no checkpoint of round {known}, which was done, only of "
            f"round {model.round}: put its checkpoints back, or begin anew in another "
            "--workdir"
        )
