"""A run with faults, from its schedule to its end; and what must hold then.

``play`` is the supervisor that a host has: it starts what ended, as the schedule says,
until the run is over, and gives all that was seen to ``check``.
"""

import asyncio
import collections
import contextlib
import fcntl
import logging
import os
import queue
import random
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import aiohttp
import numpy as np

from spheroid_jax.reports.log import MetricsLog
from spheroid_jax.runs.exchange import coordinate
from spheroid_jax.transport import tokens
from spheroid_jax.transport.coordinator import Coordinator, Settings
from spheroid_jax.transport.dashboard import add_dashboard
from spheroid_jax.transport.http.limits import Limits
from spheroid_jax.transport.http.server import make_app, serve
from spheroid_jax.transport.http.uploads import Uploads
from spheroid_jax.transport.ledger import AcceptedUpdate, Ledger
from spheroid_jax.transport.link import LinkError
from spheroid_jax.transport.shaping import Proxy, seeded, shaped
from spheroid_jax.transport.worker import Identity, Worker
from tests.faults import counting, failpoints
from tests.faults.hosts import Host, here, point
from tests.faults.links import FaultyLink, Notes, kind
from tests.faults.schedules import WIRE, Schedule, Strike
from tests.faults.spoiling import Spoiler

HEARTBEAT, LEASE = 0.05, 0.6  # seconds
# Seconds until a run must be over; many times what it takes on a quiet machine.
PATIENCE = float(os.environ.get("FAULTS_PATIENCE", "90"))
STARTS = 12  # of one process, at most


class Over(NamedTuple):
    """What there is to check once a run is over."""

    schedule: Schedule
    directory: Path
    notes: Notes
    rounds: dict[str, list[int]]  # by who saw them, from first to last
    ended: dict[str, str]  # how each worker's last process ended
    errors: list[str]  # lines that the server logged as errors
    happened: collections.Counter[str]  # faults, by what they were


class Failure(AssertionError):
    """An invariant doesn't hold."""


def play(schedule: Schedule, directory: Path) -> Over:
    """Plays a schedule in an empty directory.

    Raises:
      Failure: the run doesn't end, or something dies that no fault explains.
    """
    with failpoints.installed():
        run = _Run(schedule, directory)
        try:
            return run.to_the_end()
        finally:
            run.bury()


