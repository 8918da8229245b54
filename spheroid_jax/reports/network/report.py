"""The end of training over a network: ``summary.json``, ``report.md``, a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spheroid_jax.reports import sections
from spheroid_jax.reports.files import write_atomic
from spheroid_jax.reports.network import beside, tables
from spheroid_jax.reports.network.plots import caption, plot
from spheroid_jax.reports.network.summary import Sweep, read
from spheroid_jax.reports.network.verdicts import verdicts
from spheroid_jax.reports.published import load_published
from spheroid_jax.reports.report import CURVES, REPORT, wrap, write_summary
from spheroid_jax.reports.sweep_report import PICTURE
from spheroid_jax.reports.tables import duration, nats, si

UNITS = (
    "Loss in nats per byte of validation text, mean over seeds ± sample standard "
    "deviation; lower is better."
)

CAPTION = "Losses over simulated time and by network"
RECOVERY = (
    "Of the loss that `drop` has more than lockstep, how much a policy wins back: "
    "(drop - policy) / (drop - lockstep) of each seed, their mean, and the range over "
    "seeds. Drop and policy are compared at one simulated time, the earlier end of the "
    "two, as means of the points that a final loss is the mean of; lockstep stands at "
    "its own end, after as many rounds as `drop`. Weighed by age or not, a method is "
    "compared with its `drop` and its lockstep, where weights change nothing. *Nothing "
    "lost*: the seeds don't tell `drop` from lockstep; `?`: they hardly do; above "
    "100 %: better than lockstep; negative: worse than `drop`."
)
NETWORK = (
    "Simulated; means over seeds, and the same for every method. *In time* and "
    "*received* are shares of all workers in all rounds, of updates applied in their "
    "own round and of those applied at all; *timely blocks* is the share of blocks and "
    "rounds with at least one update in time. A worker that is still busy with a late "
    "update begins no other, so `gate` has fewer in time. *Busy* and *useful* are "
    "shares of the time that workers were there: at work, and at work on what was "
    "applied. Bytes are those of the coordinator over the whole run."
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
        tables.recovery_table(sweep, narrow=True),
    ]
    parts = [table.text() for table in shown if table is not None]
    marks = [tables.FOOTNOTE] if tables.borrows(sweep) else []
    if "!" in parts[0]:
        marks.append(f"! above chance, ln V = {nats(sweep.chance)}")
    numbers = load_published()
    said = [UNITS, *marks, *verdicts(summary), *beside.sentences(sweep, numbers)]
    return "\n".join([*parts, *map(wrap, said)]) + "\n"


def render_report(summary: Mapping[str, Any]) -> str:
    """The text of ``report.md``."""
    sweep = read(summary)
    said = verdicts(summary)
    parts = [
        f"# {sections.run_name(summary)}",
        "## What it shows",
        _items(said),
        "## Loss",
        tables.loss_table(sweep).markdown(),
        _reading(sweep),
        "CE_ensemble, of all blocks met on the chain:",
        tables.loss_table(sweep, of_ensemble=True).markdown(),
        f"![{CAPTION}]({picture(summary)})",
        caption(sweep),
        *_recovery(sweep),
        *_best(sweep),
        "## The network",
        tables.network_table(sweep).markdown(),
        NETWORK,
        *_ages(sweep),
        *beside.section(sweep, load_published()),
        "## Set-up",
        _corpus(summary),
        _setup(summary),
        tables.facts_table(sweep).markdown(),
        "## Run it again",
        f"```\n{summary.get('command', '')}\n```",
        f"It took {duration(summary.get('seconds') or 0.0)} here.",
        _items([f"{k}: {v}" for k, v in summary.get("environment", {}).items()]),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _recovery(sweep: Sweep) -> list[str]:
    shares, details = tables.recovery_table(sweep), tables.recovery_details(sweep)
    if shares is None or details is None:
        return []
    return [
        "## What is won back",
        RECOVERY,
        shares.markdown(),
        "The losses behind it; differences are means of those by seed ± standard "
        "error:",
        details.markdown(),
    ]


def _best(sweep: Sweep) -> list[str]:
    table = tables.best_table(sweep)
    if table is None:
        return []
    return [
        "## What to use when",
        table.markdown(),
        "At the earliest end, in simulated seconds, of all runs of a network under the "
        "fixed deadline. Seed noise is the sample standard deviation over seeds of the "
        "difference; told apart are two whose 95 % interval by Student's t leaves out "
        "zero.",
    ]


def _ages(sweep: Sweep) -> list[str]:
    table = tables.ages_table(sweep)
    return [] if table is None else ["Ages of what was received:", table.markdown()]


def _corpus(summary: Mapping[str, Any]) -> str:
    corpus = summary.get("corpus") or {}
    whole = ("name", "source", "train_bytes", "valid_bytes", "sha256", "notes")
    if all(key in corpus for key in whole):
        return sections.corpus(summary)
    return f"Corpus: **{corpus['name']}**." if "name" in corpus else ""


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
        ("parameter", si(model["params"]) if "params" in model else None),
        ("block", summary.get("blocks")),
        ("layer a block", model.get("layers")),
        ("worker a block", summary.get("workers")),
        ("local step a round", summary.get("local_steps")),
        ("round", summary.get("rounds")),
        ("seed", summary.get("seeds")),
    ]
    known = [f"width {model['width']}"] if "width" in model else []
    known += [_count(value, name) for name, value in facts if value is not None]
    text = ", ".join(known)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _count(value: Any, name: str) -> str:
    """Such as ``3 layers a block``."""
    noun, *rest = name.split(" a ")
    return " a ".join([f"{value} {noun}{'s' * (value != 1)}", *rest])


def _items(lines: Sequence[object]) -> str:
    return "\n".join(f"- {line}" for line in lines)
