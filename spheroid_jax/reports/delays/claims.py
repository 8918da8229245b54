"""Claims about outer optimizers under delay, each judged by a run's own numbers.

The claims are those of CGAD (arXiv 2605.09126), and what its mathematics says: with
one age for all, Adam cancels the gate, so that only varying ages can show one.
"""

import math
from typing import Any

from spheroid_jax.reports.delays.judgement import (
    DROP,
    KIND,
    LARGE,
    TAU,
    Judgement,
    Outcome,
)
from spheroid_jax.reports.delays.names import listing
from spheroid_jax.reports.delays.stats import (
    MARGIN,
    Paired,
    answer,
    differences,
    paired,
)
from spheroid_jax.reports.delays.summary import Cell, Sweep
from spheroid_jax.reports.delays.where import among, at, within
from spheroid_jax.reports.tables import nats

AWARE = {
    *("adam_decay", "cgad", "pa_cgad", "fadas"),
    *("staleness_nesterov", "polynomial_nesterov", "delayed_nesterov"),
}
NOWHERE = "(nowhere)"
_ONE_AGE = ("fixed", None)


def nesterov_diverges(sweep: Sweep) -> list[Judgement]:
    """The published recipe ends above chance at large delays, and only there."""
    claim = f"Nesterov 0.7/0.9 diverges at tau >= {LARGE}"
    method = sweep.published_nesterov
    line = _by_tau(sweep, method, fixed(sweep)) if method else {}
    large = [x for x in line if x >= LARGE]
    if not large:
        return [Judgement(claim, "unsure", "It was not run there.")]
    chance = f"ln V = {nats(sweep.chance)}"
    start = min(line)
    if start < LARGE and not line[start].learned:
        because = f"It ends above {chance} at tau = {start} already."
        return [Judgement(claim, "unsure", because)]
    failed = [x for x in line if line[x].failed]
    because = f"It ends above {chance}{among(sweep, failed)}"
    because += "." if failed else " nowhere."
    if all(line[x].failed for x in large):
        return [Judgement(claim, "yes", because)]
    if all(line[x].learned for x in large):
        return [Judgement(claim, "no", because)]
    shares = [f"{sum(line[x].diverged)} of {len(line[x].final)}" for x in large]
    because = f"Seeds that diverge{among(sweep, large)}: {listing(shares)}."
    return [Judgement(claim, "part", because)]


def aware_survive(sweep: Sweep) -> list[Judgement]:
    """Methods that take delay into account stay below chance; does Adam as well?"""
    claim = "the delay-aware methods end below ln V at every delay"
    panel = fixed(sweep)
    aware = [m for m in sweep.methods if sweep.recipe(m).get("name", m) in AWARE]
    lines = {m: line for m in aware if (line := _by_tau(sweep, m, panel))}
    if not lines or max(x for line in lines.values() for x in line) < LARGE:
        return [Judgement(claim, "unsure", f"None was run at tau >= {LARGE}.")]
    broken = [
        f"{sweep.label(m)}{among(sweep, bad)}"
        for m, line in lines.items()
        if (bad := [x for x, cell in line.items() if not cell.learned])
    ]
    fine = [sweep.label(m) for m, line in lines.items() if _all_learned(line)]
    because = (
        f"These don't: {listing(broken)}." if broken else f"These do: {listing(fine)}."
    )
    if adam := _by_tau(sweep, "adam", panel):
        because += (
            " Age-blind Adam does too: that takes no gate."
            if _all_learned(adam)
            else " Age-blind Adam does not."
        )
    outcome: Outcome = "yes" if not broken else "part" if fine else "no"
    return [Judgement(claim, outcome, because)]


def cgad_flat(sweep: Sweep) -> list[Judgement]:
    """CGAD's loss at any delay is that without delay."""
    claim = f"CGAD loses at most {MARGIN:g} nats to delay"
    panel = fixed(sweep)
    line = _by_tau(sweep, "cgad", panel)
    if len(line) < 2:
        return [Judgement(claim, "unsure", "It was run at fewer than two delays.")]
    start, *rest = line
    if lost := [x for x in line if not line[x].learned]:
        outcome: Outcome = "unsure" if start in lost else "no"
        because = f"Not all of its seeds end below chance{among(sweep, lost)}."
        return [Judgement(claim, outcome, because)]
    rises = differences({x: line[x] for x in rest}, dict.fromkeys(rest, line[start]))
    if not rises:
        return [Judgement(claim, "unsure", "No seed is finite at both delays.")]
    worst = max(rises, key=lambda x: rises[x].mean)
    because = f"The most{at(sweep, worst)}, against tau = {start}: {rises[worst]}."
    adam = _by_tau(sweep, "adam", panel)
    if start in adam and worst in adam and (own := _pair(adam[worst], adam[start])):
        because += f" Age-blind Adam there: {own}."
    if any(r.mean > MARGIN and r.outcome == "higher" for r in rises.values()):
        return [Judgement(claim, "no", because)]
    flat = all(r.mean + r.bound <= MARGIN for r in rises.values())
    return [Judgement(claim, "yes" if flat else "unsure", because)]


