"""A plan as text for the screen, and as what JSON can hold."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from spheroid_jax.reports.published import Published
from spheroid_jax.reports.tables import Table, si
from spheroid_jax.serving.planner.cluster import GIB, Cluster
from spheroid_jax.serving.planner.placement import Placed
from spheroid_jax.serving.planner.predict import Prediction
from spheroid_jax.serving.planner.size import ModelSize


def number(value: float) -> str:
    """Three digits, never as a power of ten below a million.

    >>> number(0.01234), number(358.13), number(5949.7), number(0.0)
    ('0.0123', '358', '5950', '0')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"


def size_line(size: ModelSize) -> str:
    """What is planned for, in one line."""
    count, unit = size.parameters / 1e6, "M"
    if count >= 1e3:
        count, unit = count / 1e3, "B"
    return (
        f"{count:.4g} {unit} parameters of {size.parameter_bytes} bytes "
        f"({si(size.parameters * size.parameter_bytes, 'B')}): width {size.width}, "
        f"{size.layers} layers in {size.blocks} blocks, {size.places} places"
    )


def placement_table(placed: Sequence[Placed]) -> Table:
    """Memory of each host in GiB."""
    rows = [
        [
            part.host.name,
            _run(part),
            *(
                number(value / GIB)
                for value in (part.parameters, part.cache, part.activations, part.total)
            ),
            number(part.host.memory),
            f"{part.share:.0%}",
        ]
        for part in placed
    ]
    header = ("host", "blocks", "parameters", "cache", "activations", "GiB", "of GiB")
    return Table((*header, "used"), rows, "llrrrrrr")


def prediction_table(predictions: Sequence[Prediction]) -> Table:
    """One row a method."""
    rows = [
        [
            each.kind,
            each.method,
            number(each.trips),
            number(each.bytes_per_trip),
            si(max(each.sent), "B"),
            number(1e3 * sum(each.compute)),
            number(1e3 * sum(each.network)),
            number(1e3 * each.trip_seconds),
            number(each.rate),
            number(each.full_rate),
        ]
        for each in predictions
    ]
    full = f"bytes/s, {predictions[0].concurrency} at once"
    header = (
        *("model", "method", "trips", "bytes a trip", "widest link"),
        *("compute ms", "network ms", "trip ms", "bytes/s", full),
    )
    return Table(header, rows, "ll" + "r" * 8)


def paper_table(predictions: Sequence[Prediction], numbers: Published) -> Table | None:
    """The paper's serving rows beside ours; None if ours lack one of the two."""
    found = {(each.kind, each.method): each for each in predictions}
    token = found.get(("autoregressive", "token"))
    sweep = found.get(("blocktrain", "one_sweep:expected"))
    if token is None or sweep is None:
        return None
    published = numbers.of("plan")
    slow, fast = (published[name].numbers for name in ("token", "one_sweep"))
    compared = {
        "one sweep, tokens/s": (sweep.rate, fast["throughput"]),
        "token-by-token pipeline, tokens/s": (token.rate, slow["throughput"]),
        "ratio": (sweep.rate / token.rate, fast["throughput"] / slow["throughput"]),
        "output bytes a trip": (sweep.bytes_per_trip, fast["a trip"]),
    }
    rows = [
        [what, number(ours), number(theirs), f"{100 * (ours / theirs - 1):+.1f}%"]
        for what, (ours, theirs) in compared.items()
    ]
    return Table(("", "planned", "paper", "difference"), rows, "lrrr")


def as_json(
    size: ModelSize,
    cluster: Cluster,
    placed: Sequence[Placed],
    predictions: Sequence[Prediction],
) -> dict[str, Any]:
    """The plan in seconds, bytes and bytes per second; rates without bound are null."""
    links = [
        {"latency": link.latency, "rate": _finite(link.rate)} for link in cluster.links
    ]
    return {
        "size": dataclasses.asdict(size) | {"parameters": size.parameters},
        "hosts": [dataclasses.asdict(host) for host in cluster.hosts],
        "links": links,
        "frontend": cluster.frontend,
        "placement": [
            {
                "host": part.host.name,
                "first": part.first,
                "blocks": part.blocks,
                "parameters": part.parameters,
                "cache": part.cache,
                "activations": part.activations,
                "total": part.total,
                "share": part.share,
            }
            for part in placed
        ],
        "methods": [
            dataclasses.asdict(each) | {"trip_seconds": each.trip_seconds}
            for each in predictions
        ],
    }


def _run(part: Placed) -> str:
    last = part.first + part.blocks - 1
    return str(part.first) if part.blocks == 1 else f"{part.first}-{last}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
