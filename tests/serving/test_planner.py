"""The planner against hand arithmetic, the models themselves and the real decoder."""

import dataclasses
import itertools
import math
import random
from typing import Any

import jax
import numpy as np
import pytest

from spheroid_jax.models import (
    Autoregressive,
    BlockDenoiser,
    InterfaceShape,
    TransformerShape,
)
from spheroid_jax.serving.decoding import Method
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.planner import (
    GIB,
    Cluster,
    Host,
    Load,
    ModelSize,
    Request,
    Wire,
    itinerary,
    latency_for,
    place,
    placed_on,
    predict,
    presets,
    step_seconds,
)
from spheroid_jax.serving.stages import Stage
from spheroid_jax.serving.wire.codec import pack
from spheroid_jax.serving.wire.messages import Result, StageSeconds, Sweep

SIZE = ModelSize(16, 6, 3, 2, 64, 32)
HOST = Host("a", memory=1.0, bandwidth=10.0, flops=0.001, overhead=0.002)
HOSTS = tuple(dataclasses.replace(HOST, name=name) for name in "abc")


def real(size: ModelSize) -> Any:
    """The model of a size."""
    noisy = size.kind == "blocktrain"
    here = size.layers // size.blocks if noisy else size.layers
    layers = TransformerShape(size.width, size.heads, size.mlp_width, here)
    head = "tied" if size.tied else "untied"
    interface = InterfaceShape(size.width, size.places, noisy=noisy, head=head)
    return (BlockDenoiser if noisy else Autoregressive)(layers, interface)


def stages(size: ModelSize) -> list[Stage]:
    grid = tuple(np.linspace(9, 2, size.blocks)) if size.kind == "blocktrain" else ()
    return [Stage(real(size), b, size.blocks, grid) for b in range(size.blocks)]


def request(method: str, output: int = 24, prompt: int = 3, right: float = 0.0) -> Any:
    return Request(prompt, output, Method.parse(method), right)


@pytest.mark.parametrize("kind", ["blocktrain", "autoregressive"])
@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_those_of_the_model(kind: str, tied: bool) -> None:
    size = dataclasses.replace(SIZE, kind=kind, tied=tied)
    model = real(size)
    args = (size.blocks,) if kind == "blocktrain" else ()
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), *args))
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert size.parameters == count
    interface = sum(leaf.size for leaf in jax.tree.leaves(params["interface"]))
    assert size.interface_parameters == interface
    # What a stage of each kind loads: its part, and the interface.
    part = jax.eval_shape(
        lambda: stages(size)[1].part(model.init(jax.random.key(0), *args))
    )
    assert size.stage_bytes(1) == 4 * sum(leaf.size for leaf in jax.tree.leaves(part))


@pytest.mark.parametrize("kind", ["blocktrain", "autoregressive"])
def test_cache_and_flops_are_those_of_the_stages(kind: str) -> None:
    size = SIZE.as_kind(kind)
    first, middle, _ = stages(size)
    cache = jax.eval_shape(lambda: middle.init_cache(5))
    assert size.cache_bytes(1, 5) == 4 * sum(x.size for x in jax.tree.leaves(cache))
    if kind == "blocktrain":
        assert size.step_flops(1, 3, 8) == 3 * first.flops(8) == 3 * middle.flops(8)
    else:  # A plan has one pair of ends a host; a stage in the middle has none.
        ends = 8 * (2 * 16**2 + 2 * 16 * 256)
        assert size.step_flops(1, 1, 8) == middle.flops(8) + ends


def test_the_papers_shape_has_its_parameters_within_a_thousandth() -> None:
    size, d = presets.PAPER, 10240
    layers = 3 * 20 * (12 * d**2 + 13 * d)
    interface = 2 * d**2 + (256 + 2048 + 32 + 2 + 256) * d + 256
    assert (size.blocks, size.parameters) == (3, layers + interface)
    assert size.parameters == pytest.approx(75.80e9, rel=1e-3)
    # One block's weights in half precision, and the interface: 47 of 80 GiB.
    block = 2 * (20 * (12 * d**2 + 13 * d) + interface)
    assert size.stage_bytes(1) == block
    assert 47 < block / GIB < 48


