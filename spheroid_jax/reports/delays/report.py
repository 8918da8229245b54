"""The end of a delay experiment: its table, its picture and its sentences.

``summary.json``, ``report.md``, and ``sweep.png`` or, where all cells share one place,
``curves.png``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spheroid_jax.reports import sections
from spheroid_jax.reports.delays import tables
from spheroid_jax.reports.delays.names import field_label
from spheroid_jax.reports.delays.plots import plot, single
from spheroid_jax.reports.delays.published import published
from spheroid_jax.reports.delays.summary import Sweep, read
from spheroid_jax.reports.delays.tuning import best_pairs, is_tuning
from spheroid_jax.reports.delays.verdicts import judge, observations, verdicts
from spheroid_jax.reports.files import write_atomic
from spheroid_jax.reports.report import COLUMNS, CURVES, REPORT, wrap, write_summary
from spheroid_jax.reports.sweep_report import PICTURE
from spheroid_jax.reports.tables import Table, duration, nats, si

UNITS = (
    "Loss in nats per byte of validation text, mean over seeds ± sample standard "
    "deviation; lower is better."
)


def picture(summary: Mapping[str, Any]) -> str:
    """The name of the picture that :func:`write_report` writes."""
    return CURVES if single(read(summary)) else PICTURE


def write_report(workdir: Path, summary: Mapping[str, Any]) -> None:
    """Writes the three files.

    Args:
      workdir: the experiment's directory.
      summary: see :mod:`spheroid_jax.reports.delays.summary`; what isn't finite
        becomes null.
    """
    write_summary(workdir, summary)
    plot(summary, workdir / picture(summary))
    write_atomic(workdir / REPORT, render_report(summary))


def render(summary: Mapping[str, Any]) -> str:
    """Tables and sentences for the screen."""
    sweep, parts = read(summary), []
    blocks = tables.blocks(sweep, plain=True)
    if not all(_fits(table.text()) for _, table in blocks):
        blocks = tables.blocks(sweep, narrow=True)
    for title, table in blocks:
        parts.append(f"{title}\n{table.text()}" if title else table.text())
    for table in _special(sweep, narrow=True):
        parts.append(table.text())
    marks = f"! above chance, ln V = {nats(sweep.chance)}"
    if any("!" in part for part in parts):
        parts.append(f"{marks}\n")
    parts.append("\n".join(wrap(line) for line in (UNITS, *verdicts(summary))))
    return "\n".join(parts)


def render_report(summary: Mapping[str, Any]) -> str:
    """The text of ``report.md``."""
    sweep, judged = read(summary), judge(summary)
    parts = [
        f"# {sections.run_name(summary)}",
        "## What it shows",
        _items(observations(summary)),
        *(["## What became of the claims", _items(judged)] if judged else []),
        "## Loss",
    ]
    for title, table in tables.blocks(sweep):
        parts += [
            f"### {title[0].upper()}{title[1:]}" if title else "",
            table.markdown(),
        ]
    parts += [_reading(sweep), *[table.markdown() for table in _special(sweep)]]
    parts += [f"![Loss of all methods]({picture(summary)})", _caption(sweep)]
    parts += ["## Set-up", _corpus(summary), _setup(summary)]
    parts += [tables.facts_table(sweep).markdown()]
    if (ages := tables.ages_table(sweep)) is not None:
        parts += [ages.markdown()]
    parts += published(sweep)
    parts += ["## Run it again", f"```\n{summary.get('command', '')}\n```"]
    parts += [f"It took {duration(summary.get('seconds') or 0.0)} here."]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _special(sweep: Sweep, *, narrow: bool = False) -> list[Table]:
    """Further tables that some experiments are about."""
    found = []
    if sweep.raw.get("name") == "seed_variance":
        found.append(tables.spread_table(sweep))
    if is_tuning(sweep):
        found += [
            tables.tuning_table(sweep, panel, narrow=narrow)
            for panel in tables.panels(sweep)
            if best_pairs(sweep, panel)
        ]
    return found


def _reading(sweep: Sweep) -> str:
    seeds = f"{sweep.seeds} seed{'s' * (sweep.seeds != 1)}"
    return (
        f"{UNITS} At most {seeds} a cell; **bold** is the lowest mean of its column. "
        f"Chance, a uniform guess, is ln V = {nats(sweep.chance)}. The means leave out "
        "seeds without a finite loss, which are counted beside them."
    )


def _caption(sweep: Sweep) -> str:
    if single(sweep):
        return "Bands are one sample standard deviation over seeds."
    return (
        f"Places along {field_label(sweep.x) or 'the axis'} are evenly spaced, and "
        "methods stand side by side. Bars are one sample standard deviation over "
        "seeds. What lies beyond the axis stands at its upper edge with its loss; the "
        "axis is stretched towards the lowest."
    )


def _corpus(summary: Mapping[str, Any]) -> str:
    """The corpus in a line, with as much as the summary tells of it."""
    corpus = summary.get("corpus") or {}
    if "description" in corpus:
        return f"Corpus: {corpus['description']}"
    whole = ("name", "source", "train_bytes", "valid_bytes", "sha256", "notes")
    if all(key in corpus for key in whole):
        return sections.corpus(summary)
    return f"Corpus: **{corpus['name']}**." if "name" in corpus else ""


def _setup(summary: Mapping[str, Any]) -> str:
    model = summary.get("model") or {}
    facts = [
        ("parameters", si(model["params"]) if "params" in model else None),
        ("layers", model.get("layers")),
        ("width", model.get("width")),
        ("workers", summary.get("workers")),
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
