"""Sentences made from the numbers of training over a network, and from nothing else."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spheroid_jax.reports.delays.stats import change
from spheroid_jax.reports.network.answers import (
    Contest,
    Duel,
    Recovery,
    contests,
    gate_helps,
    quorum_helps,
    recoveries,
    weights_help,
)
from spheroid_jax.reports.network.names import method_label
from spheroid_jax.reports.network.summary import (
    DROP,
    LOCKSTEP,
    SAME_IN_TIME,
    Setting,
    Sweep,
    mean_of,
    read,
)
from spheroid_jax.reports.tables import nats

FEW = 5  # networks that get a sentence each; of more, counts are told
_ONE_SEED = (
    "One seed: a difference between methods can't be told from the chance of its seed."
)


def verdicts(summary: Mapping[str, Any]) -> list[str]:
    """The answer, what to use when, and what the parts of the answer are worth."""
    sweep = read(summary)
    if not sweep.cells:
        return ["No cell has finished: there is nothing to say yet."]
    return [
        *([] if sweep.seeds > 1 else [_ONE_SEED]),
        *_answers(sweep),
        *_which(sweep),
        *_gate(sweep),
        *_weights(sweep),
        *_quorum(sweep),
    ]


def _answers(sweep: Sweep) -> list[str]:
    """What dropping costs and what every policy wins back, by network."""
    by_setting: dict[Setting, list[Recovery]] = {}
    for one in recoveries(sweep):
        by_setting.setdefault(one.setting, []).append(one)
    return [_answer(sweep, setting, own) for setting, own in by_setting.items()]


def _answer(sweep: Sweep, setting: Setting, own: Sequence[Recovery]) -> str:
    failed = [method_label(one.method) for one in own if one.ours.lost]
    lost = f" NaN in some seed: {series(failed)}." if failed else ""
    told = sorted(
        (one for one in own if math.isfinite(one.share)), key=lambda one: -one.share
    )
    if not told:
        if failed or not all(one.nothing_lost for one in own):
            return f"{setting.label}: no share can be told.{lost}"
        return (
            f"{setting.label}: nothing to win back, as `drop` loses nothing against "
            "lockstep that its seeds tell from noise."
        )
    costs = [one.lost.mean for one in told if one.lost is not None]
    low, high = nats(min(costs)), nats(max(costs))
    span = low if low == high else f"{low} to {high}"
    parts = [f"{one} with {method_label(one.method)}" for one in told]
    text = (
        f"{setting.label}: {_dropping(sweep, setting)} costs {span} against lockstep; "
        f"at the same simulated time this wins back {series(parts)}."
    )
    if rest := [method_label(one.method) for one in own if one.nothing_lost]:
        text += f" Nothing was lost with {series(rest)}."
    return text + lost


def _dropping(sweep: Sweep, setting: Setting) -> str:
    """``drop`` with its participation, and what it ends at where nothing arrives."""
    cells = list(sweep.line(setting.plain(DROP)).values())
    share = mean_of(cells[0], "participation") if cells else math.nan
    if not math.isfinite(share):
        return "`drop`"
    if share > 0:
        percent = f"{100 * share:.0f}" if share >= 0.01 else f"{100 * share:.1g}"
        return f"`drop`, {percent} % in time,"
    losses = [cell.mean for cell in cells if cell.finite]
    level = f"CE {nats(max(losses))}, " if losses else ""
    return (
        f"`drop`, by which nothing is in time and nothing learnt ({level}chance is "
        f"{nats(sweep.chance)}),"
    )


def series(items: Sequence[str]) -> str:
    """Items of which some have a comma.

    >>> series(["Mean"]), series(["Mean, weighed by age", "Adam", "CGAD"])
    ('Mean', 'Mean, weighed by age; Adam; and CGAD')
    """
    if len(items) < 2:
        return "".join(items)
    return f"{'; '.join(items[:-1])}; and {items[-1]}"


def _which(sweep: Sweep) -> list[str]:
    """Which outer optimizer to use when."""
    found = contests(sweep)
    if len(found) > FEW:
        return _counts(found)
    return [_use(one) for one in found]


def _use(one: Contest) -> str:
    how = _way(one.setting, one.method)
    if one.second is None or one.margin is None:
        return f"{one.setting.place}: {how} ends at {nats(one.ours.mean)}, alone."
    gap = f"{change(one.margin.mean)} to the runner-up, {_way(*one.second)}"
    if math.isfinite(one.noise):
        gap += f", {one.noise:.1f} times the seeds' deviation of that difference"
    if one.clear:
        return f"{one.setting.place}: use {how} ({nats(one.ours.mean)}; {gap})."
    doubt = "one seed can't tell" if one.margin.error is None else "not told apart"
    return (
        f"{one.setting.place}: lowest is {how} ({nats(one.ours.mean)}; {gap}: {doubt})."
    )


def _way(setting: Setting, method: str) -> str:
    late = "" if setting.preset == LOCKSTEP else f" with `{setting.late}`"
    return method_label(method) + late


def _counts(found: Sequence[Contest]) -> list[str]:
    wins: dict[str, list[Contest]] = {}
    for one in found:
        wins.setdefault(_way(one.setting, one.method), []).append(one)
    parts = [
        f"{name} at {len(own)} ({sum(c.clear for c in own)} beyond the noise: "
        f"{'; '.join(c.setting.place for c in own)})"
        for name, own in sorted(wins.items(), key=lambda item: -len(item[1]))
    ]
    return [f"Lowest of {len(found)} networks: {series(parts)}."]


def _gate(sweep: Sweep) -> list[str]:
    """Whether keeping late updates helps at all."""
    found = gate_helps(sweep)
    if not found:
        return []
    return [
        "Keeping late updates (`gate`) against dropping them, at the same simulated "
        f"time: {_tally(found)}."
    ]


def _weights(sweep: Sweep) -> list[str]:
    """Whether weights by age help beyond late updates that are age-blind."""
    found = weights_help(sweep)
    said = []
    for method in dict.fromkeys(one.method for one in found):
        own = [one for one in found if one.method == method]
        said.append(
            f"{method_label(method)} against {method_label(SAME_IN_TIME[method])}, "
            f"where updates are late: {_each(own, with_method=False)}."
        )
    return said


def _quorum(sweep: Sweep) -> list[str]:
    """Whether a quorum beats the fixed deadline."""
    found = quorum_helps(sweep)
    return [
        f"{setting.label}, against the fixed deadline at the same simulated time: "
        f"{_each([one for one in found if one.setting == setting], with_method=True)}."
        for setting in dict.fromkeys(one.setting for one in found)
    ]


_SAID = {
    "better": "lower",
    "worse": "higher",
    "same": "no difference told",
    "unsure": "not told apart",
    "unknown": "not told apart by one seed",
}


def _tally(found: Sequence[Duel]) -> str:
    """Counts by outcome; names where it is worse."""
    parts = []
    for outcome, word in _SAID.items():
        own = [one for one in found if one.outcome == outcome]
        if not own:
            continue
        changes = [d.difference.mean for d in own if d.difference is not None]
        span = f" ({_span(changes)})" if changes else ""
        where = ""
        if outcome == "worse":
            names = [f"{method_label(d.method)} in {d.setting.place}" for d in own]
            where = f", namely {series(names)}"
        parts.append(f"{word} in {len(own)} of {len(found)} comparisons{span}{where}")
    return ", ".join(parts)


def _each(found: Sequence[Duel], *, with_method: bool) -> str:
    """Every difference with its outcome."""
    parts = []
    for outcome, word in _SAID.items():
        own = [one for one in found if one.outcome == outcome]
        names = [
            f"{method_label(one.method) if with_method else one.setting.label} "
            f"({'NaN' if one.difference is None else change(one.difference.mean)})"
            for one in own
        ]
        if names:
            parts.append(f"{word} {'with' if with_method else 'in'} {series(names)}")
    return ". ".join(f"{part[0].upper()}{part[1:]}" for part in parts)


def _span(values: Sequence[float]) -> str:
    """One number, or the range of several, with signs."""
    low, high = change(min(values)), change(max(values))
    return low if low == high else f"{low} to {high}"