def test_memory_of_a_host_is_counted_out() -> None:
    part = placed_on(SIZE, HOST, 0, 2, Load(slots=4, max_batch=2, positions=5))
    layer = 12 * 16**2 + 13 * 16
    interface = 2 * 16**2 + (256 + 32 + 32 + 2 + 256) * 16 + 256
    assert part.parameters == 4 * (4 * layer + 2 * interface)
    assert part.cache == 4 * 4 * 2 * 32 * 16 * 4  # slots layers k+v T d bytes
    # 5 positions are computed as 8.
    position = (8 * 16 + 64) * 4 + 4 * 2 * 32 + 8 * 256
    assert part.activations == 2 * (2 * 8 * position)
    assert part.total == part.parameters + part.cache + part.activations
    assert part.share == part.total / GIB
    # One stage of the other kind holds all its layers and one interface.
    other = placed_on(SIZE.as_kind("autoregressive"), HOST, 0, 2, Load())
    assert other.parameters == 4 * (4 * layer + interface - 16**2 - 32 * 16)


def test_equal_hosts_get_equal_runs() -> None:
    size = dataclasses.replace(SIZE, layers=12, blocks=6)
    placed = place(size, Cluster.even(HOSTS, 0.0), Load())
    assert [(p.host.name, p.first, p.blocks) for p in placed] == [
        ("a", 0, 2),
        ("b", 2, 2),
        ("c", 4, 2),
    ]


@pytest.mark.parametrize("seed", range(8))
def test_no_other_placement_leaves_the_fullest_host_emptier(seed: int) -> None:
    rng = random.Random(seed)
    blocks, load = 7, Load(slots=2)
    size = dataclasses.replace(SIZE, layers=blocks, blocks=blocks)
    hosts = [
        dataclasses.replace(HOST, name=str(n), memory=rng.uniform(0.01, 0.1))
        for n in range(rng.randint(1, 4))
    ]

    def fullest(ends: tuple[int, ...]) -> float:
        cuts = (0, *ends, blocks)
        runs = zip(hosts, itertools.pairwise(cuts), strict=True)
        return max(placed_on(size, h, a, b - a, load).share for h, (a, b) in runs)

    cuts = itertools.combinations(range(1, blocks), len(hosts) - 1)
    best = min(map(fullest, cuts))
    assert best < 1
    placed = place(size, Cluster.even(hosts, 0.0), load)
    assert max(part.share for part in placed) == best
    assert sum(part.blocks for part in placed) == blocks


def test_what_does_not_fit_is_refused_with_what_is_missing() -> None:
    load = Load(slots=1000)
    need = placed_on(SIZE, HOST, 0, 1, load).total / GIB
    hosts = [dataclasses.replace(h, memory=need / 4) for h in HOSTS[:2]]
    cluster = Cluster.even([*hosts, HOSTS[2]], 0.0)
    with pytest.raises(ServingError) as caught:
        place(SIZE, cluster, load)
    missing = f"{2 * 0.75 * need:.3g} GiB are missing"
    each = f"a lacks {0.75 * need:.3g}, b lacks {0.75 * need:.3g}"
    assert str(caught.value).startswith(f"{missing} ({each})")
    assert "\n" not in str(caught.value)
    # A host that holds it all alone needs no help.
    roomy = dataclasses.replace(HOST, memory=4 * need)
    assert len(place(SIZE, Cluster.even([roomy], 0.0), load)) == 1


def test_more_hosts_than_blocks_are_refused() -> None:
    hosts = [dataclasses.replace(HOST, name=str(n)) for n in range(5)]
    with pytest.raises(ServingError, match="5 hosts for 3 blocks; leave 2 out"):
        place(SIZE, Cluster.even(hosts, 0.0), Load())


def test_a_step_takes_the_longer_of_computing_and_reading() -> None:
    host = Host("x", 1, bandwidth=2.0, flops=3.0, overhead=0.5)
    assert host.seconds(6e12, 1e9) == 0.5 + 2.0
    assert host.seconds(3e12, 8e9) == 0.5 + 4.0
    # Blocks of BlockTrain are stages of their own, the layers of the other aren't.
    two = step_seconds(SIZE, placed_on(SIZE, HOST, 1, 2, Load()), 2, 5)
    one = 0.002 + SIZE.step_flops(1, 2, 8) / 1e9
    assert two == pytest.approx(2 * one)
    plain = SIZE.as_kind("autoregressive")
    whole = step_seconds(plain, placed_on(plain, HOST, 1, 2, Load()), 2, 5)
    assert whole == pytest.approx(0.002 + plain.step_flops(2, 2, 8) / 1e9)


