"""Sentences made from the numbers of a comparison of encodings, and nothing else."""

from collections.abc import Sequence

from spheroid_jax.reports.delays.names import listing
from spheroid_jax.reports.encodings.cells import (
    REFERENCE,
    Cell,
    Summary,
    cells,
    seed_spread,
    signed,
)
from spheroid_jax.reports.sections import LEVEL
from spheroid_jax.reports.tables import finite, nats, si

TARGET = 8.0  # times fewer bytes than plain float32


def verdicts(summary: Summary) -> list[str]:
    """What the table says, sentence by sentence."""
    found = cells(summary)
    return [
        target_sentence(found),
        *loss_sentences(found),
        traffic_sentence(found),
        "In one process and without a network: each update is encoded, compressed, "
        "read back and aggregated as the coordinator does it; sending changes nothing. "
        "zstd loses nothing either, so each was trained once and measured twice.",
    ]


def target_sentence(found: Sequence[Cell]) -> str:
    """Whether updates can be eight times smaller at no loss that seeds would show."""
    spread = seed_spread(found)
    small = [c for c in found if c.smaller >= TARGET and not c.both]
    if not small:
        best = max(found, key=lambda cell: cell.smaller)
        return (
            f"Target NOT met: no encoding is {TARGET:g} times smaller than float32; "
            f"the smallest is {best.name}, {best.smaller:.2f} times."
        )
    told = [
        f"{c.name} is {c.smaller:.2f} times smaller, CE_chain {_change(c)}"
        for c in small
    ]
    text = f"{TARGET:g} times fewer bytes than float32: {listing(told)}"
    if spread is None:
        return f"{text}. One seed has no spread to hold that against."
    met = [cell for cell in small if abs(cell.difference) <= spread]
    what = "met" if met else "NOT met"
    return (
        f"{text}; the seeds' own spread (sample standard deviation of float32 over "
        f"{len(found[0].ce)} seeds) is {nats(spread)}. Target {what}: a difference "
        f"{'within' if met else 'beyond'} the seed spread."
    )


def loss_sentences(found: Sequence[Cell]) -> list[str]:
    """Each encoding against float32, seed by seed."""
    spread = seed_spread(found)
    lines = []
    for cell in found:
        if cell.encoding == REFERENCE or (cell.zstd and not cell.both):
            continue
        pairs = ", ".join(signed(d) for d in cell.differences)
        where = ""
        if spread is not None and finite(cell.difference):
            is_within = abs(cell.difference) <= spread
            where = f", {'within' if is_within else 'BEYOND'} the seed spread"
        lines.append(
            f"{cell.encoding}{' both ways' * cell.both}: CE_chain less float32's of "
            f"the same seed is {pairs}; mean {signed(cell.difference)}{where}."
        )
    return lines


def traffic_sentence(found: Sequence[Cell]) -> str:
    """What that is of the whole traffic: parts go down as well."""
    way_up = [cell for cell in found if not cell.both]
    reference = next(c for c in way_up if c.encoding == REFERENCE)
    best = max(way_up, key=lambda cell: cell.fewer)
    text = (
        f"These are the updates, the way up. A part goes down as float32, "
        f"{si(reference.down, 'B')}, and so both ways together {best.name} moves "
        f"{best.fewer:.2f} times fewer bytes"
    )
    told = [
        f"{c.name} {c.fewer:.2f} times fewer, CE_chain {_change(c)}"
        for c in found
        if c.both
    ]
    if not told:
        return f"{text}."
    return (
        f"{text}; if what changed goes down encoded, too, the first part whole: "
        f"{listing(told)}."
    )


def _change(cell: Cell) -> str:
    if abs(cell.difference) < LEVEL:
        return "level"
    return f"{nats(abs(cell.difference))} {'above' if cell.difference > 0 else 'below'}"
