"""Sentences made from the numbers of a run of kind ``bound``, and from nothing else."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spheroid_jax.reports.bound_fits import (
    FLAT,
    POINTS,
    Bound,
    Line,
    Slope,
    lost,
    ratio,
    slope,
    values,
)
from spheroid_jax.reports.delays.names import listing

_LABELS = {
    "sgd": "SGD",
    "heavy_ball": "Heavy ball",
    "nesterov": "Nesterov",
    "adam": "Age-blind Adam",
    "adam_decay": "Adam-Decay",
    "cgad": "CGAD",
}
_PROMISED = 2.0  # the power of tau_max that async momentum SGD is said to pay
_MOMENTUM, _GATED = ("heavy_ball", "nesterov"), ("adam_decay", "cgad")


def method_label(method: str) -> str:
    """The name of a method for readers; an unknown one names itself."""
    return _LABELS.get(method, method)


def verdicts(summary: Mapping[str, Any]) -> list[str]:
    """What became of the theorem, sentence by sentence.

    Args:
      summary: as :func:`spheroid_jax.runs.bound.experiment.run_bound` makes it.
    """
    bound = Bound(summary)
    return [
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
        *shut_sentence(summary, bound),
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


def growth_sentence(bound: Bound, method: str) -> str:
    """Whether the error that delay adds grows like ``tau_max^2``."""
    said: dict[str, list[str]] = {}
    slopes: list[Slope] = []
    for function, kind in bound.places():
        line = bound.line(function, kind, method)
        found = slope(line, "excess")
        said.setdefault(_growth(found), []).append(_place(bound, function, kind))
        slopes += [found] if found.known else []
    parts = [f"{word} in {len(p)} ({listing(p)})" for word, p in said.items()]
    text = (
        f"{method_label(method)}: the error beyond that without delay, against "
        f"tau_max^2, {listing(parts)} of {len(bound.places())} places"
    )
    if slopes:
        low = min(slopes, key=lambda s: s.value)
        high = max(slopes, key=lambda s: s.value)
        text += f"; powers from {power(low)} to {power(high)}"
    biases = [
        found
        for function, kind in bound.places()
        if (found := slope(bound.line(function, kind, method), "bias")).known
    ]
    if biases:
        text += (
            ", those of the squared bias of stale gradients from "
            f"{min(s.value for s in biases):.2f} to {max(s.value for s in biases):.2f}"
        )
    return f"{text}. {_divergence(bound, method)}"


def saturation_sentence(bound: Bound, method: str) -> str:
    """Whether the error stops growing once tau_max is beyond ``1 / alpha``."""
    late = bound.late()
    said: dict[str, list[str]] = {}
    powers = []
    for function, kind in bound.places():
        found = slope(bound.line(function, kind, method), "error", late)
        said.setdefault(_course(found), []).append(_place(bound, function, kind))
        powers += [found] if found.known else []
    parts = [f"{word} in {len(p)} ({listing(p)})" for word, p in said.items()]
    text = (
        f"{method_label(method)}, from tau_max = 1 / alpha = {1 / bound.alpha:g} on: "
        f"the error {listing(parts)} of {len(bound.places())} places"
    )
    if powers:
        low = min(powers, key=lambda s: s.value)
        high = max(powers, key=lambda s: s.value)
        text += f"; powers from {power(low)} to {power(high)}"
    return f"{text}. {_divergence(bound, method)}"


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


def shut_sentence(summary: Mapping[str, Any], bound: Bound) -> list[str]:
    """A gate that is shut has no bias and no progress either."""
    cut = float(summary["tau_cut"])
    shut = [t for t in bound.taus if t >= cut]
    if not shut or "cgad" not in bound.methods or "fixed" not in bound.kinds:
        return []
    return [
        f"At a fixed age of {listing([str(t) for t in shut])}, tau_cut = {cut:g} and "
        "beyond, CGAD's weight is zero: once its moments have decayed it stands still, "
        "and its error there is that of where it stopped."
    ]


def edge_sentence(summary: Mapping[str, Any], bound: Bound) -> list[str]:
    """Rates that are an end of the grid, so that a better one may lie outside."""
    edges = []
    for row in summary["rows"]:
        grid = [point["learning_rate"] for point in row.get("grid") or []]
        if grid and row["learning_rate"] in (min(grid), max(grid)):
            name = method_label(row["method"])
            edges.append(f"{name} on {row['function']} ({row['learning_rate']:g})")
    return [f"The rate is an end of the grid for {listing(edges)}."] if edges else []


def power(found: Slope) -> str:
    """A slope with its standard error.

    >>> power(Slope(2.0, 0.125, 8, (1, 2, 4)))
    '2.00±0.12'
    """
    if not math.isfinite(found.value):
        return "-"
    error = f"±{found.error:.2f}" if math.isfinite(found.error) else ""
    return f"{found.value:.2f}{error}"


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
        return "doesn't grow"
    return "grows" if found.low > FLAT else "can't be told"


def _divergence(bound: Bound, method: str) -> str:
    """Which cells diverged, and so are in no slope."""
    parts = []
    for function, kind in bound.places():
        line = bound.line(function, kind, method)
        gone = _lost(line)
        if gone:
            where = _place(bound, function, kind)
            parts.append(f"{where} at {listing([str(t) for t in gone])}")
    return f"Diverged and left out: {'; '.join(parts)}." if parts else "None diverged."


def _lost(line: Line) -> list[int]:
    return [tau for tau, row in line.items() if tau and lost(row)]


def _place(bound: Bound, function: str, kind: str) -> str:
    return f"{function}, {kind}" if len(bound.kinds) > 1 else function


def _ratio(item: tuple[Any, str, int]) -> str:
    one, function, tau = item
    return (
        f"{one.value:.3g} ({one.low:.3g} to {one.high:.3g}; {function}, tau_max {tau})"
    )


def wide(lines: Sequence[str]) -> str:
    """Lines as a Markdown list."""
    return "\n".join(f"- {line}" for line in lines)
