"""A worker as a process: from its options to the end of the run."""

import asyncio
import contextlib
import math
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import jax
from ml_collections import ConfigDict

from spheroid_jax import data
from spheroid_jax.commandline import Parser
from spheroid_jax.fields import ConfigError
from spheroid_jax.runs.exchange import frame, setup
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.bucket.worker_side import BucketLink
from spheroid_jax.transport.http.client import HttpLink
from spheroid_jax.transport.http.retry import Pace
from spheroid_jax.transport.http.tls import Token, read_token
from spheroid_jax.transport.link import Link, LinkError
from spheroid_jax.transport.own_folder import lock_token, own_folder
from spheroid_jax.transport.protocol import VERSION, Register, Registered
from spheroid_jax.transport.session import Identity
from spheroid_jax.transport.trainer import Trainer
from spheroid_jax.transport.worker import Worker

FOLDER = Path("runs", "workers")
_FIRST_PATIENCE = 180.0  # seconds, until there is a first answer
_NOTICE_SECONDS = 20.0  # between lines that say that a try failed


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


def parse(argv: Sequence[str]) -> WorkerOptions:
    """Parses the arguments of ``experiments.worker``.

    Raises:
      ConfigError: one line that says what is wrong.
    """
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
    options = parser.parse_args(argv)
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
    try:
        token = read_token(Path(options.token_file))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return WorkerOptions(
        options.coordinator,
        options.name,
        token,
        Path(options.ca) if options.ca else None,
        options.insecure,
        options.corpus,
        Path(options.workdir or FOLDER),
        options.patience,
    )


def work(options: WorkerOptions) -> str:
    """Works for a coordinator until the run is over or it is asked to stop.

    Returns:
      ``finished`` or ``left``.

    Raises:
      LockError: another process works with the same token and folder.
      LinkError: the coordinator can't be reached or refuses this worker, or a newer
        process has taken over.
    """
    # Before the coordinator hears of this process, which might take over.
    with lock_token(options.workdir, options.token.reveal()):
        return asyncio.run(_work(options, frame.say))


async def _work(options: WorkerOptions, say: Callable[[str], None]) -> str:
    link = _link(options, _seldom(say))
    identity = Identity(
        uuid.uuid4().hex,
        metadata.version("spheroid_jax"),
        str(jax.devices()[0].device_kind),
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(link.close)
        known = await link.register(Register(VERSION, *identity))
        own = own_folder(options.workdir, known.worker, known.run, say)
        stack.enter_context(own.lock)
        say(f"{known.worker}: works for {options.url}; its folder is {own.path}")
        # Loading text and compiling take a while, which a lease doesn't wait for.
        worker = await asyncio.to_thread(
            _worker, options, link, known, identity, own.path, say
        )
        _stop_on_signals(worker, say)
        try:
            await worker.register()
            return await worker.run()
        except asyncio.CancelledError:  # the second signal
            return "left"


def _stop_on_signals(worker: Worker, say: Callable[[str], None]) -> None:
    """The first signal asks for a graceful end, the second one ends at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    asked = False

    def stop() -> None:
        nonlocal asked
        if asked and task is not None:
            task.cancel()
            return
        asked = True
        say("stops once the update in hand is sent; a second Ctrl-C stops at once")
        worker.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def is_bucket(url: str) -> bool:
    """Whether an address is that of a bucket."""
    return url.partition("://")[0] in ("s3", "gs", "file", "memory")


def _link(options: WorkerOptions, notice: Callable[[str], None]) -> Link:
    # A coordinator that was started at the same time loads and compiles first.
    first = min(_FIRST_PATIENCE, options.patience)
    pace = Pace(patience=options.patience, first_patience=first)
    try:
        if is_bucket(options.url):
            return BucketLink(
                BlobStore(options.url),
                options.name,
                options.token.reveal(),
                pace=pace,
                notice=notice,
            )
        return HttpLink(
            options.url,
            options.token,
            options.ca,
            insecure=options.insecure,
            pace=pace,
            notice=notice,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _worker(
    options: WorkerOptions,
    link: Link,
    known: Registered,
    identity: Identity,
    folder: Path,
    say: Callable[[str], None],
) -> Worker:
    if known.protocol != VERSION:
        raise LinkError(
            f"the coordinator speaks version {known.protocol} of the protocol, this "
            f"worker {VERSION}: install the coordinator's release of spheroid_jax",
            code="version",
        )
    own = {"data.corpus": options.corpus} if options.corpus else {}
    config = setup.config_from(known.config, known.config_sha256, own)
    corpus = data.load_corpus(config.data.corpus, mirror=config.data.mirror)
    if corpus.sha256 != known.corpus_sha256:
        raise ConfigError(
            f"the text {corpus.name} here isn't the coordinator's (SHA-256 "
            f"{corpus.sha256[:12]}, not {known.corpus_sha256[:12]}): give the same one "
            "with --corpus=file:PATH"
        )
    trainer = trainer_of(config, corpus)
    say(f"{known.worker}: compiles")
    trainer.compile()
    return Worker(
        link,
        trainer,
        folder,
        identity,
        setup.encoding_of(config),
        known.heartbeat,
        say,
    )


def _seldom(say: Callable[[str], None]) -> Callable[[str], None]:
    """A coordinator that is away is told of now and then, not at every try."""
    last = -math.inf

    def tell(line: str) -> None:
        nonlocal last
        if time.monotonic() - last > _NOTICE_SECONDS:
            last = time.monotonic()
            say(line)

    return tell


def trainer_of(config: ConfigDict, corpus: data.Corpus) -> Trainer:
    """The local phase of a configuration."""
    engine, _ = setup.engine_of(config)
    return Trainer(
        engine,
        setup.init_of(config),
        setup.keys_of(config).rounds,
        setup.windows_of(config, corpus),
        config.train.local_steps,
    )
