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

from spheroid_jax import data
from spheroid_jax.models import VOCABULARY, Llama
from spheroid_jax.runs.delays.jobs import Cell, Job
from spheroid_jax.runs.delays.program import (
    Program,
    Run,
    build_model,
    build_program,
)
from spheroid_jax.runs.delays.schedules import schedule

JOB_THREADS = "jobs"  # what the names of their threads begin with
CHANCE = math.log(VOCABULARY)  # loss of a model that knows nothing, nats per byte


class Executor:
    """The programs and the windows that jobs share."""

    def __init__(self, corpus: data.Corpus, max_delay: int) -> None:
        self._corpus, self._max_delay = corpus, max_delay
        self._programs: dict[tuple[str, int, int], Program] = {}
        self._locks: dict[str, threading.Lock] = collections.defaultdict(threading.Lock)
        self._windows = functools.lru_cache(maxsize=2)(self._read)
        self._init = functools.lru_cache(maxsize=2)(_compiled_init)

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
        settings = tuple(sorted(window_settings(first).items()))
        numbers = {
            name: jnp.array([job.recipe.numbers[name] for job in jobs])
            for name in first.recipe.numbers
        }
        schedules = _stack(
            [_stack([schedule(job.config, seed) for seed in seeds]) for job in jobs]
        )
        # Of two threads that want one program the second waits, and compiles nothing.
        with self._locks[first.program]:
            given = (
                numbers,
                *self._starts(first, seeds),
                self._windows(settings, seeds),
                validation_windows(self._corpus, first),
                schedules,
            )
            shape = (first.program, len(jobs), len(seeds))
            if shape not in self._programs:
                program = build_program(config, first.recipe, self._max_delay)
                self._programs[shape] = program.lower(*given).compile()
        run = jax.block_until_ready(self._programs[shape](*given))
        seconds = (time.perf_counter() - began) / len(jobs)
        return [_result(job, run, i, seconds) for i, job in enumerate(jobs)]

    def _starts(self, job: Job, seeds: tuple[int, ...]) -> tuple[Any, Array]:
        """Parameters, leaves (S, ...), and keys (S,): of the seed, not the method."""
        init = self._init(build_model(job.config))
        both = [jax.random.split(jax.random.key(seed)) for seed in seeds]
        starts, keys = jnp.stack(both, axis=1)
        return init(starts), keys

    def _read(self, settings: Any, seeds: tuple[int, ...]) -> Array:
        """Windows of every round, uint8 (S, R, 1, M, H, N, T+1)."""
        fields = dict(settings)
        rounds = fields.pop("rounds")
        all_seeds = []
        for seed in seeds:
            batches = data.round_batches(self._corpus.train, **fields, seed=seed)
            all_seeds.append(np.stack([batches[r] for r in range(rounds)]))
        return jnp.asarray(np.stack(all_seeds))


def _compiled_init(model: Llama) -> Callable[[Array], Any]:
    return jax.jit(jax.vmap(model.init))


def window_settings(job: Job) -> dict[str, Any]:
    """What decides which windows a job's workers see, beside the seed."""
    d, t = job.config.data, job.config.train
    return {
        "rounds": t.rounds,
        "seq_len": d.seq_len,
        "stride": d.stride,
        "batch": d.batch,
        "local_steps": t.local_steps,
        "blocks": 1,
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


def check_windows(corpus: data.Corpus, cells: Sequence[Cell]) -> None:
    """Raises CorpusError if the corpus is too small for some job."""
    for cell in cells:
        job = cell.jobs[0]
        validation_windows(corpus, job)
        settings = window_settings(job)
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


def _result(job: Job, run: Run, index: int, seconds: float) -> dict[str, Any]:
    """What is kept of a job: numbers by seed, and the curve by point."""
    losses = np.asarray(run.losses[index])  # (S, points)
    arrived = np.asarray(run.metrics["arrived"][index]) > 0  # (S, R)
    ages = np.asarray(run.metrics["age"][index])
    config = job.config
    final = losses[:, -config.eval.last :].mean(axis=1)
    diverged = ~np.isfinite(final) | (final > CHANCE)
    every = config.eval.every
    return {
        "method": job.method,
        "seconds": round(seconds, 2),
        "final": _plain(final),
        "diverged": diverged.tolist(),
        "applied": arrived.sum(axis=1).tolist(),
        "mean_age": round(float(ages[arrived].mean()) if arrived.any() else 0.0, 4),
        "curve": {
            "round": list(range(every, config.train.rounds + 1, every)),
            "loss": [_plain(point) for point in losses.T],
        },
    }


def _plain(values: np.ndarray) -> list[float | None]:
    return [round(float(v), 6) if np.isfinite(v) else None for v in values]
