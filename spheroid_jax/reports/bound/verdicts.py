"""Sentences made from the numbers of a run of kind ``bound``, and from nothing else."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spheroid_jax.reports.bound.fits import (
    FLAT,
    POINTS,
    Bound,
    Measure,
    Slope,
    lost,
    ratio,
    slope,
    values,
)
from spheroid_jax.reports.bound.names import divergence, method_label, place, power
from spheroid_jax.reports.delays.names import listing

_FLAT = "doesn't grow"
_PROMISED = 2.0  # the power of tau_max that async momentum SGD is said to pay
_MOMENTUM, _GATED = ("heavy_ball", "nesterov"), ("adam_decay", "cgad")
_ADDED: Mapping[Measure, str] = {
    "excess": "error beyond that without delay",
    "bias": "squared bias of stale gradients",
}
_BOTH: Mapping[Measure, str] = {"bias": "weighted squared bias", "error": "error"}


def verdicts(summary: Mapping[str, Any]) -> list[str]:
    """What became of the theorem, sentence by sentence.

    Args:
      summary: as :func:`spheroid_jax.runs.bound.experiment.run_bound` makes it.
    """
    bound = Bound(summary)
    return [
        headline(bound),
        inequality_sentence(summary),
        *share_sentence(summary, bound),
        *[growth_sentence(bound, m) for m in _MOMENTUM if m in bound.methods],
        *[
            saturation_sentence(bound, m)
            for m in (*_GATED, "adam")
            if m in bound.methods
        ],
        *[
            against_adam(bound, method, kind)
            for method in _GATED
            if {method, "adam"} <= set(bound.methods)
            for kind in bound.kinds
        ],
        *price_sentence(summary, bound),
        *edge_sentence(summary, bound),
    ]


def inequality_sentence(summary: Mapping[str, Any]) -> str:
    """Whether ``tau sigma(tau)`` stays below ``1 / (e alpha)``."""
    rows = summary["inequality"]
    gated = max(row["gated"] / row["bound"] for row in rows)
    decay = [row["decay"] / row["bound"] for row in rows]
    alphas = f"alpha from {rows[0]['alpha']:g} to {rows[-1]['alpha']:g}"
    # Weights are float32.
    holds = "holds" if max(gated, *decay) <= 1 + 1e-6 else "FAILS"
    return (
        f"tau sigma(tau) <= 1 / (e alpha) {holds} for {alphas} and real tau: with the "
        f"gate the largest share of the bound is {gated:.4f}, without it "
        f"{min(decay):.4f} to {max(decay):.4f}, at tau = 1 / alpha."
    )


def share_sentence(summary: Mapping[str, Any], bound: Bound) -> list[str]:
    """How much of ``L x longest step / (e alpha)`` the weighted bias used up."""
    found = bound_shares(summary, bound)
    if not found:
        return []
    within = "stays within" if max(found) <= 1 + 1e-4 else "EXCEEDS"
    return [
        f"Where L is known, the weighted bias of Adam-Decay and CGAD {within} "
        f"L x longest step / (e alpha) in every run: it uses {max(found):.2f} of it "
        "at most."
    ]


def bound_shares(summary: Mapping[str, Any], bound: Bound) -> list[float]:
    """Largest weighted bias over its bound, of every finite run of a gated method."""
    shares = []
    for row in summary["rows"]:
        constant = summary["functions"][row["function"]]["lipschitz"]
        if constant is None or row["method"] not in _GATED or lost(row):
            continue
        steps = values(row, "step")
        limit = constant * steps / (math.e * bound.alpha)
        used = values(row, "bias_sup")[steps > 0] / limit[steps > 0]
        shares += used.tolist()
    return shares


def headline(bound: Bound) -> str:
    """The answers in short: momentum SGD, the gate, age-blind Adam."""
    parts = []
    momentum = [
        found
        for method in _MOMENTUM
        for found in _fits(bound, method, "bias")
        if found.known
    ]
    if momentum:
        low, high = min(s.value for s in momentum), max(s.value for s in momentum)
        parts.append(
            "the squared bias of momentum SGD grows like tau_max to the power "
            f"{low:.2f} to {high:.2f}"
        )
    shown = [m for m in ("cgad", "adam") if m in bound.methods]
    for measure, name in _BOTH.items():
        counts = [f"{_level(bound, m, measure)} ({method_label(m)})" for m in shown]
        parts.append(
            f"from tau_max = 1 / alpha on, the {name} {_FLAT} in {listing(counts)} of "
            f"{len(bound.places())} places"
        )
    if wins := _wins(bound):
        parts.append(
            f"at tau_max {bound.taus[-1]} CGAD's error is lower than age-blind Adam's "
            f"{wins} functions (95 %)"
        )
    lowest = _lowest(bound)
    if lowest:
        parts.append(f"at tau_max {bound.taus[-1]} the lowest mean error is {lowest}")
    return f"In short: {'; '.join(parts)}."


def growth_sentence(bound: Bound, method: str) -> str:
    """Whether what delay adds grows like ``tau_max^2``: the error, and the bias."""
    parts = [
        f"the {name}, against tau_max^2, {_tally(bound, method, measure, _growth)}"
        for measure, name in _ADDED.items()
    ]
    return f"{method_label(method)}: {'; '.join(parts)}. {divergence(bound, method)}"


def saturation_sentence(bound: Bound, method: str) -> str:
    """Whether bias and error stop growing once tau_max is beyond ``1 / alpha``."""
    parts = [
        f"the {name} {_tally(bound, method, measure, _course, bound.late())}"
        for measure, name in _BOTH.items()
    ]
    return (
        f"{method_label(method)}, from tau_max = 1 / alpha = {1 / bound.alpha:g} on: "
        f"{'; '.join(parts)}. {divergence(bound, method)}"
    )


def against_adam(bound: Bound, method: str, kind: str) -> str:
    """How often a gated method has a lower error than age-blind Adam."""
    found = []
    for function in bound.functions:
        ours = bound.line(function, kind, method)
        theirs = bound.line(function, kind, "adam")
        for tau in bound.taus:
            if tau and tau in ours and tau in theirs:
                one = ratio(ours[tau], theirs[tau])
                found += [] if one is None else [(one, function, tau)]
    name = f"{method_label(method)} against age-blind Adam, {kind} ages"
    if not found:
        return f"{name}: no cell can be compared."
    lower = sum(one.high < 1 for one, _, _ in found)
    higher = sum(one.low > 1 for one, _, _ in found)
    best = min(found, key=lambda item: item[0].value)
    worst = max(found, key=lambda item: item[0].value)
    return (
        f"{name}: the error is lower in {lower} of {len(found)} cells, higher in "
        f"{higher}, not told apart in {len(found) - lower - higher} (95 %, paired by "
        f"seed); its ratio is {_ratio(best)} at best and {_ratio(worst)} at worst."
    )


def price_sentence(summary: Mapping[str, Any], bound: Bound) -> list[str]:
    """The weight that tames the bias multiplies progress too."""
    if "cgad" not in bound.methods:
        return []
    tau, function = bound.taus[-1], bound.functions[0]
    parts = [
        f"{float(values(line[tau], 'weight').mean()):.2g} under {kind} ages"
        for kind in bound.kinds
        if tau in (line := bound.line(function, kind, "cgad"))
    ]
    text = (
        f"What is new in a gradient is weighed like its bias: CGAD's mean weight at "
        f"tau_max {tau} is {listing(parts)}."
    )
    cut = float(summary["tau_cut"])
    shut = [str(t) for t in bound.taus if t >= cut]
    if shut and "fixed" in bound.kinds:
        text += (
            f" At a fixed age of {listing(shut)} its gate (tau_cut = {cut:g}) is shut: "
            "once its moments have decayed it stands still."
        )
    return [text]


def edge_sentence(summary: Mapping[str, Any], bound: Bound) -> list[str]:
    """Rates that are an end of the grid, so that a better one may lie outside."""
    edges = []
    for row in summary["rows"]:
        grid = [point["learning_rate"] for point in row.get("grid") or []]
        if grid and row["learning_rate"] in (min(grid), max(grid)):
            name = method_label(row["method"])
            edges.append(f"{name} on {row['function']} ({row['learning_rate']:g})")
    return [f"The rate is an end of the grid for {listing(edges)}."] if edges else []


def _growth(found: Slope) -> str:
    if not found.known:
        return f"can't be fitted (fewer than {POINTS} delays left)"
    if found.low <= _PROMISED <= found.high:
        return "grows like it"
    return "grows slower" if found.value < _PROMISED else "grows faster"


def _course(found: Slope) -> str:
    if not found.known:
        return f"can't be fitted (fewer than {POINTS} delays left)"
    if found.high < FLAT:
        return _FLAT
    return "grows" if found.low > FLAT else "can't be told"


def _tally(
    bound: Bound,
    method: str,
    measure: Measure,
    judge: Callable[[Slope], str],
    taus: Sequence[int] | None = None,
) -> str:
    """What becomes of a measure, in how many places, and between which powers."""
    said: dict[str, list[str]] = {}
    powers = []
    for function, kind in bound.places():
        found = slope(bound.line(function, kind, method), measure, taus)
        said.setdefault(judge(found), []).append(place(bound, function, kind))
        powers += [found] if found.known else []
    total = len(bound.places())
    parts = [
        f"{word} in {len(places)}"
        + (f" ({', '.join(places)})" if len(said) > 1 else "")
        for word, places in said.items()
    ]
    text = f"{listing(parts)} of {total} places"
    if not powers:
        return text
    low = min(powers, key=lambda s: s.value)
    high = max(powers, key=lambda s: s.value)
    return f"{text}, powers {power(low)} to {power(high)}"


def _level(bound: Bound, method: str, measure: Measure) -> int:
    """In how many places a measure doesn't grow beyond ``1 / alpha``."""
    fits = _fits(bound, method, measure, bound.late())
    return sum(_course(found) == _FLAT for found in fits)


