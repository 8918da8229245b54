"""The end of training over a network: ``summary.json``, ``report.md``, a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spheroid_jax.reports import sections
from spheroid_jax.reports.files import write_atomic
from spheroid_jax.reports.network import tables
from spheroid_jax.reports.network.plots import plot
from spheroid_jax.reports.network.summary import Sweep, read
from spheroid_jax.reports.network.verdicts import verdicts
from spheroid_jax.reports.report import COLUMNS, CURVES, REPORT, wrap, write_summary
from spheroid_jax.reports.sweep_report import PICTURE
from spheroid_jax.reports.tables import duration, nats, si

UNITS = (
    "Loss in nats per byte of validation text, mean over seeds ± sample standard "
    "deviation; lower is better."
)


def picture(summary: Mapping[str, Any]) -> str:
    """The name of the picture that :func:`write_report` writes."""
    return PICTURE if summary.get("x") else CURVES


def write_report(workdir: Path, summary: Mapping[str, Any]) -> None:
    """Writes the three files.

    Args:
      workdir: the experiment's directory.
      summary: see :mod:`spheroid_jax.reports.network.summary`; what isn't finite
        becomes null.
    """
    write_summary(workdir, summary)
    plot(summary, workdir / picture(summary))
    write_atomic(workdir / REPORT, render_report(summary))


def render(summary: Mapping[str, Any]) -> str:
    """Tables and sentences for the screen."""
    sweep = read(summary)
    shown = [
        tables.loss_table(sweep, narrow=True),
        tables.network_table(sweep, narrow=True),
        tables.recovery_lines(sweep),
    ]
    parts = [table.text() for table in shown if table is not None]
    marks = [tables.FOOTNOTE] if tables.borrows(sweep) else []
    if "!" in parts[0]:
        marks.append(f"! above chance, ln V = {nats(sweep.chance)}")
    said = [UNITS, *marks, *verdicts(summary)]
    return "\n".join([*parts, *map(wrap, said)])


def render_report(summary: Mapping[str, Any]) -> str:
    """The text of ``report.md``."""
    sweep = read(summary)
    said = verdicts(summary)
    parts = [
        f"# {sections.run_name(summary)}",
        *(["## What it shows", _items(said)] if said else []),
        "## Loss",
        tables.loss_table(sweep).markdown(),
        _reading(sweep),
        "CE_ensemble, of all blocks met on the chain:",
        tables.loss_table(sweep, of_ensemble=True).markdown(),
        *_recovery(sweep),
        "## The network",
        tables.network_table(sweep).markdown(),
    ]
    if (ages := tables.ages_table(sweep)) is not None:
        parts.append(ages.markdown())
    parts += [
        f"![Losses over the network]({picture(summary)})",
        "## Set-up",
        _setup(summary),
        tables.facts_table(sweep).markdown(),
        "## Run it again",
        f"```\n{summary.get('command', '')}\n```",
        f"It took {duration(summary.get('seconds') or 0.0)} here.",
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _recovery(sweep: Sweep) -> list[str]:
    found = tables.recovery_table(sweep), tables.recovery_details(sweep)
    if found[0] is None or found[1] is None:
        return []
    return [
        "## What is won back",
        "How much of the loss that `drop` has more than lockstep the other policies "
        "win back.",
        *[table.markdown() for table in found if table is not None],
    ]


def _reading(sweep: Sweep) -> str:
    seeds = f"{sweep.seeds} seed{'s' * (sweep.seeds != 1)}"
    note = f" {tables.FOOTNOTE}" if tables.borrows(sweep) else ""
    return (
        f"{UNITS} At most {seeds} a cell; **bold** is the lowest mean of its row. "
        f"Chance, a uniform guess, is ln V = {nats(sweep.chance)}.{note}"
    )


def _setup(summary: Mapping[str, Any]) -> str:
    model = summary.get("model") or {}
    facts = [
        ("parameters", si(model["params"]) if "params" in model else None),
        ("blocks", summary.get("blocks")),
        ("layers a block", model.get("layers")),
        ("width", model.get("width")),
        ("workers a block", summary.get("workers")),
        ("local steps a round", summary.get("local_steps")),
        ("rounds", summary.get("rounds")),
        ("seeds", summary.get("seeds")),
    ]
    known = [f"{value} {name}" for name, value in facts if value is not None]
    return f"{', '.join(known)}." if known else ""


def _items(lines: Sequence[object]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _fits(text: str) -> bool:
    return all(len(line) <= COLUMNS for line in text.splitlines())
