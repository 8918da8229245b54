"""The paper's CE by participation beside ours, with the difference in scale."""

import math
from collections.abc import Mapping
from typing import Any

from spheroid_jax.reports import beside
from spheroid_jax.reports.beside import Pair
from spheroid_jax.reports.network.summary import (
    DEADLINE,
    DROP,
    LOCKSTEP,
    Setting,
    Sweep,
    mean_of,
)
from spheroid_jax.reports.published import Published
from spheroid_jax.reports.tables import nats

PAPERS_METHOD = "mean"


def pairs(sweep: Sweep, numbers: Published | None) -> list[Pair]:
    """Published rows with our cell of the mean and ``drop``.

    A regime stands beside the preset of its name; of a sweep over deadlines it is the
    one with the nearest participation.
    """
    entries = numbers.of(str(sweep.raw.get("name", ""))) if numbers else {}
    shares = measured(sweep)
    found = []
    for key, entry in entries.items():
        setting: Setting | None
        if sweep.x == DEADLINE:
            setting = min(
                shares, key=lambda s: abs(shares[s] - float(key)), default=None
            )
        else:
            setting = next((s for s in shares if s.preset == key), None)
        if setting is not None:
            found.append(Pair(entry, _cell(sweep, setting, shares[setting])))
    return found


def measured(sweep: Sweep) -> dict[Setting, float]:
    """Shares in time of what the mean with ``drop`` ran on, lockstep left out."""
    shares = {
        setting: mean_of(sweep.cells[PAPERS_METHOD, setting], "participation")
        for setting in sweep.settings
        if setting.late == DROP
        and setting.preset != LOCKSTEP
        and not setting.has_quorum
        and (PAPERS_METHOD, setting) in sweep.cells
    }
    return {s: share for s, share in shares.items() if math.isfinite(share)}


def section(sweep: Sweep, numbers: Published | None) -> list[str]:
    """The section of ``report.md``; empty where the paper has no such row."""
    found = pairs(sweep, numbers)
    if numbers is None or not found:
        return []
    tags = {p.entry.tag for p in found}
    meaning = "; ".join(f"{t}: {m}" for t, m in numbers.tags.items() if t in tags)
    return [
        "## Beside the paper",
        beside.rows_table(found).markdown(),
        beside.scale_table(sweep.raw, found).markdown(),
        scale(sweep, found),
        beside.course_sentence(found),
        f"Source: {numbers.source}. Tags: {meaning}.",
    ]


def sentences(sweep: Sweep, numbers: Published | None) -> list[str]:
    """Both rows and the course for the screen; empty where the paper has no row."""
    found = pairs(sweep, numbers)
    if not found:
        return []
    rows = [
        f"{p.entry.numbers['CE']:g} there for {p.entry.what}, {nats(p.ours)} here for "
        f"{p.cell['label']}"
        for p in found
        if "CE" in p.entry.numbers
    ]
    course = beside.course_sentence(found)
    scales = beside.scale_sentence(sweep.raw, found)
    return [f"The paper's CE: {'; '.join(rows)}.", *filter(None, [course, scales])]


def scale(sweep: Sweep, found: list[Pair]) -> str:
    """The difference in scale, and what the paper does not tell."""
    raw = sweep.raw
    model = raw.get("model") or {}
    ours = (
        f"{raw.get('blocks', '?')} blocks of {model.get('layers', '?')} layers with "
        f"{raw.get('workers', '?')} workers a block"
    )
    return (
        f"{beside.scale_sentence(raw, found)} Ours are {ours}; the paper prints "
        "neither layers, workers, deadline nor its workers' profiles for these rows, "
        "and ours are set such that participation is about the same."
    )


def _cell(sweep: Sweep, setting: Setting, share: float) -> Mapping[str, Any]:
    cell, raw = sweep.cells[PAPERS_METHOD, setting], sweep.raw
    corpus, data = raw.get("corpus") or {}, raw.get("config", {}).get("data", {})
    made: dict[str, Any] = {
        "label": f"{setting.label}, mean ({100 * share:.0f} % in time)",
        "results": {"ce_chain": cell.mean if math.isfinite(cell.mean) else None},
    }
    if {"batch", "seq_len"} <= data.keys() and "train_bytes" in corpus:
        windows = raw["blocks"] * raw["workers"] * data["batch"] * raw["local_steps"]
        rounds = sweep.rounds(setting)
        made["scale"] = {
            "width": raw["model"]["width"],
            "rounds": rounds,
            "local_steps": raw["local_steps"],
            "bytes_seen": rounds * windows * data["seq_len"],
        }
    return made
