"""Sentences made from the numbers of a delay experiment, and from nothing else."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spheroid_jax.reports.delays import claims, claims_of_tuning
from spheroid_jax.reports.delays.judgement import Judgement
from spheroid_jax.reports.delays.names import field_label, listing
from spheroid_jax.reports.delays.stats import change, differences
from spheroid_jax.reports.delays.summary import Cell, Sweep, read
from spheroid_jax.reports.delays.tables import panels
from spheroid_jax.reports.delays.tuning import best_pairs, ends_of_grid, is_tuning
from spheroid_jax.reports.delays.where import among, at, within
from spheroid_jax.reports.tables import nats

Claim = Callable[[Sweep], list[Judgement]]

_GENERAL: Sequence[Claim] = (
    claims.nesterov_diverges,
    claims.aware_survive,
    claims.cgad_flat,
    claims.same_at_fixed_age,
    claims.gate_with_varying_ages,
)
_OF: Mapping[str, Sequence[Claim]] = {  # by the name of the experiment
    "outer_grid": (),  # chooses a rate, and claims nothing
    "alpha_sweep": (claims_of_tuning.alpha_robust,),
    "h_sweep": (claims_of_tuning.ranking_holds,),
    "tuned_nesterov": (
        claims.nesterov_diverges,
        claims_of_tuning.no_momentum,
        claims_of_tuning.one_setting,
        claims_of_tuning.cgad_beats_tuned,
    ),
    "seed_variance": (claims_of_tuning.spread_grows,),
    "partial_sync": (claims.pa_cgad_lower, claims.fragment_ages_help),
    "gate_ablation": (
        claims.gate_before,
        claims.same_at_fixed_age,
        claims.gate_with_varying_ages,
    ),
}
GATED = ("adam_decay", "cgad", "cgad_post", "cgad_both", "pa_delay", "pa_cgad")


def verdicts(summary: Mapping[str, Any]) -> list[str]:
    """What the experiment shows, then which claims it bears out.

    Args:
      summary: see :mod:`spheroid_jax.reports.delays.summary`.
    """
    return observations(summary) + [str(one) for one in judge(summary)]


def judge(summary: Mapping[str, Any]) -> list[Judgement]:
    """The claims that the experiment is about, each judged by its numbers."""
    sweep = read(summary)
    if not sweep.cells:
        return []
    chosen = _OF.get(str(summary.get("name", "")), _GENERAL)
    return [judgement for claim in chosen for judgement in claim(sweep)]


def observations(summary: Mapping[str, Any]) -> list[str]:
    """What the experiment shows, panel by panel."""
    sweep = read(summary)
    if not sweep.cells:
        return ["No cell has finished: there is nothing to say yet."]
    said = [] if sweep.seeds > 1 else [_ONE_SEED]
    for panel in panels(sweep):
        lines = [
            *_divergence(sweep, panel),
            *_course(sweep, panel),
            *_against_adam(sweep, panel),
            *_tuning(sweep, panel),
            *_best_rate(sweep, panel),
        ]
        said += [within(sweep, panel) + line for line in lines]
    return said


_ONE_SEED = (
    "One seed: a difference between methods can't be told from the chance of its seed."
)


def _divergence(sweep: Sweep, panel: Any) -> list[str]:
    """Who ends above chance, and where."""
    chance, fine, said = f"ln V = {nats(sweep.chance)}", [], []
    for method in sweep.methods:
        if is_tuning(sweep) and sweep.rate_and_momentum(method):
            continue  # of a grid, the counts of `_tuning` say more
        line = sweep.line(method, panel)
        above = [x for x, cell in line.items() if cell.failed]
        mixed = {x: c for x, c in line.items() if not c.failed and not c.learned}
        below = [x for x, cell in line.items() if cell.learned]
        if not line:
            continue
        if not above and not mixed:
            fine.append(sweep.label(method))
            continue
        parts = [f"ends above {chance}{among(sweep, above)}"] if above else []
        for x, cell in mixed.items():
            share = f"{sum(cell.diverged)} of {len(cell.final)} seeds"
            parts.append(f"in {share} above {chance}{among(sweep, [x])}")
        if below:
            parts.append(f"below it{among(sweep, below)}")
        lost = [x for x, cell in line.items() if cell.lost]
        text = f"{sweep.label(method)} {listing(parts)}"
        said.append(text + (f"; not finite{among(sweep, lost)}." if lost else "."))
    if fine:
        end = "ends" if len(fine) == 1 else "end"
        where = f" at every {field_label(sweep.x)}" if len(sweep.xs) > 1 else ""
        said.append(f"{listing(fine)} {end} below {chance}{where}.")
    return said


def _course(sweep: Sweep, panel: Any) -> list[str]:
    """How CGAD and Adam change along the axis."""
    said = []
    for method in ("cgad", "adam", "pa_cgad"):
        line = sweep.line(method, panel)
        if len(line) < 2 or len({id(cell) for cell in line.values()}) < 2:
            continue
        (first, a), *_, (last, b) = line.items()
        said.append(
            f"{sweep.label(method)} ends at {_loss(a)}{at(sweep, first)} and "
            f"{_loss(b)}{at(sweep, last)}: {change(b.mean - a.mean)}."
        )
    return said


def _against_adam(sweep: Sweep, panel: Any) -> list[str]:
    """The largest paired difference of each gated method from age-blind Adam."""
    said, adam = [], sweep.line("adam", panel)
    for method in GATED:
        found = differences(sweep.line(method, panel), adam)
        if not found:
            continue
        x, widest = max(found.items(), key=lambda item: abs(item[1].mean))
        text = f"{sweep.label(method)} against age-blind Adam: "
        if len(found) > 1:
            text += "largest difference "
        text += f"{widest}{at(sweep, x)}."
        clear = [x for x, d in found.items() if d.outcome in ("lower", "higher")]
        if len(found) > 1 and sweep.seeds > 1:
            text += f" Outside the noise at {len(clear)} of {len(found)} places."
        said.append(text)
    return said


def _tuning(sweep: Sweep, panel: Any) -> list[str]:
    """The best pair at each place, and whether the grid was wide enough."""
    found = best_pairs(sweep, panel) if is_tuning(sweep) else {}
    if not found:
        return []
    parts = [
        f"{best.pair[0]:g}/{best.pair[1]:g} ({nats(best.cell.mean)}){at(sweep, x)}"
        for x, best in found.items()
    ]
    text = f"Best learning rate/momentum of Nesterov: {listing(parts)}; "
    text += "picked by these same seeds, which favours it."
    ends = ends_of_grid(sweep)["learning rate"]
    edge = [x for x, best in found.items() if best.pair[0] in ends]
    if edge and ends[0] < ends[1]:
        text += f" The rate is an end of the grid{among(sweep, edge)}."
    return [text, _survivors(sweep, panel)]


def _best_rate(sweep: Sweep, panel: Any) -> list[str]:
    """Where each method does best along an axis of rates, and whether it's an end."""
    if not sweep.x.endswith("learning_rate"):
        return []
    said = []
    for method in sweep.methods:
        line = sweep.line(method, panel)
        best = min(line, key=lambda x: line[x].score, default=None)
        if best is None or not math.isfinite(line[best].score):
            continue
        inside = best not in (min(line), max(line))
        where = "inside the grid" if inside else "an end of the grid: widen it"
        said.append(
            f"{sweep.label(method)} does best{at(sweep, best)} "
            f"({_loss(line[best])}), {where}."
        )
    return said


def _survivors(sweep: Sweep, panel: Any) -> str:
    """How many settings of the grid end below chance, by place."""
    lines = [
        line
        for method in sweep.methods
        if sweep.rate_and_momentum(method) and (line := sweep.line(method, panel))
    ]
    parts = []
    for x in sweep.xs:
        cells = [line[x] for line in lines if x in line]
        fine = sum(cell.learned for cell in cells)
        parts.append(f"{fine} of {len(cells)}{at(sweep, x)}")
    return f"Settings of Nesterov that end below chance: {listing(parts)}."


def _loss(cell: Cell) -> str:
    return nats(cell.mean) if math.isfinite(cell.score) else "NaN"
