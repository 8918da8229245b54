"""The end of a comparison of encodings: ``summary.json``, ``report.md``, a picture."""

import statistics
from pathlib import Path

from spheroid_jax.reports import sections
from spheroid_jax.reports.encodings.cells import Summary, cells, signed, spread
from spheroid_jax.reports.encodings.plot import plot_encodings
from spheroid_jax.reports.encodings.verdicts import verdicts
from spheroid_jax.reports.files import write_atomic
from spheroid_jax.reports.report import REPORT, wrap, write_summary
from spheroid_jax.reports.tables import Table, duration, nats, si

PICTURE = "encodings.png"
CAPTION = "CE_chain against bytes both ways, and its course against the bytes up"
READING = (
    "Nats per byte of validation text after the last round, mean over seeds ± sample "
    "standard deviation; lower is better. *Difference*: CE_chain less float32's of the "
    "same seed, mean ± sample standard deviation. *Up*: bytes of an update's file, "
    "header and checksums included, and how many times smaller than float32. *Down*: "
    "bytes to a worker in a round. Means over all updates. *Fewer*: how many times "
    "fewer bytes both ways than with float32. *Both ways*: what changed goes down "
    "encoded, too, with error feedback at the coordinator; the first parts go whole."
)


def write_report(workdir: Path, summary: Summary) -> None:
    """Writes the three files.

    Args:
      workdir: the run's directory.
      summary: as :func:`spheroid_jax.runs.exchange.encodings.run_encodings` makes it.
    """
    write_summary(workdir, summary)
    plot_encodings(summary, workdir / PICTURE)
    write_atomic(workdir / REPORT, render_report(summary))


def render(summary: Summary) -> str:
    """Table and sentences for the screen."""
    lines = [READING, *verdicts(summary)]
    return "\n".join([table(summary, narrow=True).text(), *map(wrap, lines)])


def render_report(summary: Summary) -> str:
    """The text of ``report.md``."""
    parts = [
        f"# {sections.run_name(summary)}",
        sections.corpus(summary),
        "## What it shows",
        "\n".join(f"- {line}" for line in verdicts(summary)),
        "## Loss and bytes",
        table(summary).markdown(),
        READING,
        f"![{CAPTION}]({PICTURE})",
        "## Run it again",
        f"```\n{summary['command']}\n```",
        f"It took {duration(summary['seconds'])} here.",
        "\n".join(f"- {k}: {v}" for k, v in summary["environment"].items()),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def table(summary: Summary, *, narrow: bool = False) -> Table:
    """A line for each encoding without and with compression.

    Args:
      summary: the summary.
      narrow: whether it has to fit the screen.
    """
    rows = [
        [
            cell.name,
            si(cell.up, "B"),
            f"{cell.smaller:.2f}",
            si(cell.down, "B"),
            f"{cell.fewer:.2f}",
            _around(cell.ce),
            signed(cell.difference) if narrow else _signed(cell.differences),
            _around(cell.ensemble),
        ]
        for cell in cells(summary)
    ]
    header = [
        *("encoding", "up", "x smaller", "down", "x fewer", "CE_chain"),
        *("difference", "CE_ensemble"),
    ]
    if narrow:
        header = ["encoding", "up", "x", "down", "x", "CE_chain", "less f32"]
        rows = [row[:-1] for row in rows]
    return Table(header, rows, "l" + "r" * (len(header) - 1))


def _around(values: list[float]) -> str:
    mean, around = statistics.fmean(values), spread(values)
    return nats(mean) if around is None else f"{nats(mean)} ± {nats(around)}"


def _signed(values: list[float]) -> str:
    text, around = signed(statistics.fmean(values)), spread(values)
    return text if around is None else f"{text} ± {around:.4f}"
