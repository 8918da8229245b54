"""Which function runs a configuration, by its kind and by whether it is a sweep."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from spheroid_jax.commandline import Options
from spheroid_jax.fields import ConfigError
from spheroid_jax.reports.bound import report as bound_report
from spheroid_jax.reports.delays import report as delay_report
from spheroid_jax.reports.encodings import report as encodings_report
from spheroid_jax.reports.exchange import report as exchange_report
from spheroid_jax.reports.fleet import report as fleet_report
from spheroid_jax.reports.memory import report as memory_report
from spheroid_jax.reports.network import report as network_report
from spheroid_jax.reports.report import CURVES, REPORT, render_summary
from spheroid_jax.reports.sweep_report import PICTURE, render_sweep
from spheroid_jax.runs.bound.experiment import run_bound
from spheroid_jax.runs.delays.experiment import run_delayed
from spheroid_jax.runs.exchange.encodings import run_encodings
from spheroid_jax.runs.exchange.experiment import run_exchange
from spheroid_jax.runs.experiment import run_experiment
from spheroid_jax.runs.fleet.experiment import run_fleet
from spheroid_jax.runs.memory.experiment import run_memory
from spheroid_jax.runs.network.experiment import run_network
from spheroid_jax.runs.session import fresh_command
from spheroid_jax.runs.sweep import run_sweep

Summary = dict[str, Any]


class Kind(NamedTuple):
    """How a kind of experiment is run and shown.

    Attributes:
      run: ``(config, workdir, *, resume, command) -> summary``.
      render: a summary as text for the screen.
      picture: the name of the picture that ``run`` leaves in its directory.
    """

    run: Callable[..., Summary]
    render: Callable[[Summary], str]
    picture: Callable[[Summary], str]


_DELAYS = Kind(run_delayed, delay_report.render, delay_report.picture)
_NETWORK = Kind(run_network, network_report.render, network_report.picture)
RUNS = {
    "blocks": Kind(run_experiment, render_summary, lambda _: CURVES),
    "delays": _DELAYS,
    "network": _NETWORK,
    "exchange": Kind(
        run_exchange, exchange_report.render, lambda _: exchange_report.PICTURE
    ),
    "encodings": Kind(
        run_encodings, encodings_report.render, lambda _: encodings_report.PICTURE
    ),
    "bound": Kind(run_bound, bound_report.render, lambda _: bound_report.PICTURE),
    "memory": Kind(run_memory, memory_report.render, lambda _: memory_report.PICTURE),
    "fleet": Kind(run_fleet, fleet_report.render, lambda _: fleet_report.PICTURE),
}
SWEEPS = {
    "blocks": Kind(run_sweep, render_sweep, lambda _: PICTURE),
    "delays": _DELAYS,
    "network": _NETWORK,
}


def run(options: Options, workdir: Path) -> None:
    """Runs a configuration that is no sweep, and reports it into ``workdir``."""
    if "sweep" in options.config:
        name = options.config.name
        raise ConfigError(f"{name} is a sweep: use python -m experiments.sweep")
    _perform(RUNS[options.config.kind], options, workdir)


def sweep(options: Options, workdir: Path) -> None:
    """Runs every cell of a sweep, and reports them together into ``workdir``."""
    if "sweep" not in options.config:
        name = options.config.name
        raise ConfigError(f"{name} is no sweep: use python -m experiments.run")
    _perform(SWEEPS[options.config.kind], options, workdir)


def _perform(kind: Kind, options: Options, workdir: Path) -> None:
    summary = kind.run(
        options.config,
        workdir,
        resume=options.resume,
        command=fresh_command(options.command),
    )
    print(kind.render(summary))
    print(f"report: {workdir}/{REPORT}   picture: {workdir}/{kind.picture(summary)}")