@pytest.mark.parametrize(
    ("method", "right", "expected"),
    [
        # (positions, bytes back, fill, times) of 24 bytes after 3.
        ("token", 0.0, [(1, 1, "given", 23), (3, 1, "given", 1)]),
        ("one_sweep:expected", 0.0, [(26, 24, "expected", 1)]),
        ("one_sweep:drawn", 0.0, [(26, 24, "drawn", 1)]),
        ("one_sweep:drafted", 0.0, [(26, 24, "written", 1)]),
        ("windowed=10:expected", 0.0, [(12, 10, "expected", 1), (13, 4, "expected", 1),
                                       (19, 10, "expected", 1)]),
        # Every draft is right: 8 bytes a trip. None is: one byte a trip.
        ("speculative=8", 1.0, [(8, 8, "drafted", 2), (10, 8, "drafted", 1)]),
        ("speculative=1", 0.0, [(1, 1, "given", 23), (3, 1, "given", 1)]),
    ],
)  # fmt: skip
def test_trips_are_those_of_the_decoder(
    method: str, right: float, expected: list[tuple[Any, ...]]
) -> None:
    trips = itinerary(request(method, right=right), 32)
    assert [dataclasses.astuple(trip) for trip in trips] == expected


def test_speculation_brings_what_the_closed_form_says() -> None:
    """Leviathan et al. (arXiv 2211.17192), equation 1: (1 - a^w) / (1 - a)."""
    right, window, output = 0.7, 6, 600
    trips = itinerary(request(f"speculative={window}", output, right=right), 2048)
    number = sum(trip.times for trip in trips)
    expected = (1 - right**window) / (1 - right)
    assert output / number == pytest.approx(expected, rel=0.03)


def test_sweeps_make_as_many_trips_as_they_say() -> None:
    trips = itinerary(request("sweeps=4"), 32)
    assert sum(trip.times for trip in trips) == 4


def test_output_beyond_the_places_takes_segments() -> None:
    trips = itinerary(request("one_sweep:drawn", output=60), 32)
    assert sum(trip.times for trip in trips) > 1
    assert sum(trip.times * trip.back for trip in trips) == 60
    assert max(trip.positions for trip in trips) <= 32


def cluster(rtt: float = 0.04, rate: float = math.inf) -> Cluster:
    return Cluster.even(HOSTS, rtt, rate)


def test_a_request_is_the_sum_of_its_parts() -> None:
    wire = Wire(header=100)
    links = cluster(rate=1e6)
    placed = place(SIZE, links, Load())
    found = predict(SIZE, links, placed, request("one_sweep:expected"), wire=wire)
    # Bytes, state, soft embedding, logits of the first block.
    between = 100 + 26 + 2 * 26 * 16 * 4 + 24 * 256 * 4
    assert list(found.sent) == [126, between, between, 124]
    compute = 3 * (0.002 + SIZE.step_flops(1, 1, 32) / 1e9)
    network = 4 * 0.02 + (126 + 2 * between + 124) / 1e6
    assert found.seconds == pytest.approx(compute + network)
    assert found.rate == pytest.approx(24 / (compute + network))
    assert (found.trips, found.bytes_per_trip) == (1, 24)
    # Bytes one by one: a trip reads the prompt, all others a byte each.
    token = predict(SIZE, links, placed, request("token"), wire=wire)
    steps = 3 * (
        24 * 0.002 + (SIZE.step_flops(1, 1, 4) + 23 * SIZE.step_flops(1, 1, 1)) / 1e9
    )
    ends = 24 * (100 + 101) + (3 + 23)
    sent = ends + 2 * (24 * (100 + 256 * 4) + (3 + 23) * (1 + 16 * 4))
    assert token.seconds == pytest.approx(steps + 24 * 0.08 + sent / 1e6)


def test_drafts_are_single_positions_on_the_first_host() -> None:
    placed = place(SIZE, cluster(), Load())
    links = cluster()
    plain, written = (
        predict(SIZE, links, placed, request(f"one_sweep:{fill}"))
        for fill in ("drawn", "drafted")
    )
    one = SIZE.step_flops(1, 1, 1) / 1e9
    assert written.compute[0] - plain.compute[0] == pytest.approx(23 * one)
    assert written.compute[1:] == plain.compute[1:]
    # What launching a pass costs counts for each draft, and for nothing else.
    slow = tuple(dataclasses.replace(host, launch=0.001) for host in HOSTS)
    dear = place(SIZE, Cluster.even(slow, 0.04), Load())
    launched = predict(SIZE, links, dear, request("one_sweep:drafted"))
    assert launched.compute[0] - written.compute[0] == pytest.approx(23 * 0.001)
    assert launched.compute[1:] == written.compute[1:]
    # What nothing verifies needs no logits of the first block.
    assert plain.sent[1] - written.sent[1] == 24 * 256 * 4
    assert plain.sent[-1] == written.sent[-1]
    # Drafts that are verified come back as well.
    verified = predict(SIZE, links, placed, request("speculative=24", right=1.0))
    assert verified.sent[-1] - plain.sent[-1] == 23


