"""Claims on hyper-parameters and on the spread over seeds, judged by the numbers."""

import math
from collections.abc import Sequence
from typing import Any

from spheroid_jax.reports.delays.judgement import LARGE, TAU, Judgement, Outcome
from spheroid_jax.reports.delays.names import listing, value_label
from spheroid_jax.reports.delays.stats import (
    MARGIN,
    Answer,
    answer,
    change,
    differences,
    paired,
    spread_factor,
)
from spheroid_jax.reports.delays.summary import Cell, Sweep
from spheroid_jax.reports.delays.tuning import Best, best_pairs, ends_of_grid
from spheroid_jax.reports.delays.where import at, within
from spheroid_jax.reports.tables import nats

DEFAULT_ALPHA = 0.2
PUBLISHED_RATIO = 1.89 / 0.38  # spread of Adam-Decay by that of CGAD, 7 B, tau = 8


def no_momentum(sweep: Sweep) -> list[Judgement]:
    """Tuned Nesterov has no momentum at large delays."""
    claim = f"tuned Nesterov drops its momentum at tau >= {LARGE}"
    best, (least, most) = _large(sweep), ends_of_grid(sweep)["momentum"]
    if not best:
        return [Judgement(claim, "unsure", _NO_GRID)]
    if least > 0 or most == 0:
        return [Judgement(claim, "unsure", "The grid has not both kinds.")]
    momenta = {x: one.pair[1] for x, one in best.items()}
    parts = [f"{m:g}{at(sweep, x)}" for x, m in momenta.items()]
    because = f"The best momentum is {listing(parts)}."
    gaps = {
        x: gap
        for x, one in best.items()
        if one.rival and (gap := paired([one.cell], [one.rival]))
    }
    for x, gap in gaps.items():
        other = "with" if momenta[x] == 0 else "without"
        because += f" Against the best {other} momentum{at(sweep, x)}: {gap}."
    dropped = [momentum == 0 for momentum in momenta.values()]
    # Without a finite rival the choice is clear: all of the other kind diverged.
    clear = all(
        one.rival is None or (x in gaps and gaps[x].outcome == "lower")
        for x, one in best.items()
    )
    if not clear:
        return [Judgement(claim, "unsure", because)]
    outcome: Outcome = "yes" if all(dropped) else "part" if any(dropped) else "no"
    return [Judgement(claim, outcome, because)]


def one_setting(sweep: Sweep) -> list[Judgement]:
    """Nesterov needs another setting for each delay: what keeping one costs."""
    claim = "tuned Nesterov needs another setting for each regime of delay"
    best = best_pairs(sweep, sweep.panels[0])
    if len(best) < 2:
        return [Judgement(claim, "unsure", "It was tuned at fewer than two delays.")]
    costs: dict[str, tuple[Any, float]] = {}
    for method in dict.fromkeys(m for m in sweep.methods if sweep.rate_and_momentum(m)):
        cells = {x: sweep.cell(method, sweep.panels[0], x) for x in best}
        lost = {x: c.score - best[x].cell.score for x, c in cells.items() if c}
        if len(lost) == len(best):
            worst = max(lost, key=lambda x: lost[x])
            costs[method] = worst, lost[worst]
    if not costs:
        return [Judgement(claim, "unsure", "No setting was run at every delay.")]
    method = min(costs, key=lambda m: costs[m][1])
    x, cost = costs[method]
    if math.isinf(cost):
        return [Judgement(claim, "yes", "No setting is finite at every delay.")]
    tuned, kept = best[x].cell, sweep.cell(method, sweep.panels[0], x)
    gap = paired([kept], [tuned]) if kept else None
    because = (
        f"The best single setting, {sweep.label(method)}, is furthest from the best "
        f"pair{at(sweep, x)}: {gap or change(cost)}."
    )
    if gap is None or gap.same == "unsure":
        return [Judgement(claim, "unsure", because)]
    return [Judgement(claim, "no" if gap.same == "yes" else "yes", because)]


def cgad_beats_tuned(sweep: Sweep) -> list[Judgement]:
    """At large delays CGAD ends lower than the best of Nesterov's grid."""
    claim = f"CGAD ends lower than tuned Nesterov at tau >= {LARGE}"
    best = {x: one.cell for x, one in _large(sweep).items()}
    cgad, adam = (sweep.line(m, sweep.panels[0]) for m in ("cgad", "adam"))
    places = [x for x in best if x in cgad]
    if not places:
        return [Judgement(claim, "unsure", _NO_GRID)]
    gaps = {x: paired([cgad[x]], [best[x]]) or "no finite seed" for x in places}
    parts = [f"{gap}{at(sweep, x)}" for x, gap in gaps.items()]
    because = f"CGAD minus the best pair: {listing(parts)}."
    if own := differences(adam, best):
        parts = [f"{change(gap.mean)}{at(sweep, x)}" for x, gap in own.items()]
        because += f" Age-blind Adam minus it: {listing(parts)}."
    answers = [answer([cgad[x]], [best[x]]) for x in places]
    return [Judgement(claim, _all(answers), because)]


