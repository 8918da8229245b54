"""The end of a run between processes: ``summary.json``, ``report.md``, a picture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spheroid_jax.reports import sections
from spheroid_jax.reports.exchange import tables
from spheroid_jax.reports.exchange.plot import plot_exchange
from spheroid_jax.reports.exchange.verdicts import verdicts
from spheroid_jax.reports.files import write_atomic
from spheroid_jax.reports.published import Published, load_published
from spheroid_jax.reports.report import REPORT, wrap, write_summary
from spheroid_jax.reports.tables import duration

PICTURE = "exchange.png"
Summary = Mapping[str, Any]

CAPTION = "CE against rounds beside the simulator's, and each worker's time"
ROUNDS = (
    "CE in nats per byte of validation text, lower is better; round 0 is before "
    "training. *Seconds*: from a round's opening to when its checkpoint is on disk, "
    "*closing* being its last part: aggregating, stepping, saving. *Up* and *down*: "
    "bytes of transfers and messages from and to all workers since the round before. "
    "*Simulator*: CE_chain of the lockstep run of the same seeds in one process; "
    "*by rounding*, where it is there: how far the same one is from it whose first "
    "parameters are one rounding beside."
)
TIME = (
    "Means over workers. Fetching includes checking digests and loading; sending "
    "includes the coordinator's checks and its answer, which comes when the update is "
    "safe on its disk; packing is encoding and writing an update to the worker's own "
    "disk. The cores are shared by all processes, so computing is slower than on "
    "machines of their own."
)


def write_report(workdir: Path, summary: Summary) -> None:
    """Writes the three files.

    Args:
      workdir: the run's directory.
      summary: as :func:`spheroid_jax.runs.exchange.experiment.run_exchange` makes it.
    """
    write_summary(workdir, summary)
    plot_exchange(summary, workdir / PICTURE)
    write_atomic(workdir / REPORT, render_report(summary, load_published()))


def render(summary: Summary) -> str:
    """Tables and sentences for the screen."""
    parts = [
        tables.rounds_table(summary, narrow=True).text(),
        tables.phases_table(summary).text(),
        "\n".join(map(wrap, verdicts(summary, load_published()))),
    ]
    return "\n".join(parts)


def render_report(summary: Summary, numbers: Published | None) -> str:
    """The text of ``report.md``."""
    parts = [
        f"# {sections.run_name(summary)}",
        sections.corpus(summary),
        "## What it shows",
        "\n".join(f"- {line}" for line in verdicts(summary, numbers)),
        f"![{CAPTION}]({PICTURE})",
        "## Rounds",
        tables.rounds_table(summary).markdown(),
        ROUNDS,
        "## Time",
        tables.phases_table(summary).markdown(),
        TIME,
        "## Workers",
        tables.workers_table(summary).markdown(),
        *_published(summary, numbers),
        "## Run it again",
        f"```\n{summary['command']}\n```",
        f"It took {duration(summary['seconds'])} here: the processes "
        f"{duration(summary['fleet_seconds'])}, the simulator "
        f"{duration(summary['lockstep']['seconds'])}. Every process's output is in "
        "`logs/`.",
        "\n".join(f"- {k}: {v}" for k, v in summary["environment"].items()),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _published(summary: Summary, numbers: Published | None) -> list[str]:
    table = tables.published_table(summary, numbers)
    if numbers is None or table is None:
        return []
    tags = "; ".join(f"{tag}: {what}" for tag, what in numbers.tags.items())
    return [
        "## Beside the paper",
        table.markdown(),
        "*(derived)*: by us, from the published bytes. For orientation only.",
        f"Source: {numbers.source}. Tags: {tags}.",
    ]
