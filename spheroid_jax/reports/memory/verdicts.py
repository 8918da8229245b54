"""Sentences made from the numbers of a run of kind ``memory``, and nothing else."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spheroid_jax.memory import BYTES_PER_PARAMETER, GIB
from spheroid_jax.reports.delays.names import listing
from spheroid_jax.reports.published import Published
from spheroid_jax.reports.tables import gib, si

Row = Mapping[str, Any]
Summary = Mapping[str, Any]

PUBLISHED_WIDTH = 512  # of the model whose state the paper states
# Weights and two moments are given to a step; the gradient is made inside.
_GIVEN = 12


def verdicts(summary: Summary, numbers: Published | None) -> list[str]:
    """What the tables say, sentence by sentence.

    Args:
      summary: as :func:`spheroid_jax.runs.memory.experiment.run_memory` makes it.
      numbers: the paper's figures, or None where they aren't at hand.
    """
    return [
        state_sentence(summary),
        *published_sentences(summary, numbers),
        *step_sentences(summary),
        coverage_sentence(summary),
    ]


def compiled(row: Row) -> bool:
    """Whether both halves of a row were compiled."""
    return bool(row["worker"]["compiled"]) and bool(row["full"]["compiled"])


def state_ratio(row: Row) -> float:
    """Parameters of the full stack over those of a worker."""
    return float(row["full"]["params"] / row["worker"]["params"])


def step_ratio(row: Row) -> float:
    """Bytes of the full stack's compiled step over those of a worker's."""
    return float(row["full"]["compiled"]["total"] / row["worker"]["compiled"]["total"])


def state_sentence(summary: Summary) -> str:
    """By how much a worker's AdamW state is smaller."""
    rows, blocks = summary["rows"], summary["config"]["model"]["blocks"]
    ratios = [state_ratio(row) for row in rows]
    shares = [row["interface"]["params"] / row["worker"]["params"] for row in rows]
    last = rows[-1]
    return (
        f"AdamW's state of the full stack is {_range(ratios, '.2f')} times that of a "
        f"worker, B = {blocks}, at d = {_range([r['width'] for r in rows], 'd')}; the "
        f"interface, which every worker holds, is {_range(shares, '.1%')} of a "
        f"worker's. At d = {last['width']} that is {gib(last['worker']['adamw_gib'])} "
        f"GiB of {gib(last['full']['adamw_gib'])} GiB."
    )


def published_sentences(summary: Summary, numbers: Published | None) -> list[str]:
    """Ours against the paper's two figures, where the model is the paper's."""
    row, cells = published_row(summary), numbers.of("memory") if numbers else {}
    if row is None or not {"worker", "full"} <= cells.keys():
        return []
    theirs, claimed = (cells[c].numbers["memory"] for c in ("worker", "full"))
    ours, full = row["worker"]["adamw_gib"], row["full"]["adamw_gib"]
    params = claimed * GIB / BYTES_PER_PARAMETER
    width = width_of(summary, params)
    share = row["worker"]["params"] / row["full"]["params"]
    return [
        f"At d = {row['width']} a worker's state is {gib(ours)} GiB, "
        f"{ours / theirs - 1:+.1%} against the published {theirs:g}.",
        f"The published {claimed:g} GiB of the full stack can't be that model's: ours "
        f"is {gib(full)} GiB at the same width, {claimed / full:.0f} times less. At 16 "
        f"bytes a parameter it is {si(params)} parameters, which "
        f"{row['full']['layers']} layers have at d = {width:.0f}, and a worker of "
        f"such a stack would hold about {share * claimed:.0f} GiB. The published "
        f"ratio of {claimed / theirs:.0f} compares two models.",
    ]


def published_row(summary: Summary) -> Row | None:
    """The row of the paper's model, if there is one."""
    model = summary["config"]["model"]
    if (model["blocks"], model["layers"]) != (3, 4):
        return None
    rows = [row for row in summary["rows"] if row["width"] == PUBLISHED_WIDTH]
    return rows[0] if rows else None


def width_of(summary: Summary, params: float) -> float:
    """The width at which the full stack has so many parameters."""
    a, b, c = summary["full_params_of_width"]
    return float((-b + math.sqrt(b * b - 4 * a * (c - params))) / (2 * a))


def step_sentences(summary: Summary) -> list[str]:
    """What compiling adds to the arithmetic."""
    rows = [row for row in summary["rows"] if compiled(row)]
    if not rows:
        return []
    halves = [row[who] for row in rows for who in ("worker", "full")]
    given = [
        half["compiled"]["arguments"] / (_GIVEN * half["params"]) for half in halves
    ]
    ratios = [step_ratio(row) for row in rows]
    ends = rows if len(rows) < 2 else (rows[0], rows[-1])
    shares = [f"{_state_share(row):.0%} at d = {row['width']}" for row in ends]
    batch = summary["config"]["data"]["batch"]
    return [
        f"Compiled steps are given {_range(given, '.3f')} times the {_GIVEN} bytes a "
        "parameter of weights and moments, windows included; the gradient, the other "
        "4, is among the temporaries.",
        f"A whole step, with the activations of {batch} windows, takes "
        f"{_range(ratios, '.2f')} times as much in the full stack as in a worker. Of a "
        f"worker's step AdamW's state is {listing(shares)}: the state alone says what "
        "a worker must hold only where the model is wide or the batch small.",
    ]


def coverage_sentence(summary: Summary) -> str:
    """Which widths were compiled, which not, and why."""
    done = [str(row["width"]) for row in summary["rows"] if compiled(row)]
    reasons: dict[str, list[str]] = {}
    for row in summary["rows"]:
        if not compiled(row):
            why = row["worker"]["why"] or row["full"]["why"]
            reasons.setdefault(why, []).append(str(row["width"]))
    parts = [f"compiled: d = {listing(done)}"] if done else ["no width was compiled"]
    parts += [
        f"arithmetic only: d = {listing(widths)} ({why})"
        for why, widths in reasons.items()
    ]
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _state_share(row: Row) -> float:
    half = row["worker"]
    return float(half["params"] * BYTES_PER_PARAMETER / half["compiled"]["total"])


def _range(values: Sequence[float], form: str) -> str:
    """The smallest and the largest, or the one there is."""
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"
