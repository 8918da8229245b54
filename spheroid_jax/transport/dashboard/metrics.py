"""The status as Prometheus metrics.

All is read from the coordinator's status when it is asked for: nothing is counted
here, so nothing is counted twice. Labels are blocks and words of a fixed list, never
what a worker says, so the number of series is bounded; ``/status`` tells of workers.

Counters (``_total``, and the histogram) start from zero with each process, as
Prometheus expects of them. The run's own totals, which are gauges here, don't: after a
crash they go on from the last closed round, a little below where they were, and
``rate()`` of such a counter would take all of it for new.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RUN_STATES = ("waiting", "open", "closing", "finished", "draining")
WORKER_STATES = (
    "starting",
    "waiting",
    "fetching",
    "training",
    "sending",
    "late",
    "gone",
)
DIRECTIONS = ("down", "up")
VERDICTS = ("accepted", "late", "rejected")
_AGES = 16  # buckets of the histogram of ages; older ones share the last
_BLOCKS = 1024  # that have series of their own

Samples = Iterable[tuple[str, Any]]


class Counted(NamedTuple):
    """What a run has counted so far.

    Attributes:
      bytes: by direction.
      updates: by verdict.
      ages: how many accepted updates were so many rounds old.
    """

    bytes: dict[str, float]
    updates: dict[str, float]
    ages: list[float]

    def since(self, before: "Counted") -> "Counted":
        """What of it is new; never below zero."""

        def new(now: dict[str, float], old: dict[str, float]) -> dict[str, float]:
            return {key: max(0.0, now[key] - old.get(key, 0.0)) for key in now}

        ages = itertools.zip_longest(self.ages, before.ages, fillvalue=0.0)
        return Counted(
            new(self.bytes, before.bytes),
            new(self.updates, before.updates),
            [max(0.0, now - old) for now, old in ages],
        )


_NOTHING = Counted({}, {}, [])


def counted(status: dict[str, Any]) -> Counted:
    """What a status counts; a number that isn't known is left out."""
    workers = status.get("workers", [])
    # The coordinator's totals, where it has them, outlive workers that are forgotten.
    updates = status.get("updates") or {
        verdict: sum(worker.get(verdict) or 0 for worker in workers)
        for verdict in VERDICTS
    }
    return Counted(
        _known(DIRECTIONS, status.get("bytes", {})),
        _known(VERDICTS, updates),
        [_number(count) or 0.0 for count in status.get("staleness", [])],
    )


