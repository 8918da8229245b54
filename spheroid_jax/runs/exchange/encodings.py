"""One run of block training in every encoding of its updates, without a network.

Workers and coordinator are those of the exchange: the same local phase, error feedback,
files and aggregation. Only the sending is left out, since it changes nothing.
"""

import copy
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from spheroid_jax import data
from spheroid_jax.checkpoints import Checkpoints
from spheroid_jax.checkpoints.leaves import INTERFACE, block_item
from spheroid_jax.memory import size
from spheroid_jax.reports.encodings.report import write_report
from spheroid_jax.reports.log import MetricsLog
from spheroid_jax.reports.tables import si
from spheroid_jax.rounds import Engine
from spheroid_jax.runs.exchange import setup
from spheroid_jax.runs.exchange.frame import keep_compiled
from spheroid_jax.runs.exchange.work import trainer_of
from spheroid_jax.runs.loop import TrainingError
from spheroid_jax.runs.opening import corpus_facts
from spheroid_jax.runs.whole import Say, Whole, run_whole
from spheroid_jax.transport.coordinator import Model
from spheroid_jax.transport.coordinator.model import Arrival, Rules
from spheroid_jax.transport.items.steps import STEP
from spheroid_jax.transport.trainer import Trainer
from spheroid_jax.transport.updates import (
    Encoding,
    Feedback,
    UpdateReader,
    write_update,
)

Point = dict[str, float]
_FLOAT = 4  # bytes of a parameter that goes down as it is


class Seed(NamedTuple):
    """What a seed's runs share.

    Attributes:
      config: with that seed.
      engine: of the round.
      rules: of aggregation.
      trainer: the local phase.
      judge: parameters to losses.
    """

    config: ConfigDict
    engine: Engine
    rules: Rules
    trainer: Trainer
    judge: Callable[[Any], dict[str, float]]


class _Nowhere:
    """Checkpoints that nobody reads: these runs are minutes long."""

    def latest(self) -> None:
        return None

    def save(self, *given: Any, **named: Any) -> None:
        return None

    def wait(self) -> None:
        return None


def run_encodings(
    config: ConfigDict, workdir: Path, *, resume: bool, command: str, say: Say = print
) -> dict[str, Any]:
    """Trains every seed with every encoding, and reports CE against bytes.

    Args and result as of :func:`spheroid_jax.runs.whole.run_whole`.

    Raises:
      TrainingError: a loss isn't finite.
    """
    kind = Whole(
        setup.corpus_of,
        _opening,
        lambda config, corpus, say: _work(config, corpus, workdir, say),
        write_report,
    )
    return run_whole(kind, config, workdir, resume=resume, command=command, say=say)


def _opening(config: ConfigDict, corpus: data.Corpus) -> str:
    m, t = config.model, config.train
    return (
        f"corpus: {corpus.name}; {m.blocks} blocks x {t.replicas} replicas, {t.rounds} "
        f"rounds x {t.local_steps} steps; {config.seeds} seeds x "
        f"{len(config.encodings)} encodings, in one process"
    )


def _work(
    config: ConfigDict, corpus: data.Corpus, workdir: Path, say: Say
) -> dict[str, Any]:
    keep_compiled()
    runs = []
    with MetricsLog(workdir) as log:
        for number in range(config.seeds):
            seed = prepared(config, corpus, number)
            for kind, both in _trained(config):
                began = time.perf_counter()
                points = course(seed, kind, config.zstd, both=both)
                seconds = time.perf_counter() - began
                name = f"{kind}_both_ways" if both else kind
                _log(log, config, f"{name}-{number}", points, seconds)
                facts = {"encoding": kind, "both_ways": both, "seed": number}
                runs.append({**facts, "points": points})
                say(_told(number, name, points[-1], seconds))
    shapes = jax.eval_shape(setup.init_of(config), jax.random.key(0))
    blocks = config.model.blocks
    return {
        "corpus": corpus_facts(corpus),
        "params": size(shapes),
        "part_params": size(shapes["blocks"]) // blocks + size(shapes["interface"]),
        "slots": blocks * config.train.replicas,
        "runs": runs,
    }


def _trained(config: ConfigDict) -> list[tuple[str, bool]]:
    """Encodings, and whether they are used both ways; float32 down is as it is."""
    ways = [(kind, False) for kind in config.encodings]
    if config.both_ways:
        ways += [(kind, True) for kind in config.encodings if kind != "float32"]
    return ways


def prepared(config: ConfigDict, corpus: data.Corpus, number: int) -> Seed:
    """What the runs of the ``number``-th seed share."""
    own = copy.deepcopy(config)
    with own.unlocked():
        own.seed = config.seed + number
    engine, weigh = setup.engine_of(own)
    trainer = trainer_of(own, corpus)
    trainer.compile()
    judge = setup.judge_of(own, corpus)
    return Seed(own, engine, Rules(weigh), trainer, judge)


