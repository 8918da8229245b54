"""A coordinator as a process: from its options to the end of its run."""

import argparse
import asyncio
import contextlib
import signal
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from spheroid_jax import data
from spheroid_jax.checkpoints import Checkpoints
from spheroid_jax.commandline import Parser, configured
from spheroid_jax.fields import ConfigError
from spheroid_jax.reports.log import MetricsLog
from spheroid_jax.runs.certificate import server_context
from spheroid_jax.runs.exchange import setup
from spheroid_jax.runs.exchange.frame import say
from spheroid_jax.runs.opening import corpus_lines
from spheroid_jax.runs.workdir import WorkdirError, open_workdir
from spheroid_jax.transport.bucket.coordinator_side import serve_bucket
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.coordinator import Coordinator, Model
from spheroid_jax.transport.dashboard import add_dashboard
from spheroid_jax.transport.http.limits import Limits, connections_for
from spheroid_jax.transport.http.server import Running, make_app, serve
from spheroid_jax.transport.http.tls import is_loopback
from spheroid_jax.transport.http.uploads import Uploads
from spheroid_jax.transport.ledger import Ledger
from spheroid_jax.transport.lock import Lock
from spheroid_jax.transport.tokens import LEDGER

_FILES = 2  # of a connection: the socket, and the file that goes over it
_NO_DEADLINE = (
    "NOTE: rounds have no deadline: one worker that hangs and still gives signs of "
    "life holds up all others. Set network.deadline, unless all workers are yours"
)
_FAREWELL = 60.0  # seconds in which workers may ask and hear that the run is over
_LINGER = 2.0  # seconds more, once all have heard it


class CoordinatorOptions(NamedTuple):
    """What the command line asks for."""

    config: ConfigDict
    host: str
    port: int
    workdir: Path
    context: ssl.SSLContext | None
    bucket: BlobStore | None


def parse(argv: Sequence[str]) -> CoordinatorOptions:
    """Parses the arguments of ``experiments.coordinator``.

    Raises:
      ConfigError: one line that says what is wrong.
    """
    parser = Parser(
        prog="python -m experiments.coordinator",
        usage="%(prog)s --config=FILE[:SIZE] --workdir=DIR [--listen=HOST:PORT] "
        "[--certificate=PEM --key=PEM | --insecure] [--bucket=URL] "
        "[--config.FIELD=VALUE ...]",
        description="Holds the model of a run and works with whoever has a token. "
        "The same command goes on with a run that was stopped or killed.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE[:SIZE]", help="of kind exchange")
    parser.add_argument("--workdir", metavar="DIR", help="run directory")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:8470",
        help="where to listen (%(default)s)",
    )
    parser.add_argument("--certificate", metavar="PEM", help="chain, for https")
    parser.add_argument("--key", metavar="PEM", help="of the certificate")
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="plain http to other machines: behind a proxy that does TLS, or in a net "
        "you trust",
    )
    parser.add_argument(
        "--bucket",
        metavar="URL",
        help="work through a bucket as well: s3://bucket/run (docs/bucket.md)",
    )
    options, rest = parser.parse_known_args(argv)
    config = configured(options.config, rest)
    if config.kind != "exchange":
        raise ConfigError(
            f"{config.name} is of kind {config.kind}, which needs no coordinator: use "
            "python -m experiments.run, or --config=configs/wan.py here"
        )
    if not options.workdir:
        raise ConfigError("--workdir=DIR is missing: name the run directory")
    host, port = _address(options.listen)
    context = _context(options, host)
    bucket = open_bucket(options.bucket) if options.bucket else None
    return CoordinatorOptions(
        config, host, port, Path(options.workdir), context, bucket
    )


def open_bucket(url: str) -> BlobStore:
    """The bucket at an address.

    Raises:
      ConfigError: it can't be one.
    """
    try:
        return BlobStore(url)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--listen={text} is no HOST:PORT: write 127.0.0.1:8470")
    return host.strip("[]"), int(port)


