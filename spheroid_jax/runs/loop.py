"""Trains one method: rounds, points of the curves, checkpoints, resume.

A checkpoint holds everything a run is between two rounds, so a run that was killed
continues to bit-identical parameters on the same machine.
"""

import contextlib
import dataclasses
import io
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding
from ml_collections import ConfigDict

from spheroid_jax import data, distributed
from spheroid_jax.checkpoints import Checkpoints
from spheroid_jax.delivery import lockstep
from spheroid_jax.reports.log import MetricsLog
from spheroid_jax.reports.progress import Progress
from spheroid_jax.rounds import RoundState, init_state
from spheroid_jax.rounds.mesh import (
    WINDOWS,
    mesh_round,
    state_sharding,
)
from spheroid_jax.runs.methods import Method
from spheroid_jax.runs.settings import (
    Keys,
    method_mesh,
    training_identity,
    window_settings,
)


class TrainingError(RuntimeError):
    """Training can't go on; the message names the cause and the cure."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What training a method left behind.

    Attributes:
      params: the assembled model.
      seconds: wall time of its rounds, evaluations and checkpoints, over all sessions.
      bytes_seen: bytes predicted in training, over all workers.
    """

    params: Any
    seconds: float
    bytes_seen: int


def train_method(
    method: Method,
    config: ConfigDict,
    corpus: data.Corpus,
    directory: Path,
    log: MetricsLog,
) -> Outcome:
    """Trains ``method``, from its newest checkpoint under ``directory`` if it has one.

    Raises:
      TrainingError: if the loss stops being finite.
      spheroid_jax.checkpoints.CheckpointError: if a checkpoint can't be trusted.
      spheroid_jax.data.DataStateError: if the data is not what the checkpoint saw.
    """
    return _Training(method, config, corpus, log).run(directory)


