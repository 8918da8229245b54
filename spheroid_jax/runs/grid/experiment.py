"""A run or a sweep: all methods at all settings, a table, a picture, verdicts."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from spheroid_jax import data
from spheroid_jax.reports.tables import duration
from spheroid_jax.runs.grid import execute
from spheroid_jax.runs.grid.board import write_curves
from spheroid_jax.runs.grid.family import Family
from spheroid_jax.runs.grid.jobs import Cell, Job, plan, room
from spheroid_jax.runs.grid.results import Results
from spheroid_jax.runs.methods import count_params
from spheroid_jax.runs.opening import corpus_facts, corpus_lines, environment
from spheroid_jax.runs.workdir import as_json, open_workdir

SUMMARY_FORMAT = 1
Say = Callable[[str], None]


def run_grid(
    family: Family,
    config: ConfigDict,
    workdir: Path,
    *,
    resume: bool,
    command: str,
    say: Say = print,
) -> dict[str, Any]:
    """Runs every method at every setting, and reports them together.

    Args:
      family: the kind of experiment.
      config: a valid configuration of that kind, with or without a ``sweep``.
      workdir: the run directory; with ``resume`` it must hold the run.
      resume: whether to go on; what is finished isn't run again.
      command: what to type to get this again.
      say: prints a line for the user.

    Returns:
      The summary that is written to ``summary.json``.
    """
    began = time.perf_counter()
    corpus = data.load_corpus(config.data.corpus, mirror=config.data.mirror)
    for note in corpus.notes:
        say(f"NOTE: {note}")
    cells = plan(family, config, corpus.sha256)
    # Before the run directory is claimed: a mistyped path mustn't use it up.
    execute.check_windows(family, corpus, cells)
    most = room(family, cells)
    open_workdir(workdir, config, resume)
    results = Results(workdir)
    for line in _opening(family, config, corpus, cells, workdir):
        say(line)
    executor = execute.Executor(family, corpus, most)
    at_once, threads = 1, 1
    if "sweep" in config:
        at_once, threads = config.sweep.cells_at_once, config.sweep.threads
    # Of earlier sessions only the jobs' own time is known, so many at a time.
    before = sum(row["seconds"] for row in _distinct(cells, results)) / threads
    for job, cell, result in _run_all(
        family, cells, results, executor, (at_once, threads), say
    ):
        results.add(job.identity, result)
        write_curves(workdir, job, cell, result)
    summary = _summary(family, config, corpus, cells, results)
    seconds = before + time.perf_counter() - began
    summary |= {"command": command, "seconds": round(seconds, 2)}
    family.write_report(workdir, summary)
    return summary


def _run_all(
    family: Family,
    cells: Sequence[Cell],
    results: Results,
    executor: execute.Executor,
    side_by_side: tuple[int, int],
    say: Say,
) -> Iterator[tuple[Job, Cell, dict[str, Any]]]:
    """Runs what isn't finished, says how far it is, and yields each result."""
    every = {job.identity: (job, cell) for cell in cells for job in cell.jobs}
    left = [job for job, _ in every.values() if results.get(job.identity) is None]
    done = len(every) - len(left)
    if done:
        say(f"{done} of {len(every)} finished before, not run again")
    began, fresh = time.perf_counter(), 0
    at_once, threads = side_by_side
    for jobs, found in executor.run_all(execute.chunks(left, at_once), threads):
        for job, result in zip(jobs, found, strict=True):
            cell = every[job.identity][1]
            yield job, cell, result
            done, fresh = done + 1, fresh + 1
            rest = (time.perf_counter() - began) / fresh * (len(left) - fresh)
            name = family.label(job.method, {"name": job.recipe.name})
            say(_line(name, cell, result, f"{done}/{len(every)}", rest))


def _line(
    name: str, cell: Cell, result: dict[str, Any], count: str, rest: float
) -> str:
    """Progress: what was finished, how it ended, and how long the others will take."""
    finite = [x for x in result["final"] if x is not None]
    lost = len(result["final"]) - len(finite)
    loss = f"{np.mean(finite):.3f}" if finite else "not finite"
    if finite and lost:
        loss += f" ({lost} of {len(result['final'])} seeds not finite)"
    elif finite and any(result["diverged"]):
        loss += " (above chance)"
    where = " ".join(f"{k.rsplit('.', 1)[-1]}={v}" for k, v in cell.settings.items())
    left = f", {duration(rest)} left" if rest else ""
    return (
        f"  {count:>7}  {name}, {where}: loss {loss} in {result['seconds']:.0f}s{left}"
    )


def _opening(
    family: Family,
    config: ConfigDict,
    corpus: data.Corpus,
    cells: Sequence[Cell],
    workdir: Path,
) -> list[str]:
    """What a reader of the screen needs to know before the first result."""
    jobs = {job.identity for cell in cells for job in cell.jobs}
    programs = {job.program for cell in cells for job in cell.jobs}
    return [
        f"{config.name} ({config.size}) in {workdir}",
        *corpus_lines(corpus),
        *family.opening(config),
        f"{len(jobs)} runs of {config.seeds} "
        f"seed{'s' * (config.seeds > 1)}, {len(programs)} programs to compile",
    ]


def _summary(
    family: Family,
    config: ConfigDict,
    corpus: data.Corpus,
    cells: Sequence[Cell],
    results: Results,
) -> dict[str, Any]:
    sweep = config.get("sweep")
    used = dict.fromkeys(job.method for cell in cells for job in cell.jobs)
    rows = [
        {
            **(results.get(job.identity) or {}),
            "method": job.method,
            "settings": cell.settings,
            "recipe": {"name": job.recipe.name, **job.recipe.numbers},
        }
        for cell in cells
        for job in cell.jobs
    ]
    return {
        "format": SUMMARY_FORMAT,
        "kind": config.kind,
        "name": config.name,
        "size": config.size,
        "corpus": corpus_facts(corpus),
        "chance": execute.CHANCE,
        "model": {
            "params": count_params(family.init(config)),
            "layers": config.model.layers,
            "width": config.model.width,
        },
        **family.facts(config),
        "workers": config.train.replicas,
        "local_steps": config.train.local_steps,
        "rounds": config.train.rounds,
        "seeds": config.seeds,
        "x": sweep.axis if sweep else "",
        "panel": sweep.panel if sweep else "",
        "log_x": sweep.log_x if sweep else False,
        "methods": list(used),
        "recipes": {name: config.recipes[name] for name in used},
        "rows": rows,
        "environment": environment(),
        "config": as_json(config),
    }


def _distinct(cells: Sequence[Cell], results: Results) -> list[dict[str, Any]]:
    """Results without those that several cells share counted twice."""
    identities = {job.identity for cell in cells for job in cell.jobs}
    return [r for i in identities if (r := results.get(i)) is not None]
