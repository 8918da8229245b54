"""What a coordinator leaves of its run: ``summary.json``, ``report.md``, a picture."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spheroid_jax.reports import sections
from spheroid_jax.reports.exchange import facts, tables
from spheroid_jax.reports.exchange.coordinated_plot import CAPTION, plot_coordinated
from spheroid_jax.reports.exchange.report import PICTURE
from spheroid_jax.reports.files import write_atomic
from spheroid_jax.reports.report import REPORT, write_summary
from spheroid_jax.reports.tables import NOTHING, Table, duration, finite, nats, si

Summary = Mapping[str, Any]
Records = Sequence[Mapping[str, Any]]

ROWS = 30  # of the table of rounds, at most
ROUNDS = (
    "A row sums its rounds up, and has the last CE measured in them, in nats per byte "
    "of validation text. *Seconds*: from the opening of a round to when its checkpoint "
    "was on disk. *In time*: of the updates that there were slots for. *Up* and "
    "*down*: bytes from and to all workers. *Loss*: of the workers' local steps."
)


def write_coordinated(workdir: Path, summary: Summary, records: Records) -> None:
    """Writes the three files; the summary first, which needs no drawing.

    Args:
      workdir: the run's directory.
      summary: as :func:`spheroid_jax.runs.exchange.ending.summary_of` makes it.
      records: the coordinator's metrics, a record a round, oldest first.

    Raises:
      OSError: a file can't be written.
    """
    write_summary(workdir, summary)
    write_atomic(workdir / REPORT, render_coordinated(summary, records))
    plot_coordinated(summary, records, workdir / PICTURE)


def render_coordinated(summary: Summary, records: Records) -> str:
    """The text of ``report.md``; parts without figures are left out."""
    about = [] if summary["corpus"] is None else [sections.corpus(summary)]
    parts = [
        f"# {sections.run_name(summary)}: a coordinator and its workers",
        state_sentence(summary),
        *about,
        "## What it shows",
        "\n".join(f"- {line}" for line in sentences(summary, records)),
        f"![{CAPTION}]({PICTURE})",
        *_rounds(records),
        *_workers(summary),
        *_again(summary),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def state_sentence(summary: Summary) -> str:
    """Whether it is over, and if not, how far it is."""
    done, rounds = summary["rounds_done"], summary["rounds"]
    if summary["state"] == "finished":
        return f"Finished: all {rounds} rounds are done."
    return (
        f"**Unfinished**: {done} of {rounds} rounds are done. The figures are those of "
        "the rounds so far; the same command goes on with the run."
    )


def sentences(summary: Summary, records: Records) -> list[str]:
    """What the figures say, sentence by sentence."""
    if not records:
        return ["No round was closed yet."]
    return [
        ce_sentence(summary),
        participation_sentence(records),
        time_sentence(summary, records),
        bytes_sentence(summary, records),
    ]


def ce_sentence(summary: Summary) -> str:
    """From where to where, and what a model that knows little would have."""
    points = [p for p in summary["ce"] if finite(p.get("ce_chain"))]
    if not points:
        return "No round has a CE that is a number."
    first, last = points[0], points[-1]
    lowest = min(points, key=lambda p: p["ce_chain"])
    text = f"CE_chain is {nats(last['ce_chain'])} nats/byte after round {last['round']}"
    if first is not last:
        text += f", {nats(first['ce_chain'])} after round {first['round']}"
    if lowest is not last:
        text += f"; the lowest was {nats(lowest['ce_chain'])} (round {lowest['round']})"
    if finite(last.get("ce_ensemble")):
        text += f"; CE_ensemble ends at {nats(last['ce_ensemble'])}"
    known = [f"{math.log(256):.3f} to a model that knows nothing"]
    if summary["corpus"] is not None:
        for order, entropy in list(enumerate(summary["corpus"]["entropies"]))[1:2]:
            known.append(f"{entropy:.3f} to one that sees {order} byte back")
    return f"{text}. A byte costs {', '.join(known)}."


def participation_sentence(records: Records) -> str:
    """Who was heard, of those that there were slots for."""
    timely, late, expected = facts.participation({"rounds_log": records})
    share = f" ({timely / expected:.0%})" if expected else ""
    # A place that nobody held counts too: nothing says that its update was late.
    text = f"Of {expected} places in the rounds {timely} had an update in time{share}"
    if late:
        text += f", {late} more counted later"
    empty = sum(not r["heard"] for r in records)
    if empty:
        text += f"; {empty} of {len(records)} rounds closed without any"
    return f"{text}."


def time_sentence(summary: Summary, records: Records) -> str:
    """How long it took, and what of it was the coordinator's own work."""
    rounds = sum(r["round_seconds"] for r in records)
    closing = sum(r["closing_seconds"] for r in records)
    share = f", {closing / rounds:.0%} of that for closing them" if rounds else ""
    return (
        f"Of the {duration(summary['seconds'])} that the coordinator was up, the "
        f"rounds took {duration(rounds)}, {rounds / len(records):.1f} s each{share}."
    )


def bytes_sentence(summary: Summary, records: Records) -> str:
    """What was moved, and as what."""
    up, down = summary["bytes_up"], summary["bytes_down"]
    return (
        f"Moved: {si(up + down, 'B')}, {si((up + down) / len(records), 'B')} a round: "
        f"{si(down, 'B')} to the workers as {summary['broadcast']} and {si(up, 'B')} "
        f"back as {summary['encoding']}. HTTP's and TCP's own headers aren't counted."
    )


def rounds_table(records: Records) -> Table:
    """At most ``ROWS`` lines, each of as many rounds as any other but the last."""
    header = [
        *("rounds", "seconds", "in time", "late", "up", "down", "loss"),
        *("CE_chain", "CE_ensemble"),
    ]
    rows = [_row(chunk) for chunk in facts.chunks(records, ROWS)]
    return Table(header, rows, "r" * len(header))


def _row(chunk: Records) -> list[str]:
    first, last = chunk[0]["round"], chunk[-1]["round"]
    timely, late, expected = facts.participation({"rounds_log": chunk})
    losses = [r["train_loss"] for r in chunk if finite(r["train_loss"])]
    return [
        str(last) if first == last else f"{first}-{last}",
        f"{sum(r['round_seconds'] for r in chunk):.1f}",
        f"{timely}/{expected}",
        str(late),
        si(sum(r["bytes_up"] for r in chunk), "B"),
        si(sum(r["bytes_down"] for r in chunk), "B"),
        f"{sum(losses) / len(losses):.3f}" if losses else NOTHING,
        *(nats(_last(chunk, ce)) for ce in ("ce_chain", "ce_ensemble")),
    ]


def _last(chunk: Records, ce: str) -> float | None:
    found = [r[ce] for r in chunk if ce in r]
    return found[-1] if found else None


def _rounds(records: Records) -> list[str]:
    if not records:
        return []
    return ["## Rounds", rounds_table(records).markdown(), ROUNDS]


def _workers(summary: Summary) -> list[str]:
    if not summary["members"]:
        return []
    return ["## Workers", tables.workers_table(summary).markdown()]


def _again(summary: Summary) -> list[str]:
    command = summary["command"]
    return [
        "## Run it again",
        f"```\n{command}\n```" if command else "",
        "In the same directory that goes on with the run, and in an empty one it "
        "begins anew. Every round's figures are in `metrics.jsonl`, what each worker "
        "did is in the ledger under `exchange/`, and this page is drawn from both, at "
        "any time, by:",
        "```\npython -m experiments.coordinator --workdir=DIR --report=only\n```",
        "\n".join(f"- {k}: {v}" for k, v in summary["environment"].items()),
    ]
