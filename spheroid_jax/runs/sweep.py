"""A sweep: one run per cell, then one table and one plot.

A cell is a string of overrides in the language of the command line, for instance
``"model.blocks=12 model.layers=1"``. Finished cells are not run again.
"""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from spheroid_jax.commandline import overrides
from spheroid_jax.fields import assignments, leaves
from spheroid_jax.reports.sweep_report import write_sweep_report
from spheroid_jax.runs.experiment import SUMMARY_FORMAT, run_experiment
from spheroid_jax.runs.opening import environment
from spheroid_jax.runs.workdir import open_workdir

Say = Callable[[str], None]


def cell_label(cell: str) -> str:
    """A folder name for a cell: its overrides without their sections."""
    short = "-".join(
        f"{name.rsplit('.', 1)[-1]}={value}" for name, value in assignments(cell)
    )
    return re.sub(r"[^\w.=-]+", "_", short) or "base"


def cell_settings(cell: str, config: ConfigDict) -> dict[str, Any]:
    """The fields that a cell sets, with the values they got."""
    values = leaves(config)
    return {name: values[name] for name, _ in assignments(cell)}


def run_sweep(
    config: ConfigDict, workdir: Path, *, resume: bool, command: str, say: Say = print
) -> dict[str, Any]:
    """Runs every cell of ``config.sweep`` and reports them together.

    Args:
      config: a valid configuration with a ``sweep`` section.
      workdir: the sweep's directory; cells live under ``cells/``.
      resume: whether to go on with the sweep in it.
      command: what to type to get this sweep again.
      say: prints a line for the user.

    Returns:
      The summary that is written to ``summary.json``.
    """
    began = time.perf_counter()
    open_workdir(workdir, config, resume)
    cells = list(config.sweep.cells)
    done = []
    for number, cell in enumerate(cells, 1):
        say(f"cell {number}/{len(cells)}: {cell or '(as configured)'}")
        done.append(_run_cell(config, cell, workdir, command, say))
    summary = {
        "format": SUMMARY_FORMAT,
        "name": config.name,
        "size": config.size,
        "command": command,
        "seconds": round(time.perf_counter() - began, 2),
        "corpus": done[0]["corpus"],
        "x": config.sweep.axis,
        "series": list(config.sweep.series),
        "log_x": config.sweep.log_x,
        "cells": [cell["row"] for cell in done],
        "environment": environment(),
    }
    write_sweep_report(workdir, summary)
    return summary


def _run_cell(
    config: ConfigDict, cell: str, workdir: Path, command: str, say: Say
) -> dict[str, Any]:
    cell_config = overrides(config, cell)
    label = cell_label(cell)
    directory = workdir / "cells" / label
    finished = directory / "summary.json"
    if finished.exists():
        say("  finished before, not run again")
        summary = json.loads(finished.read_text())
    else:
        summary = run_experiment(
            cell_config,
            directory,
            resume=(directory / "config.json").exists(),
            command=command,
            say=lambda line: say(f"  {line}"),
        )
    row = {
        "label": label,
        "settings": cell_settings(cell, cell_config),
        "results": summary["results"],
        "scale": _scale(summary),
        "seconds": summary["seconds"],
        "summary": str(finished.relative_to(workdir)),
    }
    return {"row": row, "corpus": summary["corpus"]}


def _scale(summary: dict[str, Any]) -> dict[str, int]:
    """How large a cell was; ``bytes_seen`` is BlockTrain's, or its first method's."""
    config, methods = summary["config"], summary["methods"]
    facts = methods.get("blocktrain") or next(iter(methods.values()))
    return {
        **{name: config["model"][name] for name in ("blocks", "layers", "width")},
        **{name: config["train"][name] for name in ("replicas", "rounds")},
        "local_steps": config["train"]["local_steps"],
        "batch": config["data"]["batch"],
        "bytes_seen": facts["bytes_seen"],
    }
