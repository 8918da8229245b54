"""A worker as a process: from its options to the end of the run."""

import asyncio
import contextlib
import math
import time
import uuid
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import jax
from ml_collections import ConfigDict

from spheroid_jax import data
from spheroid_jax.fields import ConfigError
from spheroid_jax.leaving import on_signals
from spheroid_jax.runs.exchange import frame, setup
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.bucket.worker_side import BucketLink
from spheroid_jax.transport.http.client import HttpLink
from spheroid_jax.transport.http.retry import Pace
from spheroid_jax.transport.link import Link, LinkError
from spheroid_jax.transport.options.worker import WorkerOptions, is_bucket, parse
from spheroid_jax.transport.own_folder import lock_token, own_folder
from spheroid_jax.transport.protocol import VERSION, Heartbeat, Register, Registered
from spheroid_jax.transport.session import Identity, Session
from spheroid_jax.transport.trainer import Trainer
from spheroid_jax.transport.worker import Worker

__all__ = ["AGAIN", "WorkerOptions", "parse", "trainer_of", "work"]

AGAIN = "its slot is free; the same command joins again"
_COMPILED = "stops once it has loaded and compiled"
_LAST_SECONDS = 30.0  # for a coordinator that is away, once asked to stop
_NOTICE_SECONDS = 20.0  # between lines that say that a try failed


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
        return asyncio.run(_Process(options, frame.say).run())


class _Process:
    """A worker's process."""

    def __init__(self, options: WorkerOptions, say: Callable[[str], None]) -> None:
        self._options, self._say = options, say
        self._link = _link(options, _seldom(say))
        identity = Identity(
            uuid.uuid4().hex,
            metadata.version("spheroid_jax"),
            str(jax.devices()[0].device_kind),
        )
        self._session = Session(self._link, identity)
        self._worker: Worker | None = None
        self._is_known = False
        self._stops = False

    async def run(self) -> str:
        task = asyncio.current_task()
        assert task is not None

        def stop() -> str:
            self._stops = True
            if self._worker is not None:
                self._worker.stop()
                return _hurried(self._link, self._options.patience)
            task.cancel()
            return _COMPILED if self._is_known else "stops"

        on_signals(stop, self._say, "the same command joins again")
        try:
            return await self._work()
        except asyncio.CancelledError:
            if not self._stops:
                raise
            return "left"

    async def _work(self) -> str:
        options, say, link = self._options, self._say, self._link
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(link.close)
            known = await link.register(Register(VERSION, *self._session.identity))
            own = own_folder(options.workdir, known.worker, known.run, say)
            stack.enter_context(own.lock)
            say(f"{known.worker}: works for {options.url}; its folder is {own.path}")
            self._is_known = True
            worker = await self._started(known, own.path)
            self._worker = worker
            await worker.register()
            return await worker.run()

    async def _started(self, known: Registered, folder: Path) -> Worker:
        """Loads and compiles, which takes a while, and gives signs of life meanwhile.

        Raises:
          ConfigError: the configuration or the text can't be used here.
          LinkError: the coordinator refuses this process, or is away for long.
        """
        beating = asyncio.create_task(self._beat(known.heartbeat))
        making = asyncio.create_task(
            asyncio.to_thread(
                _worker,
                self._options,
                self._link,
                known,
                self._session.identity,
                folder,
                self._say,
            )
        )
        try:
            await asyncio.wait([beating, making], return_when=asyncio.FIRST_COMPLETED)
            if not making.done():
                beating.result()  # it ends only by an error
            return making.result()
        except BaseException:
            beating.cancel()
            await self._session.leave()
            raise
        finally:
            for task in (beating, making):
                task.cancel()
            await asyncio.gather(beating, making, return_exceptions=True)

    async def _beat(self, seconds: float) -> None:
        # As one that waits: a coordinator knows that it has asked for nothing yet.
        while True:
            await asyncio.sleep(seconds)
            await self._session.pulse(Heartbeat(self._session.identity.session))


def _link(options: WorkerOptions, notice: Callable[[str], None]) -> Link:
    # As patient at first: a coordinator that was started at the same time loads and
    # compiles before it answers.
    pace = Pace(patience=options.patience, first_patience=options.patience)
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


def _hurried(link: Link, patience: float) -> str:
    """Cuts the patience of a worker that is to stop; says what it waits for."""
    # What is trained by then stays in its folder, and is sent by the next process.
    if isinstance(link, HttpLink):
        patience = min(patience, _LAST_SECONDS)
        link.hurry(patience)
    said = "stops once the update in hand is sent"
    if not math.isfinite(patience):
        return said
    return f"{said}; while the coordinator is away, for some {patience:.0f} s at most"


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