class _Run:
    def __init__(self, schedule: Schedule, directory: Path) -> None:
        self.schedule, self.directory = schedule, directory
        self.notes = Notes()
        self.rounds: dict[str, list[int]] = {"the status": [], "the coordinator": []}
        self.news: queue.Queue[tuple[str, str, Any]] = queue.Queue()
        self.hosts: list[Host] = []
        self.starts: dict[str, int] = {}
        self.live: dict[Host, str] = {}  # of workers
        self.folders: dict[Host, Path] = {}
        self.ended: dict[str, str] = {}
        self.struck: list[str] = []
        self.over = False
        self.coordinator: Host | None = None
        self.run: Coordinator | None = None
        self.may_end = False
        self.port = _free_port(schedule.seed)
        counting.start_in(directory / "checkpoints", schedule.replicas)
        self.tokens: dict[str, str] = {}
        with Ledger.open(directory / "ledger.db") as ledger:
            for name in (*schedule.workers, *(f"r{i}" for i in range(6))):
                self.tokens[name], digest = tokens.mint()
                ledger.add_token(name, digest)
        self.network = self._host("network")
        self.proxy: Proxy = self.network.start(self._network()).result(10)
        self.watch = self.network.start(self._watch())
        self.handler = _Errors()

    # The supervisor.

    def to_the_end(self) -> Over:
        logger = logging.getLogger("spheroid_jax.transport")
        logger.addHandler(self.handler)
        ends = time.monotonic() + PATIENCE
        try:
            self._start_coordinator()
            for name in self.schedule.workers:
                self._start_worker(name)
            while not (self.over and not self.live):
                try:
                    what, who, how = self.news.get(
                        timeout=max(0.0, ends - time.monotonic())
                    )
                except queue.Empty:
                    raise Failure(self._report("the run doesn't end")) from None
                self._handle(what, who, how)
            self._end_coordinator()
        finally:
            logger.removeHandler(self.handler)
        return Over(
            self.schedule,
            self.directory,
            self.notes,
            self.rounds,
            self.ended,
            self.handler.lines,
            self._happened(),
        )

    def _happened(self) -> "collections.Counter[str]":
        """Faults by name, and how often they came."""
        wire = self.proxy.counts.happened
        return collections.Counter(
            [
                "schedule",
                *self.struck,
                *self.notes.troubles,
                *(f"wire {fault.kind}" for fault in wire),
                *(f"verdict {seen.verdict.verdict}" for seen in self.notes.seen),
            ]
        )

    def _handle(self, what: str, who: str, how: Any) -> None:
        self.notes.event(f"{who}: {what} {_said(how)}")
        if who.startswith("coordinator"):
            self._handle_coordinator(what, who, how)
            return
        host, name = next((h, n) for h, n in self.live.items() if h.name == who)
        if what == "twin":
            self._start_worker(name, twin=True)
            return
        del self.live[host]
        if what == "died":
            host.kill()
            self.ended[who] = "died"
            if how.how == "replace":
                self._start_worker(f"r{sum(n[0] == 'r' for n in self.starts)}")
            elif how.how != "gone":
                self._start_worker(name)
            return
        self.ended[who] = _said(how)
        if self.over or how == "finished":
            return
        others = [n for n in self.live.values() if n == name]
        if isinstance(how, LinkError) and others:
            return  # its twin has taken over
        if isinstance(how, LinkError | str):
            self._start_worker(name)  # as a person would
            return
        raise Failure(self._report(f"{who} died of {how!r}")) from how

    def _handle_coordinator(self, what: str, who: str, how: Any) -> None:
        assert self.coordinator is not None
        if self.coordinator.name != who:
            return
        if what == "died":
            self.coordinator.kill()
            self._start_coordinator()
        elif how == "finished":
            self.over = True
        elif how == "drained":
            self._end_coordinator()
            self._start_coordinator()
        else:
            raise Failure(self._report(f"the coordinator died of {how!r}")) from how

    def _report(self, text: str) -> str:
        board = "" if self.run is None else f"{self.run.status()}"
        return (
            f"{text}\n{self.schedule}\nlive: {sorted(self.live.values())}\n{board}\n"
            f"happened on the wire: {self.proxy.counts.happened}\nevents:\n  "
            + "\n  ".join(self.notes.events)
        )

    # The coordinator.

    def _start_coordinator(self) -> None:
        number = self._started("coordinator")
        strikes = self.schedule.coordinator
        strike = strikes[number] if number < len(strikes) else None
        name = f"coordinator{number}"
        host = self._host(name, strike)
        self.coordinator, self.may_end = host, False
        serving = host.start(self._coordinate())
        serving.add_done_callback(
            lambda done: self.news.put(("ended", name, _outcome(done)))
        )
        self.serving = serving

    def _end_coordinator(self) -> None:
        assert self.coordinator is not None
        self.may_end = True
        with contextlib.suppress(Exception):
            self.serving.result(10)
        self.coordinator.dead.set()

    async def _coordinate(self) -> str:
        """As ``coordinate`` does; ends when ``may_end`` is set, or the run is not."""
        host, directory = here(), self.directory
        assert host is not None
        ledger = Ledger.open(directory / "ledger.db")
        checkpoints = counting.checkpoints_in(directory / "checkpoints")
        failpoints.adopt(host, checkpoints)
        log = MetricsLog(directory)
        model = counting.model_in(
            directory / "checkpoints", self.schedule.replicas, checkpoints
        )
        self.rounds["the coordinator"].append(model.round)
        coordinator = Coordinator(
            self._settings(),
            model,
            ledger,
            directory / "updates",
            log,
            say=lambda line: self.notes.event(f"{host.name}: {line}"),
        )
        coordinator._thread = host.threads(1)
        uploads = Uploads(directory / "uploads", 1 << 20)
        uploads._threads = host.threads(2)
        app = make_app(
            coordinator,
            uploads,
            Limits(idle=0.5, requests=64, transfers=16, shutdown=0.2),
            [lambda app: add_dashboard(app, coordinator)],
        )
        app.middlewares.append(_served)
        server = await serve(app, "127.0.0.1", self.port)
        host.servers.append(server._server)
        self.run = coordinator
        config = SimpleNamespace(network=self.schedule.policy)
        tidying = asyncio.create_task(coordinate._tidy(coordinator, uploads, config))
        try:
            ended = await coordinator.run()
            self.rounds["the coordinator"].append(coordinator.board.round)
            if ended == "finished":
                self.news.put(("ended", host.name, ended))
                while not self.may_end:
                    await asyncio.sleep(0.005)
            return ended
        finally:
            tidying.cancel()
            await asyncio.gather(tidying, return_exceptions=True)
            await server.close()
            checkpoints.close()
            log.close()
            ledger.close()

    def _settings(self) -> Settings:
        schedule = self.schedule
        return Settings(
            blocks=counting.BLOCKS,
            replicas=schedule.replicas,
            rounds=schedule.rounds,
            local_steps=1,
            workers=1,
            policy=schedule.policy,
            heartbeat=HEARTBEAT,
            lease=LEASE,
            drain=0.3,
            eval_every=2,
            keep_best=False,
            welcome={
                "config": {"name": "tiny", "size": "test"},
                "config_sha256": "0" * 64,
                "corpus_sha256": "1" * 64,
            },
        )

    # Workers.

    def _start_worker(self, name: str, *, twin: bool = False) -> None:
        number = self._started(name)
        strikes = self.schedule.strikes.get(name, ())
        strike = strikes[number] if number < len(strikes) else None
        host = self._host(f"{name}.{number}", strike)
        folder = self.directory / "workers" / name
        # A person, too, is refused where a process is that hasn't heard yet that
        # another one has taken over, and starts elsewhere.
        if twin or folder in (self.folders[live] for live in self.live):
            folder = folder.with_name(host.name)
        self.live[host], self.folders[host] = name, folder
        work = host.start(self._work(host, name, folder))
        work.add_done_callback(
            lambda done: self.news.put(("ended", host.name, _outcome(done)))
        )

    async def _work(self, host: Host, name: str, folder: Path) -> str:
        troubles = self.schedule.troubles if host.name.endswith(".0") else ()
        url = f"http://127.0.0.1:{self.proxy.port}"
        async with FaultyLink(
            url, self.tokens[name], name, troubles, self.notes
        ) as link:
            worker = Worker(
                link,
                Spoiler(  # type: ignore[arg-type]
                    counting.trainer(self.schedule.replicas),
                    {p.round: p.what for p in self.schedule.poison if p.worker == name},
                    self.notes.troubles.append,
                ),
                folder,
                Identity(uuid.uuid4().hex, "test", "cpu"),
                self.schedule.encoding,
                HEARTBEAT,
                lambda line: self.notes.event(f"{host.name}: {line}"),
            )
            worker._thread = host.threads(1)
            lock = worker._cache._lock
            host.locks.append(lambda: fcntl.flock(lock, fcntl.LOCK_UN))
            host.stop = worker.stop  # type: ignore[attr-defined]
            try:
                await worker.register()
            except BaseException:
                worker._cache.close()  # as the end of a process does
                raise
            return await worker.run()

    # The rest.

    def _started(self, name: str) -> int:
        number = self.starts.get(name, 0)
        self.starts[name] = number + 1
        if number >= STARTS:
            raise Failure(self._report(f"{name} was started {number} times"))
        return number

    def _host(self, name: str, strike: Strike | None = None) -> Host:
        host = Host(name, self._strike(strike) if strike else lambda *_: "")
        self.hosts.append(host)
        return host

    def _strike(self, strike: Strike) -> Callable[[Host, str, int], str]:
        def struck(host: Host, name: str, count: int) -> str:
            if (name, count) != (strike.point, strike.nth):
                return ""
            self.notes.event(f"{host.name}: {strike}")
            side = "coordinator" if host.name.startswith("coordinator") else "worker"
            self.struck += [f"{side} {name.rpartition('.')[0]}", f"end {strike.how}"]
            if strike.how == "twin":
                self.news.put(("twin", host.name, strike))
                return ""
            if strike.how == "stop":
                stop = getattr(host, "stop", None) or (self.run and self.run.stop)
                if stop:
                    host.loop.call_soon_threadsafe(stop)
                return ""
            self.news.put(("died", host.name, strike))
            return "kill"

        return struck

    async def _network(self) -> Proxy:
        plan = seeded(
            self.schedule.seed, self.schedule.wire, kinds=WIRE, span=4096, seconds=0.05
        )
        self._proxy = shaped("127.0.0.1", 0, "127.0.0.1", self.port, plan=plan)
        return await self._proxy.__aenter__()

    async def _watch(self) -> None:
        """Reads the status, over and over."""
        url = f"http://127.0.0.1:{self.port}/status"
        timeout = aiohttp.ClientTimeout(total=0.5)
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with aiohttp.request("GET", url, timeout=timeout) as answer:
                    self.rounds["the status"].append((await answer.json())["round"])
            await asyncio.sleep(0.02)

    def bury(self) -> None:
        # What the dead still say, now that their files are gone, is of no interest.
        logging.disable(logging.CRITICAL)
        try:
            for host in self.hosts:
                host.bury()
        finally:
            logging.disable(logging.NOTSET)


