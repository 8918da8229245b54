"""Sentences on averaged replicas: K > 1 against K = 1, at equal data and equal rounds.

They are made from a sweep's numbers and from nothing else.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spheroid_jax.reports.beside import Pair
from spheroid_jax.reports.labels import RESULTS, label
from spheroid_jax.reports.sections import LEVEL
from spheroid_jax.reports.tables import finite, nats, si, signed

Summary = Mapping[str, Any]
Cell = Mapping[str, Any]
_BUDGETS = ("bytes_seen", "rounds")  # what two cells may have in common


class Duel(NamedTuple):
    """A cell of K > 1 and one of K = 1, with something equal between them."""

    many: Cell
    one: Cell
    data: bool  # whether both saw as many bytes
    rounds: bool  # whether both took as many rounds

    def by(self, result: str) -> float | None:
        """CE of K > 1 less that of K = 1; None where one is missing."""
        ours, theirs = (c["results"].get(result) for c in (self.many, self.one))
        return ours - theirs if finite(ours) and finite(theirs) else None


def duels(summary: Summary) -> list[Duel]:
    """All pairs with equal data or equal rounds; none where all cells have one K."""
    cells = [cell for cell in summary["cells"] if "scale" in cell]
    found = []
    for many in (c for c in cells if c["scale"]["replicas"] > 1):
        for one in (c for c in cells if c["scale"]["replicas"] == 1):
            equal = [many["scale"][x] == one["scale"][x] for x in _BUDGETS]
            if any(equal) and _local(many) == _local(one):
                found.append(Duel(many, one, *equal))
    return found


def _local(cell: Cell) -> tuple[int, ...]:
    """What must be equal besides: the model and the local steps of a round."""
    names = ("blocks", "layers", "width", "local_steps")
    return tuple(cell["scale"][name] for name in names)


def verdicts(summary: Summary, published: Sequence[Pair] = ()) -> list[str]:
    """A verdict, then each duel, then the paper's difference; empty without duels."""
    found = duels(summary)
    if not found:
        return []
    return [
        *verdict_sentence(found),
        *[duel_sentence(duel) for duel in found],
        *paper_sentence(published),
    ]


def verdict_sentence(found: Sequence[Duel]) -> list[str]:
    """Whether averaging replicas makes a better model, and what it is worth."""
    rounds = [d for d in found if d.rounds and not d.data and finite(d.by("ce_chain"))]
    if not rounds:
        return []
    duel = rounds[0]
    gain = -(duel.by("ce_chain") or 0.0)
    k = duel.many["scale"]["replicas"]
    if gain > LEVEL:
        head = f"{k} averaged replicas a block train one better model"
        how = f"{nats(gain)} below"
    elif gain < -LEVEL:
        head = f"Averaging {k} replicas a block does NOT help here"
        how = f"{nats(-gain)} above"
    else:
        head = f"Averaging {k} replicas a block changes nothing here"
        how = "level with"
    times = duel.many["scale"]["bytes_seen"] / duel.one["scale"]["bytes_seen"]
    return [
        f"{head}: at equal rounds, with {times:g} times the data, CE_chain is {how} "
        f"that of one replica{_worth(found, duel, gain)}. "
        "One run each, with one seed."
    ]


def _worth(found: Sequence[Duel], duel: Duel, gain: float) -> str:
    """The gain against that of K = 1 from seeing the same bytes in sequence."""
    longer = [d for d in found if d.many is duel.many and d.data and not d.rounds]
    cost = longer[0].by("ce_chain") if longer else None
    if cost is None:
        return ""
    whole = gain + cost  # what more rounds bring to K = 1
    share = f", {gain / whole:.0%} of what the rounds bring" if whole > LEVEL else ""
    times = longer[0].one["scale"]["rounds"] / duel.one["scale"]["rounds"]
    return (
        f"; against one replica that sees the same bytes in {times:g} times the rounds "
        f"it is {signed(cost)}{share}"
    )


def duel_sentence(duel: Duel) -> str:
    """Every cross-entropy of both, and the difference."""
    equal = [n for n, same in (("data", duel.data), ("rounds", duel.rounds)) if same]
    scores = []
    for result in RESULTS:
        difference = duel.by(result)
        if difference is not None and result not in ("ce_first", "ce_mix"):
            ours, theirs = (c["results"][result] for c in (duel.many, duel.one))
            name = label(result)
            scores.append(
                f"{name} {nats(ours)} against {nats(theirs)} ({signed(difference)})"
            )
    return (
        f"At equal {' and equal '.join(equal)}, {_name(duel.many)} against "
        f"{_name(duel.one)}: {'; '.join(scores) or 'no result of both'}."
    )


def paper_sentence(published: Sequence[Pair]) -> list[str]:
    """The paper's own difference between its rows of K > 1 and K = 1."""
    ce: dict[bool, float] = {}
    for pair in published:
        replicas = pair.cell["settings"].get("train.replicas", 1)
        if "CE" in pair.entry.numbers:
            ce[replicas > 1] = pair.entry.numbers["CE"]
    if len(ce) < 2:
        return []
    return [
        f"The paper's difference is {signed(ce[True] - ce[False])} ({ce[True]:g} "
        f"against {ce[False]:g}); whether its data or its rounds were equal isn't "
        "published."
    ]


def _name(cell: Cell) -> str:
    s = cell["scale"]
    return (
        f"K = {s['replicas']} ({s['rounds']} rounds, batch {s['batch']}, "
        f"{si(s['bytes_seen'], 'B')})"
    )