def _context(options: argparse.Namespace, host: str) -> ssl.SSLContext | None:
    context = server_context(options)
    if context is None and not options.insecure and not is_loopback(host):
        raise ConfigError(
            f"--listen={options.listen} is open to other machines, and tokens would "
            "go over the net in clear: add --certificate=PEM --key=PEM, or --insecure "
            "behind a proxy that does TLS"
        )
    return context


def coordinate(options: CoordinatorOptions) -> str:
    """Runs a coordinator until its run is over or it is asked to stop.

    Returns:
      ``finished`` or ``drained``.
    """
    config, workdir = options.config, options.workdir
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
        for line in _opening(config, corpus, workdir):
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
        model.compile()
        return asyncio.run(_serve(options, corpus, model, ledger, log, folder))


async def _serve(
    options: CoordinatorOptions,
    corpus: data.Corpus,
    model: Model,
    ledger: Ledger,
    log: MetricsLog,
    folder: Path,
) -> str:
    config = options.config
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
        raise ConfigError(str(error)) from error
    say(_welcome(options, server, coordinator))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, coordinator.stop)
    beside = [asyncio.create_task(_tidy(coordinator, uploads, config))]
    if options.bucket is not None:
        beside.append(
            asyncio.create_task(
                _serve_bucket(options, options.bucket, coordinator, ledger, folder)
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
            await _say_goodbye(coordinator)
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
    options: CoordinatorOptions,
    bucket: BlobStore,
    coordinator: Coordinator,
    ledger: Ledger,
    folder: Path,
) -> None:
    def key(name: str) -> bytes | None:
        row = ledger.tokens().get(name)
        known = row is not None and row.revoked is None
        return bytes.fromhex(row.sha256) if row is not None and known else None

    network = options.config.network
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


async def _say_goodbye(coordinator: Coordinator) -> None:
    """Waits until the workers know that the run is over, also who is away just now."""
    board = coordinator.board
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FAREWELL):
            while board.members.awaited(board.now(), board.began, _FAREWELL):
                await board.news(1.0)
            await asyncio.sleep(_LINGER)  # somebody's answer may have been lost


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


def _opening(config: ConfigDict, corpus: data.Corpus, workdir: Path) -> list[str]:
    m, t, e = config.model, config.train, config.exchange
    late = {"drop": "late updates are dropped", "gate": "late updates count later"}
    deadline = config.network.deadline
    ends = f"rounds of at most {deadline:g} s, " if deadline else ""
    return [
        *(f"NOTE: {note}" for note in corpus.notes),
        f"{config.name} ({config.size}) in {workdir}",
        *corpus_lines(corpus)[:1],
        f"{m.blocks} blocks x {t.replicas} replicas, {t.rounds} rounds x "
        f"{t.local_steps} steps; {ends}{late[config.network.late]}; updates as "
        f"{e.encoding}",
        *([] if deadline else [_NO_DEADLINE]),
    ]


def _welcome(
    options: CoordinatorOptions, server: Running, coordinator: Coordinator
) -> str:
    scheme = "https" if options.context else "http"
    host = "localhost" if options.host in ("127.0.0.1", "::1") else options.host
    if host in ("0.0.0.0", "::"):
        host = "THIS-HOST"
    url = f"{scheme}://{host}:{server.port}"
    done = coordinator.board.round
    state = f"goes on after round {done}" if done else "waits for workers"
    if done >= options.config.train.rounds:
        state = f"all {done} rounds are done; tells so to workers who ask"
    lines = [
        state,
        f"dashboard: {url}/",
        "a worker joins with a token of its own:",
        f"  (umask 077; python -m experiments.tokens --workdir={options.workdir} "
        "--add=NAME > NAME.token)",
        f"  python -m experiments.worker --coordinator={url} --token-file=NAME.token",
    ]
    if options.bucket is not None:
        lines.append(
            f"or with --coordinator={options.bucket.address.url} --name=NAME instead"
        )
    return "\n".join(lines)