def test_bytes_on_the_links_are_those_of_real_frames() -> None:
    def frame(message: Any, **arrays: Any) -> int:
        return sum(memoryview(piece).nbytes for piece in pack(message, arrays))

    count, width, out = 26, 512, 24
    size = dataclasses.replace(SIZE, width=width, mlp_width=4 * width)
    placed = place(size, cluster(), Load())
    ask, wire = request("one_sweep:expected"), Wire(float_bytes=2, ensemble=True)
    found = predict(size, cluster(), placed, ask, wire=wire)
    route, who = ("10.0.0.2:9471", "10.0.0.3:9471"), b"x" * 16
    sweep = Sweep(who, 1, 0, who, 9.0, 0, 0, 3, count, route, fill="expected", seed=1)
    given = np.zeros(count, np.uint8)
    state, logs = np.zeros((count, width), "float16"), np.zeros((out, 256), "float16")
    between = frame(sweep, bytes=given, state=state, guess=state, logs=logs, draft=logs)
    back = frame(Result(who, 1, 0, 2, (StageSeconds(0.1, 0.1),) * 3), bytes=given[:out])
    assert frame(sweep, bytes=given) == pytest.approx(found.sent[0], abs=130)
    assert between == pytest.approx(found.sent[1], rel=0.01)
    assert back == pytest.approx(found.sent[3], abs=130)


def test_the_latency_is_found_again_from_the_rate_that_it_gives() -> None:
    links = cluster(rtt=0.074, rate=1e6)
    placed, ask = place(SIZE, links, Load()), request("windowed=8")
    rate = predict(SIZE, links, placed, ask).rate
    without = predict(SIZE, cluster(0.0, rate=1e6), placed, ask)
    assert latency_for(without, 24, rate) == pytest.approx(0.037)
    with pytest.raises(ServingError, match="give faster hosts"):
        latency_for(without, 24, 2 * without.rate)


def test_a_full_pipeline_is_bound_by_its_busiest_host() -> None:
    """Requests overlap until a host has no time left; batches share its overhead."""
    placed, ask = place(SIZE, cluster(), Load()), request("token", 24, 1)
    alone = predict(SIZE, cluster(), placed, ask)
    assert alone.full_rate == pytest.approx(alone.rate)
    few = predict(SIZE, cluster(), placed, ask, concurrency=4, max_batch=1)
    assert few.full_rate == pytest.approx(4 * alone.rate)
    many = predict(SIZE, cluster(), placed, ask, concurrency=10_000, max_batch=1)
    busy = 0.002 + SIZE.step_flops(1, 1, 1) / 1e9  # seconds a byte
    assert many.full_rate == pytest.approx(1 / busy)
    wide = predict(SIZE, cluster(), placed, ask, concurrency=10_000, max_batch=8)
    assert wide.batch == 8
    assert wide.full_rate == pytest.approx(
        8 / (0.002 + 8 * SIZE.step_flops(1, 1, 1) / 1e9)
    )
    # A thin link binds before any host does.
    thin = cluster(rate=5e3)
    tight = predict(SIZE, thin, placed, ask, concurrency=10_000, max_batch=1)
    assert tight.full_rate == pytest.approx(5e3 / (256 + 1 + (16 + 256) * 4))


def test_an_autoregressive_model_decodes_byte_by_byte_only() -> None:
    size = SIZE.as_kind("autoregressive")
    with pytest.raises(ServingError, match="decodes token only"):
        predict(size, cluster(), place(size, cluster(), Load()), request("one_sweep"))


def test_the_papers_row_follows_from_its_token_row() -> None:
    latency = presets.paper_latency(2.8)
    links = Cluster.even(presets.HOSTS, 2 * latency)
    placed = place(presets.PAPER, links, presets.LOAD)
    baseline = predict(
        presets.PAPER.as_kind("autoregressive"),
        links,
        placed,
        Request(1, 128, Method("token")),
        wire=presets.WIRE,
    )
    assert baseline.rate == pytest.approx(2.8)
    # Weights of 20 layers and an interface, read from memory; four ways.
    weights = 2 * (20 * (12 * 10240**2 + 13 * 10240) + 10240**2)
    reading = weights * (1 / 4e12 + 2 / 1.935e12)
    assert 4 * latency + reading == pytest.approx(1 / 2.8, rel=0.02)