async def _served_by(request: Any, handler: Any) -> Any:
    name = kind(request.method, request.path)
    point(f"serve {name}.before")
    response = await handler(request)
    point(f"serve {name}.after")
    return response


_served = aiohttp.web.middleware(_served_by)


class _Errors(logging.Handler):
    """Errors that the server logs: there must be none."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        host = here()
        if host is None or not host.dead.is_set():
            self.lines.append(self.format(record))


def _outcome(done: Any) -> Any:
    error = done.exception() if not done.cancelled() else Failure("cancelled")
    return done.result() if error is None else error


def _said(how: Any) -> str:
    return f"{type(how).__name__}: {how}" if isinstance(how, Exception) else str(how)


def _free_port(seed: int) -> int:
    """A port that no connection is given as its own: below the ephemeral ones."""
    rng = random.Random(seed ^ os.getpid())
    while True:
        port = rng.randrange(20000, 32000)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                sock.bind(("127.0.0.1", port))
                return port


# What must hold.


def check(over: Over) -> None:
    """Raises Failure, with the schedule and all events, if an invariant is broken."""
    with Ledger.open(over.directory / "ledger.db") as ledger:
        updates, kept = ledger.remembered(), ledger.accepted()
    last, params = counting.on_disk(over.directory / "checkpoints")
    wrong = [
        *_wrong_rounds(over, last),
        *_wrong_verdicts(over, {u.name: u for u in updates}),
        *wrong_sums(
            updates,
            np.asarray(params["blocks"]["own"]),
            np.asarray(params["interface"]["shared"]),
        ),
        *_left_over(over, kept),
        *_given_up(over),
        *(f"the server logged: {line}" for line in over.errors),
        *(
            f"a repeated {what} was answered with {status}"
            for what, status in over.notes.answers
            if status >= 500 and status != 503
        ),
    ]
    if not (np.asarray(params["blocks"]["pad"]) == 1).all():
        wrong.append("something was changed that no update changes")
    if wrong:
        events = "\n  ".join(over.notes.events)
        raise Failure("\n".join([*wrong, str(over.schedule), "events:", f"  {events}"]))


def wrong_sums(
    updates: list[AcceptedUpdate], own: np.ndarray, shared: np.ndarray
) -> list[str]:
    """What the parameters and the ledger don't agree on."""
    wrong = []
    slots = [(u.round, u.block, u.replica) for u in updates]
    turns = [(u.round, u.worker) for u in updates]
    if len(set(slots)) < len(slots) or len(set(turns)) < len(turns):
        wrong.append("a slot or a worker has two updates of a round")
    if not (np.isfinite(own).all() and np.isfinite(shared).all()):
        wrong.append("the model isn't finite")
    for name, there, due in zip(
        ("block", "interface"), (own, shared), counting.expected(updates), strict=True
    ):
        if not np.allclose(there, due, rtol=1e-5, atol=1e-6):
            where = np.argwhere(~np.isclose(there, due, rtol=1e-5, atol=1e-6)).tolist()
            wrong.append(f"{name}: applied otherwise than accepted, at {where}")
    return wrong


