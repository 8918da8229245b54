"""Runs that are over in minutes: there is no half of one, and none is resumed."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from spheroid_jax.reports.report import SUMMARY
from spheroid_jax.runs.opening import environment
from spheroid_jax.runs.workdir import as_json, open_workdir

SUMMARY_FORMAT = 1
Say = Callable[[str], None]


class Whole(NamedTuple):
    """A kind of experiment that is run in one go.

    Attributes:
      prepare: reads what the configuration names, before the run directory is claimed;
        raises ConfigError for what only shows then.
      opening: ``(config, prepared)`` to a line for the screen about what is done.
      work: ``(config, prepared, say)`` to what the summary tells.
      write_report: ``(workdir, summary)``.
    """

    prepare: Callable[[ConfigDict], Any]
    opening: Callable[[ConfigDict, Any], str]
    work: Callable[[ConfigDict, Any, Say], dict[str, Any]]
    write_report: Callable[[Path, dict[str, Any]], None]


def run_whole(
    kind: Whole,
    config: ConfigDict,
    workdir: Path,
    *,
    resume: bool,
    command: str,
    say: Say = print,
) -> dict[str, Any]:
    """Does the work of a configuration, and reports it.

    Args:
      kind: the kind of experiment.
      config: a valid configuration of that kind.
      workdir: the run directory; with ``resume`` it must hold the run.
      resume: whether to take what a finished run has left; one that was stopped starts
        again.
      command: what to type to get this again.
      say: prints a line for the user.

    Returns:
      The summary that is written to ``summary.json``.

    Raises:
      ConfigError: if the configuration can't be run after all.
    """
    began = time.perf_counter()
    prepared = kind.prepare(config)
    open_workdir(workdir, config, resume)
    if resume and (found := _finished(workdir / SUMMARY)) is not None:
        say(f"{config.name} in {workdir} finished before, not run again")
        kind.write_report(workdir, found)
        return found
    say(f"{config.name} ({config.size}) in {workdir}")
    say(kind.opening(config, prepared))
    summary = {
        "format": SUMMARY_FORMAT,
        "kind": config.kind,
        "name": config.name,
        "size": config.size,
        "environment": environment(),
        **kind.work(config, prepared, say),
        "config": as_json(config),
        "command": command,
        "seconds": round(time.perf_counter() - began, 2),
    }
    kind.write_report(workdir, summary)
    return summary


def _finished(path: Path) -> dict[str, Any] | None:
    """The summary of a run that ended, or None."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(found, dict) and found.get("format") == SUMMARY_FORMAT
    return found if whole else None