def same_at_fixed_age(sweep: Sweep) -> list[Judgement]:
    """With one age for all, Adam-Decay, CGAD and age-blind Adam are one method."""
    claim = (
        f"Adam-Decay, CGAD and age-blind Adam stay within {MARGIN:g} nats at fixed ages"
    )
    panel = fixed(sweep)
    lines = {m: _by_tau(sweep, m, panel) for m in ("adam_decay", "cgad", "adam")}
    found = {
        (a, b, x): difference
        for a, b in (("cgad", "adam"), ("adam_decay", "adam"), ("cgad", "adam_decay"))
        for x, difference in differences(lines[a], lines[b]).items()
    }
    if not found:
        return [Judgement(claim, "unsure", "No two of them were run with one age.")]
    for x in sweep.xs:
        lost = {m: line[x].lost for m, line in lines.items() if x in line}
        if len(set(lost.values())) > 1:
            each = listing([f"{n} of {sweep.label(m)}" for m, n in lost.items()])
            because = f"Seeds without a finite loss{at(sweep, x)}: {each}."
            return [Judgement(claim, "no", because)]
    a, b, x = max(found, key=lambda key: abs(found[key].mean))
    because = (
        f"The largest difference is {sweep.label(a)} minus {sweep.label(b)}"
        f"{at(sweep, x)}: {found[a, b, x]}."
    )
    answers = {difference.same for difference in found.values()}
    outcome: Outcome = (
        "no" if "no" in answers else "unsure" if "unsure" in answers else "yes"
    )
    return [Judgement(claim, outcome, because)]


def gate_with_varying_ages(sweep: Sweep) -> list[Judgement]:
    """The gate lowers the loss where ages vary within a run."""
    varying = [p for p in sweep.panels if sweep.panel == KIND and p not in _ONE_AGE]
    claim = "the gate of CGAD lowers the loss where ages vary"
    if not varying:
        return [Judgement(claim, "unsure", "Ages did not vary in this experiment.")]
    return [
        _lower(sweep, claim, "cgad", "adam", panel, within(sweep, panel))
        for panel in varying
    ]


def pa_cgad_lower(sweep: Sweep) -> list[Judgement]:
    """Ages per fragment help where fragments are synchronised irregularly."""
    claim = "PA-CGAD ends lower than CGAD under irregular schedules"
    found = [
        _lower(sweep, claim, "pa_cgad", "cgad", panel, within(sweep, panel))
        for panel in sweep.panels
        if not (sweep.panel == DROP and panel == 0)
    ]
    return found or [Judgement(claim, "unsure", "Nothing was dropped.")]


def fragment_ages_help(sweep: Sweep) -> list[Judgement]:
    """What PA-CGAD owes to its gate, and what to moments of each fragment's own."""
    rivals = {
        "pa_delay": "the age of a fragment, and not the delay alone, lowers the loss",
        "pa_adam": "the gate lowers the loss of fragments with moments of their own",
    }
    return [
        _lower(sweep, claim, "pa_cgad", rival, panel, within(sweep, panel))
        for rival, claim in rivals.items()
        for panel in sweep.panels
        if rival in sweep.methods and not (sweep.panel == DROP and panel == 0)
    ]


def gate_before(sweep: Sweep) -> list[Judgement]:
    """The gate belongs before the moments; and which place is lowest."""
    found = []
    for panel in sweep.panels:
        claim, where = "the gate does best before the moments", within(sweep, panel)
        verdict = _lower(sweep, claim, "cgad", "cgad_post", panel, where)
        scores = {
            method: sum(cell.score for cell in cells) / len(cells)
            for method in ("cgad", "cgad_post", "cgad_both", "adam")
            if (cells := list(_delayed(sweep, method, panel).values()))
        }
        if scores and math.isfinite(min(scores.values())):
            means = [f"{sweep.label(m)} {nats(s)}" for m, s in scores.items()]
            verdict = verdict._replace(
                because=f"{verdict.because} Means over the delays: {listing(means)}."
            )
        found.append(verdict)
    return found


def fixed(sweep: Sweep) -> Any:
    """The panel with one age for all; NOWHERE if all panels have varying ones."""
    if sweep.panel != KIND:
        return sweep.panels[0] if len(sweep.panels) == 1 else NOWHERE
    return next((p for p in sweep.panels if p in _ONE_AGE), NOWHERE)


def _lower(
    sweep: Sweep, claim: str, ours: str, theirs: str, panel: Any, where: str
) -> Judgement:
    """Judges whether a method is lower than another, over all delayed places."""
    mine, others = (_delayed(sweep, m, panel) for m in (ours, theirs))
    both = [x for x in mine if x in others]
    names = f"{sweep.label(ours)} minus {sweep.label(theirs)}"
    if not both:
        return Judgement(claim, "unsure", f"{where}{names} has no place in common.")
    sides = [mine[x] for x in both], [others[x] for x in both]
    over = f", mean{among(sweep, both)}" if len(both) > 1 else at(sweep, both[0])
    because = f"{where}{names}{over}: {paired(*sides) or 'no seed in common'}."
    lost = [sum(cell.lost for cell in side) for side in sides]
    if any(lost):
        because += f" Runs without a finite loss: {lost[0]} against {lost[1]}."
    return Judgement(claim, answer(*sides), because)


def _by_tau(sweep: Sweep, method: str, panel: Any) -> dict[Any, Cell]:
    """A method's cells by delay where delay is the axis, else nothing."""
    if sweep.x != TAU or panel is NOWHERE:
        return {}
    return {
        x: cell
        for x, cell in sweep.line(method, panel).items()
        if isinstance(x, int | float)
    }


def _delayed(sweep: Sweep, method: str, panel: Any) -> dict[Any, Cell]:
    """Cells where something is late or lost: without a zero delay or drop rate."""
    regular = sweep.x == DROP or (sweep.x == TAU and sweep.panel != DROP)
    line = sweep.line(method, panel)
    return {x: cell for x, cell in line.items() if not (regular and x == 0)}


def _pair(ours: Cell, theirs: Cell) -> Paired | None:
    return paired([ours], [theirs])


def _all_learned(line: dict[Any, Cell]) -> bool:
    return all(cell.learned for cell in line.values())