def exposition(status: dict[str, Any], before: Counted = _NOTHING) -> bytes:
    """A status in Prometheus' text format.

    Args:
      status: of this moment.
      before: what the run had counted when this process took it up.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(status, before))
    return generate_latest(registry)


class StatusCollector(Collector):
    """What a status says, as metrics. A number that isn't known has no sample."""

    def __init__(self, status: dict[str, Any], before: Counted = _NOTHING):
        self._status, self._before = status, before

    def describe(self) -> list[Metric]:
        """Nothing: the registry needs no names beforehand."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        status = self._status
        yield from _run(status)
        yield from _blocks(status.get("blocks", [])[:_BLOCKS])
        yield _workers(status.get("workers", []))
        yield from _totals(counted(status), self._before)
        yield from _evaluation(status.get("ce", []))
        yield from _last_round(status.get("rounds_log", []))


def _run(status: dict[str, Any]) -> Iterator[Metric]:
    names = {key: str(status.get(key, "")) for key in ("run", "name", "size")}
    yield InfoMetricFamily("spheroid_run", "The run.", value=names)
    states = {state: status.get("state") == state for state in RUN_STATES}
    yield StateSetMetricFamily("spheroid_state", "What the coordinator does.", states)
    for name, key, about in (
        ("spheroid_round", "round", "Round of the newest model."),
        ("spheroid_rounds_planned", "rounds", "Rounds of the whole run."),
        ("spheroid_run_seconds", "time", "Time since the start."),
        ("spheroid_round_open_seconds", "opened_seconds", "Age of the open round."),
        ("spheroid_round_deadline_seconds", "deadline", "Time a round has."),
    ):
        yield _gauge(name, about, [("", status.get(key))])
    yield _gauge(
        "spheroid_writable",
        "Whether the coordinator's disk takes what has to be written: 1 or 0.",
        [("", status.get("writable"))],
    )


def _blocks(blocks: list[dict[str, Any]]) -> Iterator[Metric]:
    for name, key, about in (
        (
            "spheroid_participation_ratio",
            "participation",
            "Share of a block's slots heard over the last rounds.",
        ),
        ("spheroid_block_workers", "workers", "Workers of a block."),
        ("spheroid_block_heard", "heard", "Updates of a block in the open round."),
        (
            "spheroid_block_last_trained_round",
            "last_trained",
            "Newest round with an update of the block.",
        ),
    ):
        samples = [(str(block.get("block")), block.get(key)) for block in blocks]
        yield _gauge(name, about, samples, "block")


def _workers(workers: list[dict[str, Any]]) -> Metric:
    counts = dict.fromkeys((*WORKER_STATES, "other"), 0)
    for worker in workers:
        state = worker.get("state")
        counts[state if state in WORKER_STATES else "other"] += 1
    return _gauge("spheroid_workers", "Workers.", counts.items(), "state")


def _totals(run: Counted, before: Counted) -> Iterator[Metric]:
    new = run.since(before)
    about = "Bytes over the wire"
    yield _counter("spheroid_bytes", about, new.bytes, "direction")
    about += ", in the whole run."
    yield _gauge("spheroid_run_bytes", about, run.bytes.items(), "direction")
    about = "Updates by what became of them"
    yield _counter("spheroid_updates", about, new.updates, "verdict")
    about += ", in the whole run."
    yield _gauge("spheroid_run_updates", about, run.updates.items(), "verdict")
    yield _staleness(new.ages)


def _staleness(counts: list[float]) -> Metric:
    below = list(itertools.accumulate(counts))
    buckets = [(f"{age}.0", count) for age, count in enumerate(below[:_AGES])]
    everything = below[-1] if below else 0.0
    metric = HistogramMetricFamily(
        "spheroid_staleness_rounds",
        "Age of updates in the rounds closed by this process, in rounds.",
    )
    ages = sum(age * count for age, count in enumerate(counts))
    metric.add_metric([], [*buckets, ("+Inf", everything)], ages)
    return metric


def _evaluation(evaluations: list[dict[str, Any]]) -> Iterator[Metric]:
    newest = evaluations[-1] if evaluations else {}
    kinds = [(kind, newest.get(f"ce_{kind}")) for kind in ("chain", "ensemble")]
    about = "Cross-entropy of the newest evaluation, in nats a byte."
    yield _gauge("spheroid_ce_nats", about, kinds, "kind")
    about = "Round of the newest evaluation."
    yield _gauge("spheroid_ce_round", about, [("", newest.get("round"))])


def _last_round(log: list[dict[str, Any]]) -> Iterator[Metric]:
    newest = log[-1] if log else {}
    about = "Time that the newest closed round took."
    yield _gauge("spheroid_last_round_seconds", about, [("", newest.get("seconds"))])
    kinds = [(kind, newest.get(kind)) for kind in ("heard", "expected")]
    about = "Updates of the newest closed round."
    yield _gauge("spheroid_last_round_updates", about, kinds, "kind")


def _gauge(name: str, about: str, samples: Samples, label: str = "") -> Metric:
    metric = GaugeMetricFamily(name, about, labels=[label] if label else [])
    for value_of, value in samples:
        _add(metric, value_of, value)
    return metric


def _counter(name: str, about: str, counts: dict[str, float], label: str) -> Metric:
    about += ", since this coordinator started."
    metric = CounterMetricFamily(name, about, labels=[label])
    for value_of, value in counts.items():
        _add(metric, value_of, value)
    return metric


def _add(
    metric: CounterMetricFamily | GaugeMetricFamily, label: str, value: Any
) -> None:
    number = _number(value)
    if number is not None:
        metric.add_metric([label] if label else [], number)


def _known(keys: Iterable[str], values: dict[str, Any]) -> dict[str, float]:
    numbers = {key: _number(values.get(key)) for key in keys}
    return {key: number for key, number in numbers.items() if number is not None}


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
