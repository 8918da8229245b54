"""What a front end counts, as Prometheus metrics.

Labels are words of a fixed list and numbers of stages, as many as the command line
names, so the number of series is bounded. Addresses are for logs.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OUTCOMES = (
    *("ok", "refused", "unauthorized", "busy", "cancelled", "timeout"),
    *("unavailable", "broken"),
)
# Why a text was begun anew, or a trip repeated.
RETRIES = ("busy", "lost", "peer", "late", "refused", "broken", "gone", "silent")
_SECONDS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    *(120.0, 300.0),
)
_TRIPS_PER_BYTE = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 2.0)


class StageSample(NamedTuple):
    """A stage as it is now.

    Attributes:
      block: that it holds; empty while that isn't known.
      replica: which of those with this block; of an unknown one, of all.
      up: whether it is used.
      slots: of its cache; 0 while it isn't known.
      slots_free: of them, as it said last.
      queue: sweeps that waited there, as it said last.
    """

    block: str
    replica: str
    up: bool
    slots: int
    slots_free: int
    queue: int


class Now(NamedTuple):
    """What is there to see at this moment."""

    waiting: int
    inside: int
    capacity: int
    stages: tuple[StageSample, ...]


class Metrics:
    """Counters and histograms of a front end.

    Args:
      now: what there is to see, whenever it is asked for.
    """

    def __init__(self, now: Callable[[], Now]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        registry = self.registry
        self.requests = Counter(
            "spheroid_serving_requests",
            "Requests that ended, by how.",
            ["outcome"],
            registry=registry,
        )
        self.bytes_in = Counter(
            "spheroid_serving_prompt_bytes",
            "Bytes of prompts that were read.",
            registry=registry,
        )
        self.bytes_out = Counter(
            "spheroid_serving_output_bytes",
            "Bytes of output that were decided.",
            registry=registry,
        )
        self.trips = Counter(
            "spheroid_serving_trips",
            "Sweeps through all stages that came back.",
            registry=registry,
        )
        self.retries = Counter(
            "spheroid_serving_retries",
            "Trips that had to be made again, by why.",
            ["why"],
            registry=registry,
        )
        self.first = Histogram(
            "spheroid_serving_first_byte_seconds",
            "From a request to its first bytes.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.whole = Histogram(
            "spheroid_serving_request_seconds",
            "From a request to its last byte.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.trips_per_byte = Histogram(
            "spheroid_serving_trips_per_byte",
            "Trips for each byte of a text.",
            buckets=_TRIPS_PER_BYTE,
            registry=registry,
        )
        for outcome in OUTCOMES:
            self.requests.labels(outcome)
        for why in RETRIES:
            self.retries.labels(why)
        registry.register(_Moment(now))

    def exposition(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)


class _Moment(Collector):
    def __init__(self, now: Callable[[], Now]) -> None:
        self._now = now

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        now = self._now()
        for name, about, value in (
            ("queue", "Texts that wait for a place.", now.waiting),
            ("in_flight", "Texts that are being written.", now.inside),
            ("capacity", "Texts that may be written at once.", now.capacity),
        ):
            metric = GaugeMetricFamily(f"spheroid_serving_{name}", about)
            metric.add_metric([], value)
            yield metric
        for name, about in (
            ("up", "Whether a stage is used."),
            ("slots", "Texts that a stage can hold."),
            ("slots_free", "Texts that it could take, as it said last."),
            ("queue", "Sweeps that waited there, as it said last."),
        ):
            metric = GaugeMetricFamily(
                f"spheroid_serving_stage_{name}", about, labels=["block", "replica"]
            )
            for stage in now.stages:
                number = float(getattr(stage, name))
                metric.add_metric([stage.block, stage.replica], number)
            yield metric