def _wrong_rounds(over: Over, last: int) -> list[str]:
    wrong = []
    if last != over.schedule.rounds:
        wrong.append(f"the run ended after {last} rounds")
    for name, rounds in {**over.notes.rounds, **over.rounds}.items():
        if rounds != sorted(rounds):
            wrong.append(f"{name} saw rounds go back: {rounds}")
    return wrong


def _wrong_verdicts(over: Over, updates: dict[str, AcceptedUpdate]) -> list[str]:
    wrong = []
    for worker, name, verdict in over.notes.seen:
        if verdict.verdict != "accepted":
            continue
        if name not in updates:
            wrong.append(f"{worker} was told that {name} is accepted; it is lost")
        elif updates[name].applies_in >= over.schedule.rounds:
            wrong.append(f"{name} is accepted for after the end of the run")
    return wrong


def _given_up(over: Over) -> list[str]:
    """Workers that ended by themselves, where no flipped bit explains it."""
    if over.happened["wire flip"]:
        return []
    return [
        f"{who} ended: {how}"
        for who, how in over.ended.items()
        if how.startswith("LinkError") and "another process has taken over" not in how
    ]


def _left_over(over: Over, kept: list[AcceptedUpdate]) -> list[str]:
    """Files that nobody needs any more."""
    directory, policy = over.directory, over.schedule.policy
    there = {path.name for path in (directory / "updates").iterdir()}
    wrong = [
        f"updates/{name} is left over"
        for name in there - {f"{u.name}.update" for u in kept}
    ]
    oldest = over.schedule.rounds - (policy.max_age if policy.late == "gate" else 0)
    for path in (directory / "uploads").iterdir():
        if path.suffix == ".part" and int(path.name.split("-")[0]) < oldest:
            wrong.append(f"uploads/{path.name} is left over")
    return wrong