def _fits(
    bound: Bound, method: str, measure: Measure, taus: Sequence[int] | None = None
) -> list[Slope]:
    return [slope(bound.line(f, k, method), measure, taus) for f, k in bound.places()]


def _wins(bound: Bound) -> str:
    """On how many functions CGAD beats age-blind Adam at the largest tau_max."""
    if not {"adam", "cgad"} <= set(bound.methods):
        return ""
    tau, total, parts = bound.taus[-1], len(bound.functions), []
    for kind in bound.kinds:
        pairs = [
            (bound.line(f, kind, "cgad"), bound.line(f, kind, "adam"))
            for f in bound.functions
        ]
        found = [ratio(ours[tau], theirs[tau]) for ours, theirs in pairs]
        lower = sum(one is not None and one.high < 1 for one in found)
        higher = sum(one is not None and one.low > 1 for one in found)
        parts.append(f"in {lower} and higher in {higher} under {kind} ages")
    return f"{', '.join(parts)}, of {total}"


def _lowest(bound: Bound) -> str:
    """Whose error is the lowest at the largest tau_max, and where."""
    won: dict[str, list[str]] = {}
    for function, kind in bound.places():
        errors = {}
        for method in bound.methods:
            row = bound.line(function, kind, method).get(bound.taus[-1])
            if row is not None and not lost(row):
                errors[method] = float(values(row, "error").mean())
        if errors:
            best = min(errors, key=lambda m: errors[m])
            won.setdefault(best, []).append(place(bound, function, kind))
    return listing([f"{method_label(m)}'s in {len(p)}" for m, p in won.items()])


def _ratio(item: tuple[Any, str, int]) -> str:
    one, function, tau = item
    return (
        f"{one.value:.3g} ({one.low:.3g} to {one.high:.3g}; {function}, tau_max {tau})"
    )
