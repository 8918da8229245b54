"""A run of a few dozen parameters: coordinator and workers in one process, no HTTP.

``TinyRun(directory)`` makes a coordinator over real files; ``run.worker("ada")`` a real
worker whose link calls the coordinator directly. ``run.reopen()`` is a restart: a new
coordinator from what is on disk. ``run.crash(copy)`` goes on from a copy of the disk as
it is at this moment, which is what a kill leaves.

The model is a quadratic that depends on windows, block and random key, so an update
that was trained from the wrong round, window or slot can't be right by chance. One
engine per (blocks, replicas, recipe) is shared, and compiles in a second.
"""

import asyncio
import functools
import math
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from spheroid_jax import partition
from spheroid_jax.checkpoints import Checkpoints
from spheroid_jax.objectives import Batch
from spheroid_jax.optim.recipes import build_outer, parse_recipe
from spheroid_jax.reports.log import MetricsLog
from spheroid_jax.rounds import Engine
from spheroid_jax.transport import tokens
from spheroid_jax.transport.closing import Policy
from spheroid_jax.transport.coordinator import Coordinator, Model, Rules, Settings
from spheroid_jax.transport.ledger import Ledger
from spheroid_jax.transport.link import LinkError, Progress
from spheroid_jax.transport.protocol import (
    Heartbeat,
    Item,
    Leave,
    ProtocolError,
    Pulse,
    Register,
    Registered,
    Upload,
    Verdict,
    Work,
    WorkRequest,
)
from spheroid_jax.transport.trainer import Trainer
from spheroid_jax.transport.updates import Encoding
from spheroid_jax.transport.worker import Identity, Worker

LOCKSTEP = Policy(deadline=math.inf, late="drop", quorum=0, grace=0.0, max_age=4)
LOCAL_STEPS, BATCH, LENGTH = 3, 2, 4
WIDTH = 5
DEFAULTS = {
    "learning_rate": 0.7,
    "momentum": 0.9,
    "b1": 0.9,
    "b2": 0.99,
    "eps": 1e-8,
    "alpha": 0.5,
    "tau_cut": 8,
}


def quadratic(part: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, Any]:
    """Squared distance from a goal that windows, block and key decide."""
    goal = jnp.mean(batch.windows.astype(jnp.float32)) / 64.0 - 2.0
    goal += 0.1 * batch.block.astype(jnp.float32)
    goal += 0.1 * jax.random.normal(key, ())
    w, b = part["block"]["kernel"], part["block"]["bias"]
    head = part["interface"]["head"]
    loss = jnp.mean((w - goal) ** 2) + jnp.mean((b + goal) ** 2)
    loss += jnp.mean((head - 0.5 * goal) ** 2) + 0.1 * jnp.mean((head - b) ** 2)
    return loss, {}


def init(blocks: int) -> Callable[[jax.Array], Any]:
    """``key -> params``: 35 numbers a block, 5 of the interface."""

    def make(key: jax.Array) -> Any:
        one, two = jax.random.split(key)
        return {
            "blocks": {
                "kernel": jax.random.normal(one, (blocks, WIDTH + 1, WIDTH)),
                "bias": jnp.ones((blocks, WIDTH)),
            },
            "interface": {"head": jax.random.normal(two, (WIDTH,))},
        }

    return make


@functools.cache
def engine(blocks: int, replicas: int, recipe: str) -> tuple[Engine, Any]:
    """The round, and how much an update of some age counts."""
    outer = build_outer(parse_recipe(recipe, DEFAULTS))
    made = Engine(
        partition.blocks(blocks),
        quadratic,
        optax.sgd(0.05, momentum=0.9),
        outer.transformation,
        replicas,
    )
    return made, outer.weigh


def windows(round_: int, block: int, replica: int) -> np.ndarray:
    """A slot's windows in a round, uint8 (H, N, T+1)."""
    rng = np.random.default_rng([round_, block, replica])
    return rng.integers(0, 256, (LOCAL_STEPS, BATCH, LENGTH + 1), dtype=np.uint8)


@functools.cache
def trainer(blocks: int, replicas: int, recipe: str = "sgd") -> Trainer:
    """The local phase, compiled once for all tests; it keeps nothing between calls."""
    made = Trainer(
        engine(blocks, replicas, recipe)[0],
        init(blocks),
        KEY(),
        windows,
        LOCAL_STEPS,
    )
    made.compile()
    return made