def course(seed: Seed, kind: str, zstd: int, *, both: bool = False) -> list[Point]:
    """Trains once with an encoding.

    Args:
      seed: what its runs share.
      kind: of the encoding.
      zstd: level of the compression that bytes are also measured with.
      both: whether what changed goes down in this encoding, too, and compressed.

    Returns:
      The losses before training and after every evaluation, with the ``round``, and
      the bytes of all updates so far: ``bytes`` as encoded, ``bytes_zstd`` compressed.
      ``bytes_down`` are those to all workers, the first parts whole.

    Raises:
      TrainingError: a loss isn't finite.
    """
    with tempfile.TemporaryDirectory(prefix="spheroid-") as directory:
        where = Path(directory, "checkpoints")
        if not both:
            return _course(seed, Encoding(kind, zstd), where, _Nowhere(), None)
        # What goes down is written beside a checkpoint that it leads to.
        with Checkpoints(where, keep=2, identity={}, digest="blake3") as checkpoints:
            down = Encoding(kind, zstd)
            return _course(seed, Encoding(kind, zstd), where, checkpoints, down)


def _course(
    seed: Seed,
    encoding: Encoding,
    where: Path,
    checkpoints: Any,
    broadcast: Encoding | None,
) -> list[Point]:
    config, engine = seed.config, seed.engine
    keys, init = setup.keys_of(config), setup.init_of(config)
    model = Model(
        engine,
        seed.rules,
        lambda: (init(keys.init), keys.rounds),
        seed.judge,
        checkpoints,
        where,
        broadcast,
    )
    replicas, rounds = config.train.replicas, config.train.rounds
    slots = [(b, k) for b in range(engine.partition.count) for k in range(replicas)]
    workers = {slot: _Slot(where.with_name("{}-{}".format(*slot))) for slot in slots}
    whole = _FLOAT * sum(math.prod(shape) for shape in seed.trainer.shapes.values())
    plain = squeezed = down = 0
    sizes: Point = {"round": 0, "bytes": 0, "bytes_zstd": 0, "bytes_down": 0}
    points: list[Point] = [{**sizes, **model.evaluate()}]
    for round_ in range(rounds):
        for block, _ in slots:
            is_step = broadcast is not None and round_ > 0
            down += _stepped(where / str(round_), block) if is_step else whole
        parts = engine.partition.take(model.params)
        for (block, replica), worker in workers.items():
            part = jax.tree.map(lambda leaf, b=block: leaf[b], parts)
            trained = seed.trainer.train(part, worker.state, round_, block, replica)
            if not trained.is_finite:
                raise TrainingError(
                    f"the loss of seed {config.seed} with {encoding.kind} is "
                    f"{trained.loss} in round {round_ + 1}: lower train.learning_rate"
                )
            worker.state = trained.state
            one, other = worker.write(trained.delta, encoding)
            plain, squeezed = plain + one, squeezed + other
        model.step([Arrival(w.path, slot[0], 0) for slot, w in workers.items()])
        model.save()
        done = round_ + 1
        if done % config.eval.every == 0 or done == rounds:
            sizes = {"round": done, "bytes": plain, "bytes_zstd": squeezed}
            points.append({**sizes, "bytes_down": down, **model.evaluate()})
    return points


def _stepped(checkpoint: Path, block: int) -> int:
    """Bytes that lead a worker of a block to a checkpoint from the one before."""
    items = (block_item(block), INTERFACE)
    return sum((checkpoint / item / STEP).stat().st_size for item in items)


class _Slot:
    """What a worker keeps between rounds, and its newest update."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state: Any = None
        self._feedback = Feedback()

    def write(self, delta: Any, encoding: Encoding) -> tuple[int, int]:
        """Writes an update; returns its bytes as encoded, and compressed."""
        sent = self._feedback.compensate(delta)
        # The compressed one is the same numbers; what is applied is the plain one.
        squeezed = write_update(self.path, sent, encoding, {}).bytes
        plain = write_update(self.path, sent, Encoding(encoding.kind), {}).bytes
        if encoding.kind != "float32":
            with UpdateReader(self.path) as reader:
                self._feedback.settle(sent, reader)
        return plain, squeezed


def _log(
    log: MetricsLog, config: ConfigDict, name: str, points: list[Point], seconds: float
) -> None:
    for point in points:
        round_ = int(point["round"])
        metrics = {k: v for k, v in point.items() if k != "round"}
        step = round_ * config.train.local_steps
        log.write(name, round_, metrics, step=step, seconds=seconds)


def _told(number: int, name: str, last: Point, seconds: float) -> str:
    up, squeezed, down = (
        si(last[key], "B") for key in ("bytes", "bytes_zstd", "bytes_down")
    )
    return (
        f"  seed {number}, {name}: CE_chain {last['ce_chain']:.3f}, {up} up, "
        f"{squeezed} with zstd, {down} down ({seconds:.0f} s)"
    )
