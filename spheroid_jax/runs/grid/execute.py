"""Runs jobs: windows in, losses out; jobs of one program run together."""

import collections
import functools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from ml_collections import ConfigDict

from spheroid_jax import data
from spheroid_jax.fields import leaves
from spheroid_jax.models import VOCABULARY
from spheroid_jax.optim.recipes import Recipe
from spheroid_jax.runs.grid.family import Family, Run
from spheroid_jax.runs.grid.jobs import Cell, Job

JOB_THREADS = "jobs"  # what the names of their threads begin with
CHANCE = math.log(VOCABULARY)  # loss of a model that knows nothing, nats per byte


class _Model:
    """What parameters are drawn of; alike where all fields of the model are."""

    def __init__(self, family: Family, config: ConfigDict) -> None:
        self.init = family.init(config)
        fields = leaves(config)
        sections = ("model.", "diffusion.", "data.seq_len")
        self._fields = tuple(
            (f, v) for f, v in fields.items() if f.startswith(sections)
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Model) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(self._fields)


def _compiled_init(model: _Model) -> Callable[[Array], Any]:
    return jax.jit(jax.vmap(model.init))


class Executor:
    """The programs and the windows that jobs share."""

    def __init__(self, family: Family, corpus: data.Corpus, max_delay: int) -> None:
        self._family, self._corpus, self._max_delay = family, corpus, max_delay
        self._programs: dict[tuple[str, int, int], Any] = {}
        self._locks: dict[str, threading.Lock] = collections.defaultdict(threading.Lock)
        self._init = functools.lru_cache(maxsize=2)(_compiled_init)
        self._windows = functools.lru_cache(maxsize=2)(self._read)

    def run_all(
        self, groups: Iterable[Sequence[Job]], threads: int
    ) -> Iterator[tuple[Sequence[Job], list[dict[str, Any]]]]:
        """Runs groups of jobs, ``threads`` at a time; yields each as it finishes.

        Not in the main thread, even one at a time: a program that computes doesn't
        hear of Ctrl-C.
        """
        pool = futures.ThreadPoolExecutor(threads, thread_name_prefix=JOB_THREADS)
        try:
            # JAX lets go of Python's lock while it compiles and while it computes.
            running = {pool.submit(self.run, jobs): jobs for jobs in groups}
            for done in futures.as_completed(running):
                yield running[done], done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def run(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        """Runs jobs of one program in one call; returns a result for each."""
        began = time.perf_counter()
        first = jobs[0]
        config = first.config
        seeds = tuple(range(config.seed, config.seed + config.seeds))
        settings = tuple(sorted(window_settings(self._family, first).items()))
        numbers = {
            name: jnp.array([job.recipe.numbers[name] for job in jobs])
            for name in first.recipe.numbers
        }
        schedules = _stack(
            [
                _stack([self._family.schedule(job.config, s) for s in seeds])
                for job in jobs
            ]
        )
        # Of two threads that want one program the second waits, and compiles nothing.
        with self._locks[first.program]:
            arguments = (
                numbers,
                *self._starts(first, seeds),
                self._windows(settings, seeds),
                validation_windows(self._corpus, first),
                schedules,
            )
            shape = (first.program, len(jobs), len(seeds))
            if shape not in self._programs:
                program = build_program(
                    self._family, config, first.recipe, self._max_delay
                )
                self._programs[shape] = program.lower(*arguments).compile()
        run = jax.block_until_ready(self._programs[shape](*arguments))
        seconds = (time.perf_counter() - began) / len(jobs)
        return [
            _result(self._family, job, run, i, seconds) for i, job in enumerate(jobs)
        ]

    def _starts(self, job: Job, seeds: tuple[int, ...]) -> tuple[Any, Array]:
        """Parameters, leaves (S, ...), and keys (S,): of the seed, not the method."""
        both = [jax.random.split(jax.random.key(seed)) for seed in seeds]
        starts, keys = jnp.stack(both, axis=1)
        return self._init(_Model(self._family, job.config))(starts), keys

    def _read(self, settings: Any, seeds: tuple[int, ...]) -> Array:
        """Windows of every round, uint8 (S, R, B, K, H, N, T+1)."""
        fields = dict(settings)
        rounds = fields.pop("rounds")
        all_seeds = []
        for seed in seeds:
            batches = data.round_batches(self._corpus.train, **fields, seed=seed)
            all_seeds.append(np.stack([batches[r] for r in range(rounds)]))
        return jnp.asarray(np.stack(all_seeds))


def build_program(
    family: Family, config: ConfigDict, recipe: Recipe, max_delay: int
) -> Any:
    """All runs of one method as a jitted function.

    The program maps ``(numbers of the recipe, leaves (J,); parameters, leaves (S, ...);
    keys (S,); windows (S, R, B, K, H, N, T+1); validation windows; schedules, leaves
    (J, S, ...))`` to a ``Run`` with leading axes (J, S): J settings of the same method,
    S seeds.

    Args:
      family: the kind of experiment.
      config: everything but seeds, arguments and the recipe's numbers is compiled in.
      recipe: only its name and its choices are.
      max_delay: rounds there is room for.
    """
    one = family.program(config, recipe, max_delay)
    seeds = jax.vmap(one, in_axes=(None, 0, 0, 0, None, 0))
    return jax.jit(jax.vmap(seeds, in_axes=(0, None, None, None, None, 0)))


def window_settings(family: Family, job: Job) -> dict[str, Any]:
    """What decides which windows a job's workers see, beside the seed."""
    d, t = job.config.data, job.config.train
    return {
        "rounds": t.rounds,
        "seq_len": d.seq_len,
        "stride": d.stride,
        "batch": d.batch,
        "local_steps": t.local_steps,
        "blocks": family.blocks(job.config),
        "replicas": t.replicas,
        "sharding": d.sharding,
    }


def validation_windows(corpus: data.Corpus, job: Job) -> Array:
    """The fixed slice of validation text, uint8 (windows, T+1)."""
    c = job.config
    return jnp.asarray(
        data.evaluation_windows(
            corpus.valid, seq_len=c.data.seq_len, count=c.eval.windows
        )
    )


def check_windows(family: Family, corpus: data.Corpus, cells: Sequence[Cell]) -> None:
    """Raises CorpusError if the corpus is too small for some job."""
    for cell in cells:
        job = cell.jobs[0]
        validation_windows(corpus, job)
        settings = window_settings(family, job)
        del settings["rounds"]
        data.round_batches(corpus.train, **settings, seed=job.config.seed)


def chunks(jobs: Sequence[Job], size: int) -> Iterator[list[Job]]:
    """Jobs of one program side by side, at most ``size`` of them."""
    by_program: dict[tuple[str, int, int], list[Job]] = {}
    for job in jobs:
        key = (job.program, job.config.seed, job.config.seeds)
        by_program.setdefault(key, []).append(job)
    for group in by_program.values():
        for begin in range(0, len(group), size):
            yield group[begin : begin + size]


def _stack(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _result(
    family: Family, job: Job, run: Run, index: int, seconds: float
) -> dict[str, Any]:
    """What is kept of a job: numbers by seed, and the curve by point."""
    losses = np.asarray(run.losses[index])  # (S, points)
    metrics = {name: np.asarray(m[index]) for name, m in run.metrics.items()}
    arrived, ages = metrics["arrived"] > 0, metrics["age"]  # (S, R)
    config = job.config
    final = losses[:, -config.eval.last :].mean(axis=1)
    diverged = ~np.isfinite(final) | (final > CHANCE)
    every = config.eval.every
    others = {name: np.asarray(values[index]) for name, values in run.others.items()}
    return {
        "method": job.method,
        "seconds": round(seconds, 2),
        "final": plain(final),
        "diverged": diverged.tolist(),
        "applied": arrived.sum(axis=1).tolist(),
        "mean_age": round(float(ages[arrived].mean()) if arrived.any() else 0.0, 4),
        "curve": {
            "round": list(range(every, config.train.rounds + 1, every)),
            "loss": [plain(point) for point in losses.T],
            **{name: [plain(p) for p in values.T] for name, values in others.items()},
        },
        **family.result(config, metrics),
    }


def plain(values: np.ndarray) -> list[float | None]:
    """Numbers for JSON, which knows nothing but finite ones."""
    return [round(float(v), 6) if np.isfinite(v) else None for v in values]
