"""A run: every method of a configuration, then a table, a picture and a summary."""

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from spheroid_jax import data, distributed
from spheroid_jax.diffusion import owned_ranges
from spheroid_jax.memory import active_states
from spheroid_jax.reports.log import MetricsLog, NoLog, read_metrics
from spheroid_jax.reports.report import write_report, write_summary
from spheroid_jax.runs.loop import (
    Outcome,
    final_results,
    train_method,
)
from spheroid_jax.runs.methods import (
    Method,
    build_method,
    count_params,
    grid_levels,
    noise_levels,
)
from spheroid_jax.runs.opening import corpus_facts, corpus_lines, environment
from spheroid_jax.runs.settings import method_mesh, window_settings
from spheroid_jax.runs.workdir import as_json, open_shared_workdir

SUMMARY_FORMAT = 1
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class _Trained:
    method: Method
    outcome: Outcome
    results: dict[str, Any]


def run_experiment(
    config: ConfigDict, workdir: Path, *, resume: bool, command: str, say: Say = print
) -> dict[str, Any]:
    """Trains, evaluates and reports every method of a valid configuration.

    Of several processes each calls this, and process 0 writes the log and the report.

    Args:
      config: see :mod:`spheroid_jax.config`.
      workdir: the run directory, made here; with ``resume`` it must hold the run.
      resume: whether to go on from the checkpoints in it.
      command: what to type to get this run again; goes into the report.
      say: prints a line for the user.

    Returns:
      The summary that is written to ``summary.json``.
    """
    began = time.perf_counter()
    corpus = data.load_corpus(config.data.corpus, mirror=config.data.mirror)
    for note in corpus.notes:
        say(f"NOTE: {note}")
    methods = [build_method(config, name) for name in config.methods]
    # Before the run directory is claimed: a mistyped path mustn't use it up.
    _check_windows(config, corpus, methods)
    _check_processes(corpus)
    for method in methods:
        method_mesh(method, config)
    open_shared_workdir(workdir, config, resume)
    for line in _opening(config, corpus, methods, workdir):
        say(line)

    with MetricsLog(workdir) if distributed.is_main() else NoLog() as log:
        trained = [_train(method, config, corpus, workdir, log) for method in methods]
    seconds = sum(t.outcome.seconds for t in trained)
    # Of earlier sessions only training is known; of this one, everything.
    seconds = max(seconds, time.perf_counter() - began)
    summary = _summary(config, corpus, trained, command, seconds)
    if distributed.is_main():
        write_summary(workdir, summary)
        write_report(workdir, summary, read_metrics(workdir / "metrics.jsonl"))
    return summary


def _check_windows(
    config: ConfigDict, corpus: data.Corpus, methods: list[Method]
) -> None:
    """Raises CorpusError if the corpus is too small for what the run asks of it."""
    for count in (config.eval.windows, config.eval.curve_windows):
        data.evaluation_windows(corpus.valid, seq_len=config.data.seq_len, count=count)
    for method in methods:
        data.round_batches(corpus.train, **window_settings(method, config))


def _check_processes(corpus: data.Corpus) -> None:
    """Raises DistributedError unless all processes have read the same text."""
    facts = {"name": corpus.name, "sha256": corpus.sha256}
    distributed.check_same("corpus", facts, "name one with --config.data.corpus")


def _train(
    method: Method,
    config: ConfigDict,
    corpus: data.Corpus,
    workdir: Path,
    log: MetricsLog,
) -> _Trained:
    directory = workdir / "checkpoints" / method.name
    outcome = train_method(method, config, corpus, directory, log)
    return _Trained(
        method, outcome, final_results(method, config, corpus, outcome.params)
    )


def _opening(
    config: ConfigDict, corpus: data.Corpus, methods: list[Method], workdir: Path
) -> list[str]:
    """What a reader of the screen needs to know before the first round."""
    m, t, d = config.model, config.train, config.data
    lines = [
        f"{config.name} ({config.size}) in {workdir}",
        *corpus_lines(corpus),
        f"every method takes {t.rounds} rounds x {t.local_steps} steps, "
        f"{d.batch} windows of {d.seq_len} bytes per worker and step",
    ]
    what = {
        "blocktrain": f"blocks x layers = {m.blocks} x {m.layers}; each block trained "
        "by itself on its own denoising objective, "
        f"replicas: {t.replicas}",
        "end_to_end": f"reference, layers: {m.blocks * m.layers}, trained as one model",
        "block_sized": f"reference, layers: {m.layers}, as many as one block has",
    }
    lines += [
        f"  {x.name:<12} {count_params(x.init):>12,} parameters; {what[x.name]}"
        for x in methods
    ]
    return lines


def _summary(
    config: ConfigDict,
    corpus: data.Corpus,
    trained: list[_Trained],
    command: str,
    seconds: float,
) -> dict[str, Any]:
    methods = {t.method.name: _method_facts(config, t) for t in trained}
    headline = methods.get("blocktrain") or next(iter(methods.values()))
    results: dict[str, Any] = {}
    for t in trained:
        results |= _named_results(t)
    summary = {
        "format": SUMMARY_FORMAT,
        "name": config.name,
        "size": config.size,
        "command": command,
        "seed": config.seed,
        "corpus": corpus_facts(corpus),
        "params": headline["params"],
        "train_flops": headline["train_flops"],
        "seconds": round(seconds, 2),
        "methods": methods,
        "results": results,
        "environment": environment(),
        "config": as_json(config),
    }
    for t in trained:
        if t.method.name == "blocktrain":
            shapes = jax.eval_shape(t.method.init, jax.random.key(0))
            ranges = owned_ranges(noise_levels(config), config.model.blocks)
            summary |= {
                "sigma_ranges": np.round(ranges, 6).tolist(),
                "grid": np.round(grid_levels(config), 6).tolist(),
                "memory": [
                    row._asdict() for row in active_states(shapes, config.model.blocks)
                ],
            }
    return summary


def _method_facts(config: ConfigDict, trained: _Trained) -> dict[str, Any]:
    method, outcome = trained.method, trained.outcome
    steps = config.train.rounds * config.train.local_steps
    windows = steps * config.data.batch * method.workers
    return {
        "layers_per_worker": method.layers_per_worker,
        "params": count_params(method.init),
        "train_flops": windows * method.window_flops,
        "bytes_seen": outcome.bytes_seen,
        "learning_rate": method.learning_rate,
        "seconds": round(outcome.seconds, 2),
        "rounds": config.train.rounds,
        "steps": steps,
    }


def _named_results(trained: _Trained) -> dict[str, Any]:
    """A reference's cross-entropy goes by the method's name."""
    results = dict(trained.results)
    if "ce" in results:
        results[trained.method.name] = results.pop("ce")
    if "ce_chain" in results:
        results["ppl_chain"] = math.exp(results["ce_chain"])
        results["bpb_chain"] = results["ce_chain"] / math.log(2)
    return results
