"""The end of a run of kind ``bound``: its tables, its picture and its sentences.

``summary.json``, ``report.md`` and ``bound.png``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spheroid_jax.reports import sections
from spheroid_jax.reports.bound.fits import Bound, Measure, lost, slope, values
from spheroid_jax.reports.bound.names import items, method_label, power
from spheroid_jax.reports.bound.plot import plot_bound
from spheroid_jax.reports.bound.verdicts import verdicts
from spheroid_jax.reports.files import write_atomic
from spheroid_jax.reports.report import REPORT, wrap, write_summary
from spheroid_jax.reports.tables import NOTHING, Table, duration

__all__ = ["PICTURE", "method_label", "render", "render_report", "write_report"]

PICTURE = "bound.png"
_MEASURES: Mapping[Measure, str] = {
    "error": "Error",
    "excess": "Error beyond that without delay",
    "bias": "Squared bias of stale gradients, weighted by sigma",
}


def write_report(workdir: Path, summary: Mapping[str, Any]) -> None:
    """Writes the three files.

    Args:
      workdir: the run's directory.
      summary: as :func:`spheroid_jax.runs.bound.experiment.run_bound` makes it; what
        isn't finite becomes null.
    """
    write_summary(workdir, summary)
    plot_bound(summary, workdir / PICTURE)
    write_atomic(workdir / REPORT, render_report(summary))


def render(summary: Mapping[str, Any]) -> str:
    """Tables and sentences for the screen."""
    bound, parts = Bound(summary), [inequality_table(summary).text()]
    for function, kind in bound.places():
        title = f"Error, {function}, {kind} ages, by tau_max"
        parts.append(f"{title}\n{values_table(bound, function, kind, 'error').text()}")
    for kind in bound.kinds:
        for measure, name in _MEASURES.items():
            title = f"{name}, {kind} ages: power of tau_max"
            table = slopes_table(bound, kind, measure, digits=1)
            parts.append(f"{wrap(title)}\n{table.text()}")
    parts.append(
        "\n".join(wrap(line) for line in (_units(summary), *verdicts(summary)))
    )
    return "\n".join(parts)


def render_report(summary: Mapping[str, Any]) -> str:
    """The text of ``report.md``."""
    bound = Bound(summary)
    parts = [
        f"# {sections.run_name(summary)}",
        "## What it shows",
        items(verdicts(summary)),
        f"![Error and bias against tau_max]({PICTURE})",
        "Lines are means over seeds, bars standard errors. A cross near the upper "
        "edge is a cell that diverged.",
        "## The inequality",
        "Largest tau sigma(tau) over real tau, against 1 / (e alpha).",
        inequality_table(summary).markdown(),
        "## Powers of tau_max",
        _fit(bound),
    ]
    for kind in bound.kinds:
        for measure, name in _MEASURES.items():
            table = slopes_table(bound, kind, measure)
            parts += [f"### {name}, {kind} ages", table.markdown()]
    parts += ["## Numbers", _units(summary)]
    for number, heading in _NUMBERS.items():
        parts.append(f"### {heading}")
        for function, kind in bound.places():
            table = values_table(bound, function, kind, number)
            parts += [f"{function}, {kind} ages:", table.markdown()]
    parts += ["## Set-up", _setup(summary), rates_table(summary).markdown()]
    parts += ["## Run it again", f"```\n{summary.get('command', '')}\n```"]
    parts += [f"It took {duration(summary.get('seconds') or 0.0)} here."]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


_NUMBERS = {
    "error": "Error: late mean of the squared gradient",
    "sup": "Largest late squared gradient",
    "bias": "Squared bias of stale gradients, weighted by sigma, mean over the run",
    "bias_blind": "The same, not weighted",
    "weight": "Mean weight sigma",
}


def inequality_table(summary: Mapping[str, Any]) -> Table:
    """The bound and what was found, by alpha."""
    rows = [
        [
            f"{row['alpha']:g}",
            f"{row['bound']:.4f}",
            f"{row['decay']:.4f} at {row['decay_at']:.1f}",
            f"{row['gated']:.4f} at {row['gated_at']:.1f}",
        ]
        for row in summary["inequality"]
    ]
    cut = f"with the gate, tau_cut {summary['tau_cut']:g}"
    return Table(["alpha", "1/(e alpha)", "exponential alone", cut], rows, "rrrr")


def values_table(bound: Bound, function: str, kind: str, measure: str) -> Table:
    """Means over seeds, a row a method, a column a tau_max; ``!`` diverged."""
    rows = []
    for method in bound.methods:
        line = bound.line(function, kind, method)
        cells = [_cell(line.get(tau), measure) for tau in bound.taus]
        rows.append([method_label(method), *cells])
    header = ["", *map(str, bound.taus)]
    return Table(header, rows, "l" + "r" * len(bound.taus))


def slopes_table(bound: Bound, kind: str, measure: Measure, digits: int = 2) -> Table:
    """Powers of tau_max, over all delays and over those from ``1 / alpha`` on."""
    rows = []
    for method in bound.methods:
        cells = []
        for function in bound.functions:
            line = bound.line(function, kind, method)
            whole, late = slope(line, measure), slope(line, measure, bound.late())
            cells += [power(whole, digits), power(late, digits)]
        rows.append([method_label(method), *cells])
    header = [""]
    for function in bound.functions:
        header += [function, f"from {1 / bound.alpha:g}"]
    return Table(header, rows, "l" + "r" * (2 * len(bound.functions)))


def rates_table(summary: Mapping[str, Any]) -> Table:
    """The rate of each method on each function, and its error without delay."""
    rows = []
    for row in summary["rows"]:
        if row["tau_max"] == 0:
            mean = _cell(row, "error")
            name = method_label(row["method"])
            rows.append([row["function"], name, f"{row['learning_rate']:g}", mean])
    header = ["function", "method", "learning rate", "error without delay"]
    return Table(header, rows, "llrr")


def _cell(row: Mapping[str, Any] | None, measure: str) -> str:
    if row is None:
        return NOTHING
    found = values(row, measure)
    mark = "!" if lost(row) else ""
    finite = bool(np.all(np.isfinite(found)))
    return f"{mark}{found.mean():.3g}" if finite else f"{mark}inf"


def _units(summary: Mapping[str, Any]) -> str:
    return (
        f"Means over {summary['seeds']} seeds. The error is the mean squared norm of "
        f"the exact gradient over the last {summary['last']:.0%} of "
        f"{summary['rounds']} rounds. ! marks a cell in which a seed ends not finite, "
        "or above where it began; it is in no slope."
    )


def _fit(bound: Bound) -> str:
    return (
        "Least squares of the logarithm of the mean over seeds, ± the jackknife's "
        f"standard error; the second column of a function has delays from 1 / alpha = "
        f"{1 / bound.alpha:g} on. The error beyond that without delay is fitted where "
        "it is more than two standard errors above zero. - is a slope with fewer than "
        "three such delays."
    )


def _setup(summary: Mapping[str, Any]) -> str:
    lines = []
    for name, facts in summary["functions"].items():
        known = facts["lipschitz"]
        constant = "no global L" if known is None else f"L = {known:g}"
        lines.append(
            f"**{name}**: {facts['formula']}; {constant}; noise of standard deviation "
            f"{facts['noise']:.3g} in each coordinate of a gradient."
        )
    lines.append(
        "One worker step of size one a round, so that what is sent is a noisy "
        "gradient; the first delays are shorter than tau_max (a ramp). Each method "
        "keeps the rate that is best without delay, by the same seeds."
    )
    return items(lines)
