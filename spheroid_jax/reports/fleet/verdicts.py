"""Sentences made from the numbers of a run of kind ``fleet``, and nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any

from spheroid_jax.reports.delays.names import listing
from spheroid_jax.reports.tables import duration, si

Row = Mapping[str, Any]
Summary = Mapping[str, Any]

LABELS = {"drop": "drop", "gate": "gate", "quorum": "quorum + grace"}


def verdicts(summary: Summary) -> list[str]:
    """What the tables say, sentence by sentence.

    Args:
      summary: as :func:`spheroid_jax.runs.fleet.experiment.run_fleet` makes it.
    """
    return [
        replicas_sentence(summary),
        participation_sentence(summary),
        *throughput_sentence(summary),
        staleness_sentence(summary),
        line_sentence(summary),
        cost_sentence(summary),
        *short_sentence(summary),
        "No figure of a paper stands beside these: none is published at this scale.",
    ]


def replicas_sentence(summary: Summary) -> str:
    """How many replicas a block needs, by policy."""
    settings = summary["config"]["fleet"]
    needed, largest = settings["needed"], settings["largest_group"]
    parts = []
    for row in summary["rows"]:
        most = how_many(row["timely"]["replicas"], largest)
        text = f"{most} with {LABELS[row['policy']]}"
        fresh = how_many(row["timely_fresh"]["replicas"], largest)
        if fresh != most:
            text += f" ({fresh} if late updates don't count)"
        parts.append(text)
    updates = "an update" if needed == 1 else f"{needed} updates"
    return (
        f"For {updates} in at least {settings['timely']:.0%} of its rounds a block "
        f"needs so many registered replicas of this mix: {listing(parts)}."
    )


def participation_sentence(summary: Summary) -> str:
    """What became of the updates begun."""
    rows = summary["rows"]
    online = [row["online_share"] for row in rows]
    parts = [
        f"{row['accepted_of_begun']:.1%} with {LABELS[row['policy']]}"
        + ("" if row["accepted"] == row["fresh"] else f" ({_fresh(row)} on time)")
        for row in rows
    ]
    spans = [_span(row) for row in rows]
    return (
        f"Of {summary['workers']:,} workers {sum(online) / len(online):.1%} are there "
        f"at a time. Of the updates they begin are accepted: {listing(parts)}; blocks "
        f"differ by at most {100 * max(spans):.2g} points."
    )


def throughput_sentence(summary: Summary) -> list[str]:
    """Accepted updates per hour, against ``drop``."""
    rates = {r["policy"]: r["accepted"] / r["hours"] for r in summary["rows"]}
    if "drop" not in rates or len(rates) == 1:
        return []
    others = [
        f"{rates[name] / rates['drop']:.2f} times as many with {LABELS[name]}"
        for name in rates
        if name != "drop"
    ]
    useful = [
        f"{row['useful_share']:.1%} ({LABELS[row['policy']]})"
        for row in summary["rows"]
    ]
    return [
        f"In an hour {si(rates['drop'])} updates are accepted with drop, and "
        f"{listing(others)}. Of the time that workers are there, accepted updates are "
        f"{listing(useful)}."
    ]


def staleness_sentence(summary: Summary) -> str:
    """How old accepted updates are."""
    parts = []
    for row in summary["rows"]:
        late = 1 - row["ages"][0] / max(1, sum(row["ages"]))
        oldest = max((age for age, n in enumerate(row["ages"]) if n), default=0)
        parts.append(
            f"{LABELS[row['policy']]} {late:.1%}, mean age {row['mean_age']:.2f}, "
            f"oldest {oldest}"
        )
    return f"Late among the accepted (ages in rounds): {'; '.join(parts)}."


def line_sentence(summary: Summary) -> str:
    """What the coordinator's line carries."""
    parts = []
    for row in summary["rows"]:
        c = row["coordinator"]
        parts.append(
            f"{LABELS[row['policy']]} {si(c['out']['mean_bits_per_second'], 'bit/s')} "
            f"out and {si(c['in']['mean_bits_per_second'], 'bit/s')} in"
        )
    return (
        "One coordinator for all would carry on average: "
        f"{'; '.join(parts)}. The clock doesn't make workers wait for its line."
    )


def cost_sentence(summary: Summary) -> str:
    """What the simulation took."""
    walls = [row["simulated_in"]["seconds"] for row in summary["rows"]]
    cpus = [row["simulated_in"]["cpu_seconds"] for row in summary["rows"]]
    hours = summary["config"]["fleet"]["hours"]
    return (
        f"{si(summary['workers'])} workers over {hours:g} hours were simulated in "
        f"{duration(max(walls))} of the clock at most for a policy, compiling "
        f"included; {duration(sum(walls))} for all, {duration(sum(cpus))} of CPU time."
    )


def short_sentence(summary: Summary) -> list[str]:
    """Policies whose rounds are so short that the day wasn't reached."""
    hours = summary["config"]["fleet"]["hours"]
    short = [
        f"{LABELS[row['policy']]} after {row['hours']:.3g} hours"
        for row in summary["rows"]
        if row["hours"] < hours * 0.999
    ]
    return [f"Ended by the number of rounds: {listing(short)}."] if short else []


def how_many(replicas: int | None, largest: int) -> str:
    """A number of replicas, or that it wasn't found."""
    return f"more than {largest}" if replicas is None else str(replicas)


def shares(counts: Sequence[int], of: Sequence[int]) -> list[float]:
    """Elementwise ratios; nothing of nothing is zero."""
    return [a / b if b else 0.0 for a, b in zip(counts, of, strict=True)]


def _fresh(row: Row) -> str:
    return f"{row['fresh_of_begun']:.1%}"


def _span(row: Row) -> float:
    found = shares(row["per_block"]["accepted"], row["per_block"]["begun"])
    return max(found) - min(found)
