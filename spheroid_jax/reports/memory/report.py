"""The end of a run of kind ``memory``: its tables, its picture and its sentences.

``summary.json``, ``report.md`` and ``memory.png``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spheroid_jax.memory import GIB
from spheroid_jax.reports import sections
from spheroid_jax.reports.files import write_atomic
from spheroid_jax.reports.memory.plot import plot_memory
from spheroid_jax.reports.memory.verdicts import (
    Row,
    compiled,
    published_row,
    state_ratio,
    step_ratio,
    verdicts,
)
from spheroid_jax.reports.published import Published, load_published
from spheroid_jax.reports.report import REPORT, wrap, write_summary
from spheroid_jax.reports.tables import NOTHING, Table, duration, gib, si

PICTURE = "memory.png"
Summary = Mapping[str, Any]


def write_report(workdir: Path, summary: Summary) -> None:
    """Writes the three files.

    Args:
      workdir: the run's directory.
      summary: as :func:`spheroid_jax.runs.memory.experiment.run_memory` makes it.
    """
    numbers = load_published()
    write_summary(workdir, summary)
    plot_memory(summary, workdir / PICTURE, numbers)
    write_atomic(workdir / REPORT, render_report(summary, numbers))


def render(summary: Summary) -> str:
    """Tables and sentences for the screen."""
    numbers = load_published()
    parts = [
        f"GiB of AdamW's state and of a compiled step\n{short_table(summary).text()}"
    ]
    if published := published_table(summary, numbers):
        parts.append(f"Published and ours\n{published.text()}")
    parts.append("\n".join(map(wrap, verdicts(summary, numbers))))
    return "\n".join(parts)


def render_report(summary: Summary, numbers: Published | None) -> str:
    """The text of ``report.md``."""
    parts = [
        f"# {sections.run_name(summary)}",
        "## What it shows",
        "\n".join(f"- {line}" for line in verdicts(summary, numbers)),
        f"![GiB against the width, and the full stack over one worker]({PICTURE})",
        "## Active AdamW state",
        state_table(summary).markdown(),
        "16 bytes a parameter in float32: itself, its gradient and two moments. "
        "Counted from shapes; activations are not in it.",
        "## Compiled steps",
        _setup(summary),
        step_table(summary).markdown(),
        *_published(summary, numbers),
        "## Run it again",
        f"```\n{summary['command']}\n```",
        f"It took {duration(summary['seconds'])} here.",
        "\n".join(f"- {k}: {v}" for k, v in summary["environment"].items()),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def short_table(summary: Summary) -> Table:
    """State and step of both, side by side: what fits a screen."""
    rows = [
        [
            str(row["width"]),
            gib(row["worker"]["adamw_gib"]),
            gib(row["full"]["adamw_gib"]),
            f"{state_ratio(row):.2f}",
            *_steps(row),
        ]
        for row in summary["rows"]
    ]
    header = ["d", "worker", "full", "ratio", "worker step", "full step", "ratio"]
    return Table(header, rows, "r" * len(header))


def state_table(summary: Summary) -> Table:
    """Parameters and AdamW bytes by width."""
    rows = [
        [
            str(row["width"]),
            si(row["worker"]["params"]),
            gib(row["worker"]["adamw_gib"]),
            si(row["full"]["params"]),
            gib(row["full"]["adamw_gib"]),
            f"{state_ratio(row):.2f}",
            "compiled" if compiled(row) else "arithmetic only",
        ]
        for row in summary["rows"]
    ]
    header = [
        *("width d", "worker, params", "worker, GiB", "full stack, params"),
        *("full stack, GiB", "full / worker", "this row is"),
    ]
    return Table(header, rows, "rrrrrrl")


def step_table(summary: Summary) -> Table:
    """Bytes of the compiled programs, two lines a width."""
    rows = []
    for row in summary["rows"]:
        ratio = f"{step_ratio(row):.2f}" if compiled(row) else NOTHING
        for who, name in (("worker", "one worker"), ("full", "full stack")):
            bytes_ = row[who]["compiled"] or {}
            cells = [
                gib(bytes_[part] / GIB) if part in bytes_ else NOTHING
                for part in (
                    *("arguments", "outputs", "aliased", "temporaries", "total"),
                )
            ]
            last = ratio if who == "full" else ""
            rows.append([str(row["width"]), name, *cells, last])
    header = [
        *("width d", "who", "arguments", "outputs", "aliased", "temporaries"),
        *("held at once", "full / worker"),
    ]
    return Table(header, rows, "rlrrrrrr")


def published_table(summary: Summary, numbers: Published | None) -> Table | None:
    """The paper's figures and ours; None without them or without its model."""
    row = published_row(summary)
    if numbers is None or row is None:
        return None
    cells = numbers.of("memory")
    rows = [
        [
            entry.what,
            f"{entry.numbers['memory']:g}",
            entry.tag,
            gib(row[who]["adamw_gib"]),
        ]
        for who, entry in cells.items()
    ]
    return Table(["what", "published, GiB", "tag", "ours, GiB"], rows, "lrlr")


def _published(summary: Summary, numbers: Published | None) -> list[str]:
    title = "## Published numbers"
    if numbers is None:
        return [title, "Not available: third_party/ of the source tree isn't here."]
    table = published_table(summary, numbers)
    if table is None:
        return [title, "Of another model: B = 3, L = 4 at d = 512 isn't in this run."]
    tags = "; ".join(f"{tag}: {meaning}" for tag, meaning in numbers.tags.items())
    return [
        title,
        table.markdown(),
        "The same model as far as it is known: B = 3, L = 4, d = 512, an MLP of 4 d. "
        "The interface is ours, and so are batch and length, which aren't published; "
        "the published memory is a state, not a step's.",
        f"Source: {numbers.source}. Tags: {tags}.",
    ]


def _setup(summary: Summary) -> str:
    config = summary["config"]
    model, data = config["model"], config["data"]
    steps, backend = config["train"]["local_steps"], summary["environment"]["backend"]
    return (
        f"GiB that XLA assigned on one {backend} device to a local phase of {steps} "
        f"AdamW steps on {data['batch']} windows of {data['seq_len']} bytes, the same "
        "for both: one worker (its block, the interface, the denoising objective) and "
        f"the end-to-end model of {model['blocks'] * model['layers']} layers. Compute "
        f"in {model['compute_dtype']}, rematerialisation `{model['remat']}`. Compiled "
        "from shapes, so that nothing is allocated. Parameters and moments are donated:"
        " outputs take their place (aliased). Held at once: arguments + outputs - "
        "aliased + temporaries. Other backends fuse otherwise, attention above all, "
        "and need fewer temporaries."
    )


def _steps(row: Row) -> list[str]:
    if not compiled(row):
        return [NOTHING] * 3
    held = [gib(row[who]["compiled"]["total"] / GIB) for who in ("worker", "full")]
    return [*held, f"{step_ratio(row):.2f}"]