@functools.cache
def KEY() -> jax.Array:
    """The run's random key."""
    return jax.random.key(7)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.coordinator: Coordinator | None = None

    def __call__(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Lets time pass, and whoever waits look at the clock."""
        self.seconds += seconds
        if self.coordinator is not None:
            self.coordinator.board.tell()


class TinyRun:
    """A run in ``directory``; all that a process would hold is in this object."""

    def __init__(
        self,
        directory: Path,
        *,
        blocks: int = 2,
        replicas: int = 1,
        rounds: int = 4,
        policy: Policy = LOCKSTEP,
        clock: Callable[[], float] | None = None,
        workers: int = 1,
        recipe: str = "sgd",
        rules: Rules | None = None,
        heartbeat: float = 0.05,
        lease: float = 10.0,
        drain: float = 1.0,
        eval_every: int = 1,
        encoding: Encoding = Encoding(),  # noqa: B008 - immutable
        broadcast: Encoding | None = None,
        judge: Callable[[Any], dict[str, float]] | None = None,
        make: tuple[Engine, Any, Trainer, Callable[[jax.Array], Any]] | None = None,
    ) -> None:
        """Opens the coordinator.

        Args:
          directory: of the run; may hold one that was stopped or killed.
          blocks: B.
          replicas: K.
          rounds: of the run.
          policy: when rounds close; waits for all by default.
          clock: of the coordinator; default the real one.
          workers: that the first round waits for.
          recipe: of the outer optimizer.
          rules: of aggregation; default the mean with the recipe's weights.
          heartbeat: seconds, of workers; real ones.
          lease: seconds, by ``clock``.
          drain: seconds, by ``clock``.
          eval_every: rounds.
          encoding: of updates.
          broadcast: of what changed in a round; None: as it is.
          judge: parameters to losses; default the distance from zero.
          make: engine, weights by age, trainer and init of another model.
        """
        self.directory = directory
        if make is None:
            made, weigh = engine(blocks, replicas, recipe)
            make = made, weigh, trainer(blocks, replicas), init(blocks)
        self.engine, self.weigh, self.trainer, self.init = make
        self.rules = rules or Rules(self.weigh)
        self.encoding, self.heartbeat = encoding, heartbeat
        self.broadcast = broadcast
        self.judge = judge or _distance
        self.clock = clock
        self.settings = Settings(
            blocks=blocks,
            replicas=replicas,
            rounds=rounds,
            local_steps=LOCAL_STEPS,
            workers=workers,
            policy=policy,
            heartbeat=heartbeat,
            lease=lease,
            drain=drain,
            eval_every=eval_every,
            keep_best=False,
            welcome={
                "config": {"name": "tiny", "size": "test"},
                "config_sha256": "0" * 64,
                "corpus_sha256": "1" * 64,
            },
        )
        self.said: list[str] = []
        self.coordinator: Coordinator
        self._open()

    def _open(self) -> None:
        self.ledger = Ledger.open(self.directory / "exchange" / "ledger.db")
        where = self.directory / "checkpoints"
        self.checkpoints = Checkpoints(where, keep=2, identity={}, digest="blake3")
        self.log = MetricsLog(self.directory)
        model = Model(
            self.engine,
            self.rules,
            lambda: (self.init(jax.random.key(0)), KEY()),
            self.judge,
            self.checkpoints,
            where,
            self.broadcast,
        )
        extra = {} if self.clock is None else {"clock": self.clock}
        self.model = model
        self.coordinator = Coordinator(
            self.settings,
            model,
            self.ledger,
            self.updates,
            self.log,
            say=self.said.append,
            **extra,
        )
        if isinstance(self.clock, Clock):
            self.clock.coordinator = self.coordinator

    @property
    def updates(self) -> Path:
        """Where accepted updates are."""
        return self.directory / "exchange" / "updates"

    def token(self, name: str) -> str:
        """A new token for a worker."""
        token, digest = tokens.mint()
        self.ledger.add_token(name, digest, replace=True)
        return token

    def close(self) -> None:
        """Lets go of files."""
        self.checkpoints.close()
        self.log.close()
        self.ledger.close()

    def reopen(self, **settings: Any) -> Coordinator:
        """A restart from the same directory."""
        self.close()
        self.settings = self.settings._replace(**settings)
        self._open()
        return self.coordinator

    def crash(self, copy: Path) -> "TinyRun":
        """Copies what is on disk now: what a kill at this moment would leave."""
        shutil.copytree(self.directory, copy, dirs_exist_ok=True)
        return self

    def link(self, name: str) -> "DirectLink":
        """A worker's way to whatever coordinator there is now."""
        return DirectLink(self, name)

    def worker(
        self, name: str, *, link: Any = None, session: str = "", **changes: Any
    ) -> Worker:
        """A process of a worker; again with the same name: it was restarted."""
        given: dict[str, Any] = {
            "link": link or self.link(name),
            "trainer": self.trainer,
            "folder": self.directory / "workers" / name,
            "identity": Identity(session or uuid.uuid4().hex, "test", "cpu"),
            "encoding": self.encoding,
            "heartbeat": self.heartbeat,
            "say": lambda line: self.said.append(f"{name}: {line}"),
        }
        return Worker(**{**given, **changes})

    async def together(self, names: list[str], seconds: float = 60.0) -> str:
        """Runs the coordinator and workers of these names to the end."""
        workers = [self.worker(name) for name in names]
        async with asyncio.timeout(seconds):
            running = asyncio.create_task(self.coordinator.run())
            try:
                for worker in workers:
                    await worker.register()
                await asyncio.gather(*(worker.run() for worker in workers))
                return await running
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    def state(self) -> dict[str, np.ndarray]:
        """Parameters and outer state by name, copied."""
        state = self.model.state
        return flat({"params": state.params, "outer": state.outer})

    def on_disk(self) -> dict[str, np.ndarray]:
        """The same of the newest checkpoint."""
        found = self.checkpoints.restore(jax.eval_shape(lambda: self.model.state))[0]
        return flat({"params": found.params, "outer": found.outer})


class DirectLink:
    """Calls the coordinator in this process; files are copied. See ``Link``."""

    def __init__(self, run: TinyRun, name: str) -> None:
        self.run, self.name = run, name
        self.fetched: list[Item] = []
        self.verdicts: list[tuple[Upload, Verdict]] = []

    async def _say(self, method: str, *arguments: Any) -> Any:
        try:
            call = getattr(self.run.coordinator, method)
            return await call(self.name, *arguments)
        except ProtocolError as error:
            raise LinkError(str(error), code=error.code, status=error.status) from error

    async def register(self, request: Register) -> Registered:
        answer: Registered = await self._say("register", request)
        return answer

    async def work(self, request: WorkRequest) -> Work:
        answer: Work = await self._say("work", request)
        return answer

    async def heartbeat(self, request: Heartbeat) -> Pulse:
        answer: Pulse = await self._say("heartbeat", request)
        return answer

    async def leave(self, request: Leave) -> None:
        await self._say("leave", request)

    async def fetch(
        self, item: Item, target: Path, progress: Progress | None = None
    ) -> int:
        source = self.run.coordinator.item(item.digest)
        if source is None:
            raise LinkError("no such item", code="unknown", status=404)
        if target.exists():
            return 0
        self.fetched.append(item)
        part = target.with_name(target.name + ".part")
        shutil.copytree(source, part, dirs_exist_ok=True)
        part.rename(target)
        return item.bytes

    async def submit(
        self, upload: Upload, path: Path, progress: Progress | None = None
    ) -> Verdict:
        verdict = await self._say("begin", upload)
        if verdict is None:
            there = self.run.directory / "exchange" / "uploads" / uuid.uuid4().hex
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, there)
            verdict = await self._say("commit", upload, there)
        self.verdicts.append((upload, verdict))
        answer: Verdict = verdict
        return answer

    async def close(self) -> None:
        pass


def flat(tree: Any) -> dict[str, np.ndarray]:
    """Leaves by path, copied to NumPy."""
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): np.array(leaf) for path, leaf in found}


def same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    """Whether two flat trees are the same bits."""
    return one.keys() == other.keys() and all(
        np.array_equal(one[name].view(np.uint8), other[name].view(np.uint8))
        if one[name].ndim
        else one[name] == other[name]
        for name in one
    )


def _distance(params: Any) -> dict[str, float]:
    total = sum(float(np.square(x).sum()) for x in jax.tree.leaves(params))
    return {"ce_chain": total, "ce_ensemble": total}


__all__ = ["KEY", "LOCKSTEP", "Clock", "DirectLink", "TinyRun", "flat", "same"]
