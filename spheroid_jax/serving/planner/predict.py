"""How fast it will be: seconds of a trip by roofline and link, bytes per second."""

import dataclasses
import math
from collections.abc import Sequence

from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.planner.cluster import Cluster, Link
from spheroid_jax.serving.planner.itinerary import Request, Trip, itinerary
from spheroid_jax.serving.planner.placement import Placed
from spheroid_jax.serving.planner.size import ModelSize


@dataclasses.dataclass(frozen=True)
class Wire:
    """What travels beside the bytes.

    Attributes:
      float_bytes: of a number of the state: 4 float32, 2 half precision.
      ensemble: whether log-probabilities are summed on the way.
      header: bytes of a frame that are neither state nor text.
    """

    float_bytes: int = 4
    ensemble: bool = False
    header: int = 256


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a request of one method takes.

    Attributes:
      kind: of the model.
      method: as :class:`Method` writes it.
      trips: of a request, on average.
      bytes_per_trip: of output.
      sent: bytes over each link in an average trip, front end to front end.
      compute: seconds of an average trip on each host.
      network: seconds of it on each link.
      frontend: seconds of it in the front end.
      seconds: of the whole request, alone in the pipeline.
      rate: output bytes per second of one request after the other.
      full_rate: of ``concurrency`` requests at a time.
      concurrency: how many.
      batch: rows of a step at which ``full_rate`` is reached.
    """

    kind: str
    method: str
    trips: float
    bytes_per_trip: float
    sent: tuple[float, ...]
    compute: tuple[float, ...]
    network: tuple[float, ...]
    frontend: float
    seconds: float
    rate: float
    full_rate: float
    concurrency: int
    batch: int

    @property
    def trip_seconds(self) -> float:
        """Seconds of an average trip."""
        return sum(self.compute) + sum(self.network) + self.frontend


def predict(
    size: ModelSize,
    cluster: Cluster,
    placed: Sequence[Placed],
    request: Request,
    *,
    concurrency: int = 1,
    max_batch: int = 8,
    wire: Wire | None = None,
) -> Prediction:
    """Predicts one method on placed blocks.

    A pipeline full of requests is bound by what each of them waits for, or by what the
    busiest host or link has to do for all of them; steps take rows together as far as
    that helps.

    Args:
      size: of the model; an autoregressive one decodes ``token`` only.
      cluster: hosts and links.
      placed: from :func:`placement.place`.
      request: what is asked for.
      concurrency: requests in flight, for ``full_rate``.
      max_batch: rows of a step, at most.
      wire: what travels.
    """
    if size.kind == "autoregressive" and request.method.name != "token":
        raise ServingError(
            f"method is {request.method}; an autoregressive model decodes token only"
        )
    for name, value in (("concurrency", concurrency), ("max_batch", max_batch)):
        if not isinstance(value, int) or value < 1:
            raise ServingError(f"{name} is {value!r}; give a whole number from 1")
    wire = wire or Wire()
    trips = itinerary(request, size.places)
    number = sum(trip.times for trip in trips)
    sent = _mean(trips, [_sent(size, trip, wire, len(placed)) for trip in trips])
    compute = _compute(size, placed, trips, 1)
    network = tuple(
        link.seconds(load) for link, load in zip(cluster.links, sent, strict=True)
    )
    seconds = number * (sum(compute) + sum(network) + cluster.frontend)
    full, batch = _full(size, cluster, placed, trips, sent, concurrency, max_batch)
    return Prediction(
        kind=size.kind,
        method=str(request.method),
        trips=number,
        bytes_per_trip=request.output / number,
        sent=sent,
        compute=compute,
        network=network,
        frontend=cluster.frontend,
        seconds=seconds,
        rate=request.output / seconds,
        full_rate=request.output * full,
        concurrency=concurrency,
        batch=batch,
    )


def latency_for(prediction: Prediction, output: int, rate: float) -> float:
    """Seconds one way of every link at which the prediction would be ``rate``.

    Args:
      prediction: over links without latency, so that its network is the bytes' own.
      output: bytes of the request.
      rate: output bytes per second that are to come out.

    Raises:
      ServingError: it is slower than that without any latency.
    """
    left = (output / rate - prediction.seconds) / prediction.trips
    if left < 0:
        raise ServingError(
            f"{rate:g} bytes/s take {output / rate:.3g} s a request, but computing "
            f"alone takes {prediction.seconds:.3g} s: give faster hosts"
        )
    return left / len(prediction.network)


def step_seconds(
    size: ModelSize, part: Placed, rows: int, positions: int, drafts: int = 0
) -> float:
    """Seconds of a step of ``rows`` rows on one host.

    ``drafts`` are passes of single positions through its first block, which one
    program makes: each costs the host's ``launch`` in place of its ``overhead``.
    """
    whole = size.interfaces(part.blocks)  # stages of one block, or a single stage
    blocks = part.blocks // whole
    host, padded = part.host, size.bucket(positions)
    seconds = whole * host.seconds(
        size.step_flops(blocks, rows, padded), size.step_bytes(blocks, rows)
    )
    if drafts and part.first == 0:
        one = host.seconds(size.step_flops(1, rows, 1), size.step_bytes(1, rows))
        seconds += drafts * (one - host.overhead + host.launch)
    return seconds


def _sent(size: ModelSize, trip: Trip, wire: Wire, hosts: int) -> tuple[float, ...]:
    """Bytes over each link."""
    rows, blocks = trip.positions, size.kind == "blocktrain"
    numbers = rows * size.width * (2 if trip.fill == "expected" else 1)
    # Of positions that decide a byte: the first block's logits, and the sum of all.
    drafts = blocks and trip.fill != "written"
    numbers += trip.back * size.vocabulary * (drafts + (blocks and wire.ensemble))
    # Drafts that are verified come back beside what was drawn.
    back = trip.back + (trip.drafts if trip.fill == "drafted" else 0)
    between = wire.header + rows + numbers * wire.float_bytes
    return (wire.header + rows, *[between] * (hosts - 1), wire.header + back)


def _mean(
    trips: Sequence[Trip], values: Sequence[tuple[float, ...]]
) -> tuple[float, ...]:
    """Over all trips of a request, column by column."""
    number = sum(trip.times for trip in trips)
    weighted = [
        [trip.times * value for value in row]
        for trip, row in zip(trips, values, strict=True)
    ]
    return tuple(sum(column) / number for column in zip(*weighted, strict=True))


def _compute(
    size: ModelSize, placed: Sequence[Placed], trips: Sequence[Trip], rows: int
) -> tuple[float, ...]:
    """Seconds of an average trip on each host, with so many rows in a step."""
    return _mean(
        trips,
        [
            tuple(
                step_seconds(size, part, rows, trip.positions, trip.drafts)
                for part in placed
            )
            for trip in trips
        ],
    )


def _full(
    size: ModelSize,
    cluster: Cluster,
    placed: Sequence[Placed],
    trips: Sequence[Trip],
    sent: tuple[float, ...],
    concurrency: int,
    max_batch: int,
) -> tuple[float, int]:
    """Requests per second of a full pipeline, and the rows of its steps."""
    number = sum(trip.times for trip in trips)
    wires = [_busy(link, load) for link, load in zip(cluster.links, sent, strict=True)]
    best = (0.0, 1)
    most = min(concurrency, max_batch)
    for rows in (1 << n for n in range(most.bit_length())):
        compute = _compute(size, placed, trips, rows)
        alone = sum(compute) + cluster.latency + sum(wires) + cluster.frontend
        busiest = max([*wires, cluster.frontend, *(own / rows for own in compute)])
        trip = max(alone / concurrency, busiest)  # seconds between two that end
        rate = 1 / (number * trip) if trip else math.inf
        if rate > best[0]:
            best = (rate, rows)
    return best


def _busy(link: Link, size: float) -> float:
    return size / link.rate
