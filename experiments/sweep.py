"""Runs every cell of a sweep and reports them in one table and one plot.

python -m experiments.sweep --config=configs/depth_sweep.py:quick
    [--config.FIELD=VALUE ...] [--workdir=DIR] [--resume]
"""

import sys
from pathlib import Path

from spheroid_jax.commandline import Options
from spheroid_jax.reports.sweep_report import render_sweep
from spheroid_jax.runs.session import fresh_command, session
from spheroid_jax.runs.sweep import run_sweep
from spheroid_jax.validation import ConfigError


def run(options: Options, workdir: Path) -> None:
    """Runs the cells and reports them into ``workdir``."""
    if "sweep" not in options.config:
        name = options.config.name
        raise ConfigError(f"{name} is no sweep: use python -m experiments.run")
    summary = run_sweep(
        options.config,
        workdir,
        resume=options.resume,
        command=fresh_command(options.command),
    )
    print(render_sweep(summary))
    print(f"report: {workdir}/report.md   picture: {workdir}/sweep.png")


if __name__ == "__main__":
    sys.exit(session("experiments.sweep", sys.argv[1:], run))
