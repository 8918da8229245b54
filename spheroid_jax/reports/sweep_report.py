"""The end of a sweep: ``summary.json``, ``report.md``, ``sweep.png`` and a table."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spheroid_jax.reports import replicas, sections
from spheroid_jax.reports.beside import beside, course_sentence, pairs, scale_sentence
from spheroid_jax.reports.files import write_atomic
from spheroid_jax.reports.labels import RESULTS, label, short
from spheroid_jax.reports.plots import plot_sweep
from spheroid_jax.reports.published import load_published
from spheroid_jax.reports.report import REPORT, wrap, write_summary
from spheroid_jax.reports.tables import Table, duration, nats

PICTURE = "sweep.png"


def write_sweep_report(workdir: Path, summary: Mapping[str, Any]) -> None:
    """Writes the three files of a sweep.

    Args:
      workdir: the sweep's directory.
      summary: ``format``, ``name``, ``size``, ``command``, ``seconds``, ``corpus``,
        ``x`` (the field on the axis), ``cells`` (each with ``label``, ``settings``,
        ``results``, ``summary``: the path of its own, and perhaps ``scale``) and, if
        the caller chooses them, ``series`` (results to show, by default all known ones)
        and ``log_x``.
    """
    write_summary(workdir, summary)
    plot_sweep(
        _points(summary),
        workdir / PICTURE,
        x=summary["x"],
        series=_series(summary),
        x_label=summary["x"],
        log_x=summary.get("log_x", False),
    )
    write_atomic(workdir / REPORT, render_sweep_report(summary))


def render_sweep_report(summary: Mapping[str, Any]) -> str:
    """The text of ``report.md``."""
    table, same = _table(summary)
    cells = [f"- [{c['label']}]({_report_of(c)})" for c in summary["cells"]]
    numbers = load_published()
    said = replicas.verdicts(summary, pairs(summary, numbers))
    parts = [
        f"# {sections.run_name(summary)}",
        lowest(summary),
        "\n".join(f"- {line}" for line in said),
        sections.corpus(summary),
        "## Cells",
        table.markdown(),
        "CE in nats per byte of validation text, lower is better. " + same,
        f"![Cross-entropy against {summary['x']}]({PICTURE})",
        *beside(summary, numbers),
        "A report of each cell:",
        "\n".join(cells),
        "## Run it again",
        f"```\n{summary['command']}\n```",
        f"It took {duration(summary['seconds'])} here.",
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def render_sweep(summary: Mapping[str, Any]) -> str:
    """The table and what it says, for the screen at the end of a sweep."""
    table, same = _table(summary)
    said = f"nats per byte of validation text; lower is better. {same}".strip()
    found = pairs(summary, load_published())
    told = [
        *(said, lowest(summary), *replicas.verdicts(summary, found)),
        *(course_sentence(found), scale_sentence(summary, found)),
    ]
    lines = [wrap(text) for text in told if text]
    return "\n".join([table.text(), *lines])


def lowest(summary: Mapping[str, Any]) -> str:
    """One sentence: where on the axis each series is lowest, and if that's an end."""
    x, cells = summary["x"], summary["cells"]
    if _repeats(summary):  # the axis alone doesn't tell where something is lowest
        return ""
    found = []
    for result in _series(summary):
        scores = [
            (ce, cell["settings"][x])
            for cell in cells
            if isinstance(ce := cell["results"].get(result), int | float)
            and math.isfinite(ce)
            and isinstance(cell["settings"].get(x), int | float)
        ]
        if len(scores) < 2:
            continue
        ce, at = min(scores, key=lambda score: score[0])
        ends = (min(scores, key=lambda s: s[1])[1], max(scores, key=lambda s: s[1])[1])
        edge = ", an end of the range" if at in ends and len(scores) > 2 else ""
        found.append(f"{label(result)} {nats(ce)} at {at:g}{edge}")
    return f"Lowest along {x}: {'; '.join(found)}." if found else ""


def _repeats(summary: Mapping[str, Any]) -> bool:
    """Whether several cells stand at one place of the axis."""
    places = [c["settings"][summary["x"]] for c in _placed(summary)]
    return len(set(places)) < len(places)


def _placed(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [cell for cell in summary["cells"] if summary["x"] in cell["settings"]]


def _points(summary: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Cells for the picture; where places repeat they stand side by side by name."""
    cells: Sequence[Mapping[str, Any]] = summary["cells"]
    if not _repeats(summary):
        return cells
    x = summary["x"]
    return [{**c, "settings": {x: c["label"].replace("-", "\n")}} for c in cells]


def _series(summary: Mapping[str, Any]) -> list[str]:
    known = [
        result
        for result in RESULTS
        if any(result in cell["results"] for cell in summary["cells"])
    ]
    return list(summary.get("series", known))


def _table(summary: Mapping[str, Any]) -> tuple[Table, str]:
    """A row for each cell, and a sentence on the settings that need no column."""
    cells, series = summary["cells"], _series(summary)
    names = list(
        dict.fromkeys([summary["x"], *(n for c in cells for n in c["settings"])])
    )
    columns: dict[tuple[str, ...], str] = {}
    same: dict[str, list[str]] = {}
    for name in names:
        column = tuple(_setting(cell["settings"].get(name)) for cell in cells)
        twin = columns.setdefault(column, name)
        if twin != name:
            same.setdefault(twin, []).append(name)
    rows = [
        [*settings, *(_score(cell["results"].get(r)) for r in series), _seconds(cell)]
        for cell, *settings in zip(cells, *columns, strict=True)
    ]
    shown = [name.rsplit(".", 1)[-1] for name in columns.values()]
    header = [*shown, *map(short, series), "time"]
    sentences = [f"{' and '.join(v)}: as {name}." for name, v in same.items()]
    return Table(header, rows, "r" * len(header)), " ".join(sentences)


def _setting(value: Any) -> str:
    if value is None:
        return "as configured"
    if isinstance(value, list | tuple):
        return ", ".join(map(_setting, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _score(value: Any) -> str:
    if isinstance(value, Sequence):  # one number a block
        return " ".join(map(nats, value))
    return nats(value)


def _seconds(cell: Mapping[str, Any]) -> str:
    return duration(cell["seconds"]) if "seconds" in cell else ""


def _report_of(cell: Mapping[str, Any]) -> str:
    return str(Path(cell["summary"]).with_name(REPORT).as_posix())
