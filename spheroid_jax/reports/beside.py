"""The paper's rows beside the cells of a sweep, and how far their scales are apart."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spheroid_jax.fields import assignments
from spheroid_jax.reports.published import Entry, Published
from spheroid_jax.reports.tables import NOTHING, Table, finite, nats, si

Summary = Mapping[str, Any]
Cell = Mapping[str, Any]

UNPUBLISHED = "not published"


class Pair(NamedTuple):
    """A published row and the cell of ours that has its settings."""

    entry: Entry
    cell: Cell

    @property
    def ours(self) -> float | None:
        """CE_chain of our cell."""
        value: float | None = self.cell["results"].get("ce_chain")
        return value


def pairs(summary: Summary, numbers: Published | None) -> list[Pair]:
    """Published rows with each cell that fits them, in the paper's order."""
    entries = numbers.of(summary["name"]) if numbers else {}
    return [
        Pair(entry, cell)
        for settings, entry in entries.items()
        for cell in summary["cells"]
        if _fits(settings, cell["settings"])
    ]


def _fits(text: str, settings: Mapping[str, Any]) -> bool:
    """Whether a cell has the overrides in ``text``, or some setting of that name."""
    if "=" not in text:
        return any(_same(value, text) for value in settings.values())
    return all(
        field in settings and _same(settings[field], value)
        for field, value in assignments(text)
    )


def _same(setting: Any, text: str) -> bool:
    """Whether a setting is what ``text`` says; 1 is 1.0."""
    if type(setting) in (int, float):
        with contextlib.suppress(ValueError):
            return bool(setting == float(text))
    return str(setting) == text


def beside(summary: Summary, numbers: Published | None) -> list[str]:
    """The section of ``report.md``; empty where the paper has no such row.

    Args:
      summary: of a sweep; cells without a ``scale`` leave ours open.
      numbers: the paper's figures, or None where they aren't at hand.
    """
    found = pairs(summary, numbers)
    if numbers is None or not found:
        return []
    used = {p.entry.tag for p in found}
    tags = "; ".join(f"{t}: {what}" for t, what in numbers.tags.items() if t in used)
    return [
        "## Beside the paper",
        rows_table(found).markdown(),
        scale_table(summary, found).markdown(),
        scale_sentence(summary, found),
        course_sentence(found),
        f"Source: {numbers.source}. Tags: {tags}.",
    ]


def rows_table(found: Sequence[Pair]) -> Table:
    """A line for each published row and each of our cells that fits it."""
    rows = [
        [p.entry.what, p.entry.value, p.entry.tag, p.cell["label"], nats(p.ours)]
        for p in found
    ]
    header = ["published row", "published", "tag", "our cell", "our CE_chain"]
    return Table(header, rows, "llllr")


def scale_table(summary: Summary, found: Sequence[Pair]) -> Table:
    """Width, rounds, bytes, corpus and hardware of both."""
    ours = _ours(summary, [p.cell for p in found])
    rows = [
        [name, _theirs(found, key), ours.get(key, NOTHING)]
        for key, name in (
            ("width", "width d"),
            ("rounds", "rounds"),
            ("bytes", "bytes seen in training"),
            ("corpus", "corpus"),
            ("hardware", "hardware"),
        )
    ]
    return Table(["scale", "the paper", "this sweep"], rows, "lll")


def scale_sentence(summary: Summary, found: Sequence[Pair]) -> str:
    """The difference in scale in one sentence; empty where there is no pair."""
    if not found:
        return ""
    ours = _ours(summary, [p.cell for p in found])
    parts = [
        f"{name} {ours[key]} here, {_theirs(found, key)} there"
        for key, name in (
            *(("width", "d"), ("rounds", "rounds"), ("bytes", "bytes seen")),
            ("corpus", "corpus"),
        )
        if key in ours
    ]
    return (
        f"Not the same scale: {'; '.join(parts)}. Compare differences within a column, "
        "never numbers across."
    )


def course_sentence(found: Sequence[Pair]) -> str:
    """Whether CE moves the same way from the first published row to the last.

    Empty unless every published row has one cell of ours, and there are at least two.
    """
    if len(found) < 2 or len({p.entry.what for p in found}) < len(found):
        return ""
    first, last = found[0], found[-1]
    theirs = [p.entry.numbers.get("CE") for p in (first, last)]
    ours = [p.ours for p in (first, last)]
    if not all(map(finite, [*theirs, *ours])):
        return ""
    changes = [_change(*theirs), _change(*ours)]
    same = (theirs[1] > theirs[0]) == (ours[1] > ours[0])  # type: ignore[operator]
    how = "the same way" if same else "NOT the same way"
    return (
        f"From {first.cell['label']} to {last.cell['label']} the published CE "
        f"{changes[0]}, our CE_chain {changes[1]}: {how}."
    )


def _change(before: float | None, after: float | None) -> str:
    assert before is not None
    assert after is not None
    word = "rises" if after > before else "falls"
    return f"{word} by {nats(abs(after - before))} ({nats(before)} to {nats(after)})"


def _theirs(found: Sequence[Pair], key: str) -> str:
    """What is public; several rows of several sizes are told one by one."""
    known = [p.entry.scale.get(key, UNPUBLISHED) for p in found]
    return " / ".join(dict.fromkeys(known))


def _ours(summary: Summary, cells: Sequence[Cell]) -> dict[str, str]:
    corpus = summary["corpus"]
    size = si(corpus["train_bytes"], "B")
    ours = {"corpus": f"{corpus['name']}, {size} to train on"}
    if hardware := summary.get("environment", {}).get("device"):
        ours["hardware"] = str(hardware)
    scales = [cell["scale"] for cell in cells if "scale" in cell]
    if not scales:
        return ours
    rounds = dict.fromkeys(f"{s['rounds']} x {s['local_steps']} steps" for s in scales)
    return {
        "width": " / ".join(dict.fromkeys(str(s["width"]) for s in scales)),
        "rounds": " / ".join(rounds),
        "bytes": " / ".join(dict.fromkeys(si(s["bytes_seen"], "B") for s in scales)),
        **ours,
    }