class _Training:
    """The compiled functions and fixed arrays of one method's training."""

    def __init__(
        self, method: Method, config: ConfigDict, corpus: data.Corpus, log: MetricsLog
    ) -> None:
        self.method, self.config, self.corpus, self.log = method, config, corpus, log
        self.keys = Keys(config.seed, method.name)
        count = method.engine.partition.count
        self.mesh = method_mesh(method, config)
        self.shardings = state_sharding(
            self.mesh,
            jax.eval_shape(self.first_state, self.keys.init, self.keys.rounds),
        )
        self.round = mesh_round(method.engine, self.mesh, self.shardings)
        self.curve = jax.jit(method.curve)
        curve_windows = data.evaluation_windows(
            corpus.valid, seq_len=config.data.seq_len, count=config.eval.curve_windows
        )
        self.accepted, self.curve_windows, self.curve_key = distributed.everywhere(
            self.mesh,
            (
                lockstep(count, method.engine.replicas),
                jnp.asarray(curve_windows),
                self.keys.evaluation,
            ),
        )
        self.windows_sharding = NamedSharding(self.mesh, WINDOWS)
        self.windows_shape = (
            *(count, method.engine.replicas, config.train.local_steps),
            *(config.data.batch, config.data.seq_len + 1),
        )
        self.workers = distributed.own_workers(
            self.windows_sharding, self.windows_shape
        )
        self.bytes_per_round = (
            method.workers
            * config.train.local_steps
            * config.data.batch
            * config.data.seq_len
        )

    def first_state(self, init_key: Array, round_key: Array) -> RoundState:
        params = self.method.init(init_key)
        return init_state(self.method.engine, params, round_key)

    def fresh_state(self) -> RoundState:
        build = jax.jit(self.first_state, out_shardings=self.shardings)
        keys = distributed.everywhere(self.mesh, (self.keys.init, self.keys.rounds))
        return build(*keys)

    def run(self, directory: Path) -> Outcome:
        rounds = self.config.train.rounds
        identity = {"method": self.method.name, **training_identity(self.config)}
        settings = self.config.checkpoint
        with (
            Checkpoints(
                directory,
                keep=settings.keep,
                keep_best=settings.keep_best,
                timeout=settings.timeout,
                digest=settings.digest,
                wait=settings.wait,
                identity=identity,
            ) as checkpoints,
            # Else its thread may hold up the exit of a run that failed.
            contextlib.closing(
                data.RoundIterator(
                    self.corpus.train,
                    workers=self.workers,
                    **window_settings(self.method, self.config),
                )
            ) as batches,
        ):
            state, seconds = self.start(checkpoints, batches)
            first = int(state.round)
            screen = None if distributed.is_main() else io.StringIO()
            name = self.method.name
            with Progress(name, rounds, start=first, stream=screen) as progress:
                if first == rounds:
                    progress.say(f"{name} was trained before")
                elif first:
                    progress.say(f"{name} goes on after round {first}")
                for round_ in range(first + 1, rounds + 1):
                    began = time.perf_counter()
                    state, ce = self.one_round(
                        state, batches, round_, seconds, progress
                    )
                    if round_ % settings.every == 0 or round_ == rounds:
                        spent = seconds + time.perf_counter() - began
                        host = {"batches": batches.get_state(), "seconds": spent}
                        checkpoints.save(round_, state, host, metric=ce)
                    seconds += time.perf_counter() - began
        return Outcome(state.params, seconds, rounds * self.bytes_per_round)

    def start(
        self, checkpoints: Checkpoints, batches: data.RoundIterator
    ) -> tuple[RoundState, float]:
        """The state to go on from, and the seconds already spent."""
        fresh = self.fresh_state()
        name = f"newest checkpoint of {self.method.name}"
        newest = distributed.agree(name, checkpoints.latest)
        if newest is None:
            self.log.rewind(self.method.name, 0)
            return fresh, 0.0
        state, host = checkpoints.restore(abstract_like(fresh), newest)
        batches.set_state(host["batches"])
        self.log.rewind(self.method.name, int(state.round))
        return state, host["seconds"]

    def one_round(
        self,
        state: RoundState,
        batches: data.RoundIterator,
        round_: int,
        seconds: float,
        progress: Progress,
    ) -> tuple[RoundState, float | None]:
        """The state after the round, and its CE on validation if that was measured."""
        began = time.perf_counter()
        windows = distributed.spread_windows(
            next(batches), self.workers, self.windows_sharding, self.windows_shape
        )
        state, metrics = self.round(state, windows, self.accepted)
        training = {k: float(v) for k, v in _means(metrics).items()}
        self.check_finite(training, round_)
        elapsed = time.perf_counter() - began
        last = round_ == self.config.train.rounds
        if round_ % self.config.eval.every == 0 or last:
            validation = self.evaluate_curve(state.params)
            record = {
                **{f"train_{k}": v for k, v in training.items()},
                **validation,
                "bytes_seen": round_ * self.bytes_per_round,
                "bytes_per_second": self.bytes_per_round / elapsed,
            }
            self.log.write(
                self.method.name,
                round_,
                record,
                step=round_ * self.config.train.local_steps,
                seconds=seconds + time.perf_counter() - began,
            )
            measured: float | None = headline_ce(validation)
            ce = headline_ce(validation)
            # The final table has more of them, and so other numbers.
            note = f"on {len(self.curve_windows)} validation windows"
        else:
            measured = None
            ce, note = training["ce"], "in training"
        progress.update(
            round_, ce=ce, bytes_per_second=self.bytes_per_round / elapsed, note=note
        )
        return state, measured

    def evaluate_curve(self, params: Any) -> dict[str, float]:
        results = self.curve(params, self.curve_windows, self.curve_key)
        return {n: float(v) for n, v in distributed.on_host(results).items()}

    def check_finite(self, metrics: dict[str, float], round_: int) -> None:
        if np.isfinite(list(metrics.values())).all():
            return
        name = self.method.name
        suffix = "" if name == "blocktrain" else f"_{name}"
        raise TrainingError(
            f"the loss of {name} stopped being finite in round {round_}, which was "
            f"not saved; lower train.learning_rate{suffix} or set train.clip"
        )


def abstract_like(tree: Any) -> Any:
    """Shapes, dtypes and shardings of a tree of arrays."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=leaf.sharding
        ),
        tree,
    )


def headline_ce(results: dict[str, float]) -> float:
    """The one number to show while training."""
    return results.get("ce_chain", results.get("ce", float("nan")))


def _means(metrics: dict[str, Array]) -> dict[str, np.ndarray]:
    return {name: np.mean(v) for name, v in distributed.on_host(metrics).items()}


def final_results(
    method: Method, config: ConfigDict, corpus: data.Corpus, params: Any
) -> dict[str, Any]:
    """Every metric of a trained method on the fixed slice of validation text."""
    windows = data.evaluation_windows(
        corpus.valid, seq_len=config.data.seq_len, count=config.eval.windows
    )
    given = (jnp.asarray(windows), Keys(config.seed, method.name).evaluation)
    given = distributed.everywhere(method_mesh(method, config), given)
    results = distributed.on_host(jax.jit(method.final)(params, *given))
    return {name: value.tolist() for name, value in results.items()}
