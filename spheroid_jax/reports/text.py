"""The report on texts: ``summary.json``, ``report.md`` and ``text.png``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from spheroid_jax.reports import plots
from spheroid_jax.reports.files import write_atomic
from spheroid_jax.reports.report import REPORT, write_summary
from spheroid_jax.reports.tables import NOTHING, Table, duration, nats, signed

PICTURE = "text.png"
REAL, FIRST = "real continuation", "first block alone"
Summary = Mapping[str, Any]
Row = Mapping[str, Any]

_COLORS = {
    "token": "#000000",
    "speculative": "#0072b2",
    "windowed": "#d55e00",
    "sweeps": "#cc79a7",
    "one_sweep": "#009e73",
}
_MARKERS = {"expected": "o", "drawn": "s", "drafted": "^"}


def write_report(workdir: Path, summary: Summary) -> None:
    """Writes the three files."""
    write_summary(workdir, summary)
    plots.save(figure(summary), workdir / PICTURE)
    write_atomic(workdir / REPORT, render_report(summary))


def render_report(summary: Summary) -> str:
    """The text of ``report.md``."""
    settings, model, corpus = summary["settings"], summary["model"], summary["corpus"]
    samples = "\n".join(f"{k}: {v!r}" for k, v in summary["samples"].items())
    parts = [
        f"# Text by {model['config']} ({model['method']}, round {model['round']})",
        f"{settings['prompts']} prompts of {settings['prompt_bytes']} bytes from the "
        f"validation text of {corpus['name']}, {settings['length']} bytes written after"
        f" each at temperature {settings['temperature']:g}. Each method has the same "
        "prompts and seeds.",
        "## What it shows",
        "\n".join(f"- {line}" for line in verdicts(summary)),
        f"![Cross-entropy under the judge against bytes a trip]({PICTURE})",
        "## Every method",
        table(summary).markdown(),
        "CE: nats per written byte under the judge, "
        f"{summary['judge']['run']} (round {summary['judge']['round']}), which has "
        "read the prompt; ± is a standard error over prompts. CE - token: the mean of "
        "the differences on the same prompts. Same: texts equal to those of token. "
        "Distinct: share of different ones among all 4-grams. Repeated: share of a "
        "text's 4-grams that it had before. Time: seconds of computing for a byte, "
        "all blocks in one process, token = 1; a network adds its round trip to every "
        "trip.",
        "A low CE alone is no merit: text that repeats itself is cheap. It is to be "
        "read beside the real continuation and the last columns.",
        "## One prompt",
        f"```\n{samples}\n```",
        "## Run it again",
        f"```\n{summary['command']}\n```",
        f"It took {duration(summary['seconds'])} here.",
        "\n".join(f"- {k}: {v}" for k, v in summary["environment"].items()),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def table(summary: Summary, *, narrow: bool = False) -> Table:
    """A line a method; ``narrow`` fits a screen."""
    token = row_of(summary, "token")
    rows = []
    for row in summary["rows"]:
        cells = [
            row["name"],
            _with_error(nats(row["ce"]), row["ce_error"]),
            _difference(row),
            _number(row["bytes_per_trip"], ".2f"),
        ]
        more = [
            _number(row.get("same"), ".0%"),
            _number(row["distinct"], ".3f"),
            _number(row["repeated"], ".3f"),
            _number(row["longest_run"], ".1f"),
            _number(_relative_time(row, token), ".2f"),
        ]
        rows.append(cells if narrow else cells + more)
    header = ["method", "CE", "CE - token", "bytes a trip"]
    if not narrow:
        header += ["same", "distinct", "repeated", "longest run", "time"]
    return Table(header, rows, "l" + "r" * (len(header) - 1))


def verdicts(summary: Summary) -> list[str]:
    """Sentences on what was measured, whichever way it went."""
    rows = summary["rows"]
    token, real = row_of(summary, "token"), row_of(summary, REAL)
    lines = [
        f"token costs the judge {nats(token['ce'])} nats per byte, the real "
        f"continuation {nats(real['ce'])}."
    ]
    exact = [row for row in rows if row["name"].startswith("speculative")]
    for row in exact:
        if "+" in row["name"]:
            continue
        same = "the same texts" if row["same"] == 1 else f"{row['same']:.0%} same texts"
        lines.append(
            f"{row['name']} writes {same} as token, {row['bytes_per_trip']:.2f} bytes "
            "a trip."
        )
    close = [
        row
        for row in rows
        if row["name"].startswith(("windowed", "one_sweep", "sweeps"))
        and row["more"] <= 2 * (row["more_error"] or 0.0)
    ]
    if close:
        best = max(close, key=lambda row: row["bytes_per_trip"])
        lines.append(
            f"Of the methods that don't verify, {best['name']} brings most bytes a trip"
            f" ({best['bytes_per_trip']:.2f}) without a loss beyond two standard errors"
            f" ({_difference(best)})."
        )
    for row in rows:
        if row["name"].startswith("one_sweep"):
            lines.append(
                f"{row['name']} differs from token by {_difference(row)} nats, at "
                f"{row['bytes_per_trip']:.2f} bytes a trip."
            )
    alone = next((row for row in rows if row["name"] == FIRST), None)
    if alone is not None:
        lines.append(
            f"The {FIRST} differs from token by {_difference(alone)} nats. What it "
            "drafts and nothing verifies is its text: later blocks change the last "
            "byte of a window only."
        )
    return lines


def row_of(summary: Summary, name: str) -> Row:
    """The row of a method."""
    return next(row for row in summary["rows"] if row["name"] == name)


def figure(summary: Summary) -> Figure:
    """Cross-entropy under the judge against bytes a trip, with standard errors."""
    drawn = Figure(figsize=(8.5, 4.8), layout="constrained")
    axes = drawn.subplots()
    grey: dict[str, Any] = {"color": "#767676", "linewidth": 1.0, "zorder": 0}
    axes.axhline(row_of(summary, REAL)["ce"], linestyle=":", label="real text", **grey)
    axes.axhline(row_of(summary, "token")["ce"], linestyle="--", **grey)
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in summary["rows"]:
        plain = row["name"].partition("+")[0]
        name, _, fill = plain.partition(":")
        name = name.partition("=")[0]
        if row["bytes_per_trip"] and name in _COLORS and plain == row["name"]:
            lines.setdefault((name, fill), []).append(row)
    for (name, fill), found in lines.items():
        axes.errorbar(
            [row["bytes_per_trip"] for row in found],
            [row["ce"] for row in found],
            yerr=[row["ce_error"] or 0.0 for row in found],
            color=_COLORS[name],
            marker=_MARKERS.get(fill, "D"),
            linestyle="-" if len(found) > 1 else "none",
            label=f"{name} {fill}".strip(),
            capsize=2,
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("bytes a trip")
    axes.set_ylabel("nats per byte under the judge")
    plots.decorate(axes)
    axes.legend(frameon=False, fontsize=8, ncols=2)
    return drawn


def _difference(row: Row) -> str:
    if row.get("more") is None or row["name"] == "token":
        return NOTHING
    return _with_error(signed(row["more"]), row["more_error"])


def _with_error(text: str, error: float | None) -> str:
    return text if error is None or error != error else f"{text} ± {error:.3f}"


def _relative_time(row: Row, token: Row) -> float | None:
    if not row["seconds_per_byte"] or not token["seconds_per_byte"]:
        return None
    return float(row["seconds_per_byte"] / token["seconds_per_byte"])


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)
