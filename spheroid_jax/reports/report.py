"""The end of a run: ``summary.json``, ``report.md``, ``curves.png`` and a table."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spheroid_jax.reports import leakage, sections
from spheroid_jax.reports.files import to_json, write_atomic
from spheroid_jax.reports.plots import plot_curves
from spheroid_jax.reports.published import load_published

SUMMARY, REPORT, CURVES = "summary.json", "report.md", "curves.png"
COLUMNS = 80  # of a terminal
UNITS = "nats, perplexity and bits are per byte of validation text; lower is better"


def write_summary(workdir: Path, summary: Mapping[str, Any]) -> None:
    """Writes ``summary.json``; what isn't finite becomes null."""
    write_atomic(workdir / SUMMARY, to_json(summary, indent=2) + "\n")


def write_report(
    workdir: Path, summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
) -> None:
    """Writes ``report.md`` and ``curves.png``.

    Args:
      workdir: the run directory.
      summary: what :func:`write_summary` gets; methods that weren't trained are
        left out of it, and of the report.
      records: the metrics, as :func:`spheroid_jax.reports.log.read_metrics` gives them.
    """
    title = f"{sections.run_name(summary)} on {summary['corpus']['name']}"
    plot_curves(records, workdir / CURVES, levels=_levels(summary), title=title)
    write_atomic(workdir / REPORT, render_report(summary, records))


def render_report(
    summary: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
) -> str:
    """The text of ``report.md``."""
    parts = [
        f"# {sections.run_name(summary)}",
        sections.headline(summary),
        sections.corpus(summary),
        "## Cross-entropy on validation",
        sections.main_table(summary).markdown(),
        sections.fairness(summary),
        f"![Cross-entropy against rounds and bytes seen]({CURVES})",
        sections.curves(summary, records),
        *leakage.blocks(summary),
        *sections.memory(summary),
        *sections.published(summary, load_published()),
        *sections.again(summary),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def render_summary(summary: Mapping[str, Any]) -> str:
    """The main table and what it says, for the screen at the end of a run."""
    said = [UNITS, sections.headline(summary), leakage.warning(summary)]
    lines = [wrap(text) for text in said if text]
    return "\n".join([sections.main_table(summary, narrow=True).text(), *lines])


def wrap(text: str) -> str:
    """Text in lines that fit the screen; names with hyphens stay whole."""
    return textwrap.fill(text, COLUMNS, break_on_hyphens=False)


def _levels(summary: Mapping[str, Any]) -> dict[str, float]:
    """Horizontal lines of the picture, nats per byte."""
    levels = {"uniform guess, ln 256": math.log(256)}
    for order, entropy in enumerate(summary["corpus"]["entropies"]):
        if order:  # order 0 is so far up that its line would only be in the way
            levels[f"order-{order} entropy"] = entropy
    return levels