def alpha_robust(sweep: Sweep) -> list[Judgement]:
    """The default alpha is close to the best one at every delay."""
    claim = f"alpha = {DEFAULT_ALPHA:g} is within {MARGIN:g} nats of the best alpha"
    found = []
    for panel in sweep.panels:
        where, line = within(sweep, panel), sweep.line("cgad", panel)
        known = {x: cell for x, cell in line.items() if math.isfinite(cell.score)}
        if DEFAULT_ALPHA not in line or len(line) < 2 or not known:
            said = f"{where}CGAD was not run with it and another."
            found.append(Judgement(claim, "unsure", said))
            continue
        best = min(known, key=lambda x: known[x].score)
        text = f"{where}CGAD is lowest at alpha = {value_label(best)}"
        text += f" ({nats(known[best].mean)})"
        if best == DEFAULT_ALPHA:
            found.append(Judgement(claim, "yes", f"{text}."))
            continue
        gap = paired([line[DEFAULT_ALPHA]], [known[best]])
        if line[DEFAULT_ALPHA].lost or gap is None:
            said = f"{text}; with the default not every seed is finite."
            found.append(Judgement(claim, "no", said))
            continue
        text += f"; the default against it: {gap}."
        found.append(Judgement(claim, gap.same, text))
    return found


def ranking_holds(sweep: Sweep) -> list[Judgement]:
    """What is clearly lower after few local steps is so after many."""
    claim = "the ranking of the methods holds as the local steps grow"
    found = []
    for panel in sweep.panels:
        where, xs = within(sweep, panel), sweep.xs
        clear, turned, faded = 0, [], []
        for number, ours in enumerate(sweep.methods):
            for theirs in sweep.methods[number + 1 :]:
                a, b = sweep.line(ours, panel), sweep.line(theirs, panel)
                found_at = [_order(a[x], b[x]) for x in xs if x in a and x in b]
                if len(found_at) < max(2, len(xs)) or found_at[0] is None:
                    continue
                clear += 1
                first, *later = found_at
                pair = f"{sweep.label(ours)} and {sweep.label(theirs)}"
                if any(one not in (None, first) for one in later):
                    turned.append(pair)
                elif None in later:
                    faded.append(pair)
        pairs = "1 pair is" if clear == 1 else f"{clear} pairs are"
        where += f"{pairs} told apart{at(sweep, xs[0])}"
        if not clear:
            found.append(Judgement(claim, "unsure", f"{where}."))
        elif turned:
            because = f"{where}; the order turns for {listing(turned)}."
            found.append(Judgement(claim, "no", because))
        elif faded:
            because = f"{where}; later no longer so: {listing(faded)}."
            found.append(Judgement(claim, "part", because))
        else:
            because = f"{where}, and in the same order at every other."
            found.append(Judgement(claim, "yes", because))
    return found


def spread_grows(sweep: Sweep) -> list[Judgement]:
    """In low precision Adam-Decay's spread over seeds exceeds that of CGAD."""
    claim = "in low precision Adam-Decay's seeds spread more than CGAD's"
    low = [p for p in sweep.panels if p not in (None, "float32")]
    found = []
    for panel in low:
        for x in sweep.xs:
            cells = [sweep.cell(m, panel, x) for m in ("adam_decay", "cgad")]
            where = f"{within(sweep, panel)[:-2]}{at(sweep, x)}: "
            found.append(_spread(claim, where, cells))
    return found or [Judgement(claim, "unsure", "No run was of low precision.")]


def _spread(claim: str, where: str, cells: list[Cell | None]) -> Judgement:
    decay, cgad = cells
    if decay is None or cgad is None or decay.std is None or cgad.std is None:
        because = f"{where}fewer than two finite seeds of each."
        return Judgement(claim, "unsure", because)
    if not cgad.std or decay.lost or cgad.lost:
        because = f"{where}the spreads have no ratio: {nats(decay.std)}, "
        because += f"{nats(cgad.std)}; not finite: {decay.lost}, {cgad.lost}."
        return Judgement(claim, "unsure", because)
    ratio = decay.std / cgad.std
    factor = spread_factor(len(decay.final), len(cgad.final))
    because = (
        f"{where}standard deviations {nats(decay.std)} and {nats(cgad.std)}, ratio "
        f"{ratio:.2f}, known to a factor of {factor:.1f} (95 %); "
        f"published at 7 B: {PUBLISHED_RATIO:.1f}."
    )
    if ratio / factor > 1:
        return Judgement(claim, "yes", because)
    # No: the published ratio lies outside of what these seeds allow.
    small = ratio * factor < PUBLISHED_RATIO
    return Judgement(claim, "no" if small else "unsure", because)


_NO_GRID = f"There is no grid of Nesterov with a finite loss at tau >= {LARGE}."


def _large(sweep: Sweep) -> dict[Any, Best]:
    """The best pairs at large delays."""
    if sweep.x != TAU:
        return {}
    found = best_pairs(sweep, sweep.panels[0])
    return {
        x: best
        for x, best in found.items()
        if isinstance(x, int | float) and x >= LARGE
    }


def _all(answers: Sequence[Answer]) -> Outcome:
    """One outcome for the same question at several places."""
    if set(answers) == {"yes"}:
        return "yes"
    if "yes" in answers and "no" in answers:
        return "part"
    return "unsure" if "unsure" in answers else "no"


def _order(ours: Cell, theirs: Cell) -> bool | None:
    """Whether ours is clearly lower, or clearly higher; None within the noise."""
    if answer([ours], [theirs]) == "yes":
        return True
    return False if answer([theirs], [ours]) == "yes" else None
