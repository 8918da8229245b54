"""Trains what a configuration describes, beside its references, and reports it.

python -m experiments.run --config=configs/b3_l4.py:quick
    [--config.FIELD=VALUE ...] [--workdir=DIR] [--resume]
"""

import sys
from pathlib import Path

from spheroid_jax.commandline import Options
from spheroid_jax.reports.report import render_summary
from spheroid_jax.runs import run_experiment
from spheroid_jax.runs.session import fresh_command, session
from spheroid_jax.validation import ConfigError


def run(options: Options, workdir: Path) -> None:
    """Trains and reports into ``workdir``."""
    if "sweep" in options.config:
        name = options.config.name
        raise ConfigError(f"{name} is a sweep: use python -m experiments.sweep")
    summary = run_experiment(
        options.config,
        workdir,
        resume=options.resume,
        command=fresh_command(options.command),
    )
    print(render_summary(summary))
    print(f"report: {workdir}/report.md   picture: {workdir}/curves.png")


if __name__ == "__main__":
    sys.exit(session("experiments.run", sys.argv[1:], run))
