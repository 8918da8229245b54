"""One sweep against token by token over a slow network, side by side, with a plan.

python -m benchmarks.serving [--rtt=0.04] [--sizes=96x4,256x4] [--lengths=64,128]
    [--concurrency=1,2,4,8,16,32,64] [--seconds=10] [--repeats=5] [--prompt=16]
    [--methods="one_sweep:drafted;..."] [--load-methods="speculative=8;..."]
    [--places=256] [--max-batch=16] [--checkpoint=DIR] [--directory=DIR] [--quick]
    [--json=FILE]

Three stages as processes of their own, as a user starts them, and so are the front end
and a proxy before each stage: ``--rtt`` there and back. So a trip waits for four ways:
front end to stage 0, 1, 2, and back. The baseline is an autoregressive model of the
same width and total depth in three stages with a KV cache each, over the same transport
and links. ``--sizes`` are WIDTHxLAYERS of a block. Parameters are random, which speed
doesn't mind; how often drafts are right does, so ``speculative`` needs a trained model
(``--checkpoint``, a run's directory, in place of the first size) to mean anything.

Tables:

1. *One sweep over the baseline.* Both were asked in turn, alone in their pipelines. The
   ideal ratio is (seconds of a token trip x bytes) / (latency of a trip + seconds that
   stages compute for a sweep when there is no network): what a sweep would gain if the
   transport and the front end cost nothing.
2. *Under load.* Clients that each wait for their answer and ask again. ``errors`` are
   answers that weren't 200.
3. *The planner.* Hosts are calibrated by steps of the stages in this process (of one
   position and of the longest padded sweep), links by pings. What is predicted is none
   of that: seconds of whole requests through all processes. The goal is 20 %.
"""

import argparse
import dataclasses
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _serving_clients as clients
from benchmarks import _serving_steps as steps
from benchmarks._harness import parser
from benchmarks._serving_clients import Answer, body
from benchmarks._serving_hosts import METHODS, Farm, Shape, farm, make_checkpoint
from spheroid_jax.reports.tables import Table
from spheroid_jax.serving.decoding import Method
from spheroid_jax.serving.planner import (
    Cluster,
    Link,
    Load,
    ModelSize,
    Request,
    itinerary,
    place,
    predict,
)

BAR = 0.8  # of the ideal ratio
GOAL = 0.2  # error of a prediction
LINKS = 4  # of a trip
SWEEP = "one_sweep:expected"
TOKEN = "token"
ALONE = (TOKEN, SWEEP, "one_sweep:drafted", "windowed=16:expected")
LOADED = (SWEEP, "one_sweep:drafted", "speculative=8", TOKEN)
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A model that is served.

    Attributes:
      kind: of the planner.
      far: URL of the front end that reaches stages over the slow links.
      near: of the one that reaches them directly.
      one_way: seconds of a link one way, measured by pings.
    """

    kind: str
    far: str
    near: str
    one_way: float


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all tables share."""

    rtt: float
    prompt: int
    repeats: int
    seconds: float
    concurrency: tuple[int, ...]
    max_batch: int = 16
    slots: int = 64
    alone: tuple[str, ...] = ALONE
    loaded: tuple[str, ...] = LOADED

    @property
    def latency(self) -> float:
        """Of a trip, as it was injected."""
        return LINKS * self.rtt / 2


def warm_shapes(
    methods: Sequence[str], prompt: int, lengths: Sequence[int], places: int
) -> str:
    """Shapes of all trips of some methods, as ``--warm`` takes them."""
    found = {"1"}
    for text in methods:
        method = Method.parse(text)
        for right in (0.0, 0.7):  # windows shrink differently towards the end
            for length in lengths:
                for trip in itinerary(Request(prompt, length, method, right), places):
                    count = 1 << (trip.positions - 1).bit_length()
                    found.add(f"{min(count, places)}:{trip.fill}")
    return ",".join(sorted(found))


def start(
    running: Farm, checkpoint: Path, kind: str, warm: str, setting: Setting
) -> Pipeline:
    """Starts stages, links and two front ends."""
    addresses = running.stages(checkpoint, kind, warm, setting.slots, setting.max_batch)
    links = running.far(addresses, setting.rtt)
    one_way = statistics.median(running.one_way(link) for link in links)
    return Pipeline(kind, running.frontend(links), running.frontend(addresses), one_way)


def measure_alone(
    pipelines: Sequence[Pipeline], lengths: Sequence[int], setting: Setting
) -> dict[tuple[str, str, int], list[Answer]]:
    """Answers by kind, method and length, of requests that had the pipeline alone.

    Methods are asked in turn, so that the machine's drift hits all alike. The key
    ``near`` in place of the kind: BlockTrain without the slow links.
    """
    asked: list[tuple[str, str, str, int]] = []
    for pipeline in pipelines:
        block = pipeline.kind == "blocktrain"
        for length in lengths:
            for method in setting.alone if block else (TOKEN,):
                asked.append((pipeline.kind, pipeline.far, method, length))
                if block and method == SWEEP:
                    asked.append(("near", pipeline.near, method, length))
    for _, url, method, length in asked:  # whatever isn't compiled yet
        short = min(length, 4) if method == TOKEN else length
        clients.one_by_one(url, [body(setting.prompt, short, method)])
    found: dict[tuple[str, str, int], list[Answer]] = {}
    for number in range(setting.repeats):
        for kind, url, method, length in asked:
            times = 1 if method == TOKEN else 3  # a sweep is over in a moment
            bodies = [
                body(setting.prompt, length, method, seed=number * times + n)
                for n in range(times)
            ]
            answers = clients.one_by_one(url, bodies)
            found.setdefault((kind, method, length), []).extend(answers)
    return found


def sweep_rows(
    shape: str,
    found: dict[tuple[str, str, int], list[Answer]],
    lengths: Sequence[int],
    setting: Setting,
) -> list[Row]:
    """Rows of the first table."""
    rows = []
    for length in lengths:
        sweep = clients.median(found["blocktrain", SWEEP, length])
        base = clients.median(found["autoregressive", TOKEN, length])
        own = clients.median(found["blocktrain", TOKEN, length])
        compute = clients.median(found["near", SWEEP, length], "computing")
        # The baseline's trips differ by the prompt only: the first reads all of it.
        ideal = base / (setting.latency + compute)
        rows.append(
            {
                "size": shape,
                "bytes": length,
                "sweep ms": round(1e3 * sweep, 1),
                "sweep bytes/s": round(length / sweep, 1),
                "baseline bytes/s": round(length / base, 2),
                "own token bytes/s": round(length / own, 2),
                "compute ms": round(1e3 * compute, 1),
                "ratio": round(base / sweep, 1),
                "ideal": round(ideal, 1),
                "of ideal": round(base / sweep / ideal, 3),
            }
        )
    return rows


def load_rows(
    shape: str, pipelines: Sequence[Pipeline], length: int, setting: Setting
) -> list[Row]:
    """Rows of the second table."""
    rows = []
    for pipeline in pipelines:
        for method in setting.loaded if pipeline.kind == "blocktrain" else (TOKEN,):
            asked = body(setting.prompt, length, method)
            for count in setting.concurrency:
                found = clients.closed_loop(pipeline.far, asked, count, setting.seconds)
                for line in found.errors[:2]:
                    print(f"error: {line}")
                rows.append(
                    {
                        "size": shape,
                        "model": pipeline.kind,
                        "method": method,
                        "clients": count,
                        "requests": len(found.answers),
                        "bytes a trip": round(found.bytes_per_trip, 2),
                        "p50 s": round(found.latency(50), 3),
                        "p99 s": round(found.latency(99), 3),
                        "bytes/s": round(found.rate, 1),
                        "errors": len(found.errors),
                    }
                )
                _progress(rows[-1])
    return rows


def plan_rows(
    shape: str,
    found: dict[tuple[str, str, int], list[Answer]],
    clusters: dict[str, Cluster],
    sizes: dict[str, ModelSize],
    setting: Setting,
) -> list[Row]:
    """Rows of the third table: predicted and measured output bytes per second."""
    rows = []
    for (kind, method, length), answers in found.items():
        if kind == "near":
            continue
        size, cluster = sizes[kind], clusters[kind]
        request = Request(setting.prompt, length, Method.parse(method))
        expected = predict(size, cluster, place(size, cluster, Load()), request)
        measured = length / clients.median(answers)
        rows.append(
            {
                "size": shape,
                "model": kind,
                "method": method,
                "bytes": length,
                "compute ms a trip": round(1e3 * sum(expected.compute), 1),
                "network ms a trip": round(1e3 * sum(expected.network), 1),
                "predicted bytes/s": round(expected.rate, 2),
                "measured bytes/s": round(measured, 2),
                "error": round(expected.rate / measured - 1, 3),
            }
        )
    return rows


def calibrate(
    checkpoint: Path, sizes: dict[str, ModelSize], setting: Setting, longest: int
) -> dict[str, Cluster]:
    """Hosts of both kinds, before anything else runs; links are still ideal."""
    repeats = 5 * setting.repeats
    positions = (1, longest)
    return {
        kind: Cluster.even(
            steps.calibrated(checkpoint, kind, size, positions, repeats), 0.0
        )
        for kind, size in sizes.items()
    }


def run_size(
    shape: str,
    checkpoint: Path,
    places: int,
    lengths: Sequence[int],
    loads: bool,
    setting: Setting,
    scratch: Path,
) -> dict[str, list[Row]]:
    """All tables of one model."""
    config = json.loads((checkpoint / "config.json").read_text())
    sizes = {kind: ModelSize.of_config(config, kind=kind) for kind in METHODS}
    longest = min(places, setting.prompt + max(lengths) - 1)
    clusters = calibrate(checkpoint, sizes, setting, longest)
    warm = {
        "blocktrain": warm_shapes(
            (*setting.alone, *(setting.loaded if loads else ())),
            setting.prompt,
            lengths,
            places,
        ),
        "autoregressive": warm_shapes((TOKEN,), setting.prompt, lengths, places),
    }
    with farm(scratch / f"logs-{shape}", scratch / "compiled") as running:
        pipelines = [
            start(running, checkpoint, kind, warm[kind], setting) for kind in METHODS
        ]
        for pipeline in pipelines:
            cluster = clusters[pipeline.kind]
            links = (Link(pipeline.one_way),) * LINKS
            clusters[pipeline.kind] = dataclasses.replace(cluster, links=links)
        found = measure_alone(pipelines, lengths, setting)
        rows = {
            "sweeps": sweep_rows(shape, found, lengths, setting),
            "plans": plan_rows(shape, found, clusters, sizes, setting),
            "loads": [],
        }
        for row in (*rows["sweeps"], *rows["plans"]):
            _progress(row)
        if loads:
            rows["loads"] = load_rows(shape, pipelines, min(lengths), setting)
        return rows


def verdicts(tables: dict[str, list[Row]]) -> list[str]:
    """What the tables say, in a line each."""
    lines = []
    if tables["sweeps"]:
        worst = min(tables["sweeps"], key=lambda row: row["of ideal"])
        lines.append(
            f"one sweep reaches at least {worst['of ideal']:.2f} of the ideal ratio "
            f"(bar {BAR}): {'reached' if worst['of ideal'] >= BAR else 'missed'}"
        )
    if tables["plans"]:
        far = max(tables["plans"], key=lambda row: abs(row["error"]))
        lines.append(
            f"the planner is off by {abs(far['error']):.0%} at most (goal {GOAL:.0%}): "
            f"{'reached' if abs(far['error']) <= GOAL else 'missed'}"
        )
    errors = sum(row["errors"] for row in tables["loads"])
    loads = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    lines.append(
        f"{errors} errors; load averages at the end {loads}, {os.cpu_count()} cores"
    )
    return lines


def show(name: str, rows: Sequence[Row]) -> None:
    """Prints a table."""
    if not rows:
        return
    columns = list(rows[0])
    cells = [[str(row[column]) for column in columns] for row in rows]
    align = ["l" if isinstance(rows[0][column], str) else "r" for column in columns]
    print(f"{name}\n{Table(columns, cells, ''.join(align)).text()}", flush=True)


def main(argv: Sequence[str]) -> int:
    """Measures and reports; 1 if a request failed."""
    options = _options(argv)
    lengths = [int(n) for n in options.lengths.split(",")]
    counts = tuple(int(n) for n in options.concurrency.split(",") if n)
    setting = Setting(
        options.rtt,
        options.prompt,
        options.repeats,
        options.seconds,
        counts,
        options.max_batch,
        alone=_methods(options.methods, (TOKEN, SWEEP)),
        loaded=_methods(options.load_methods, ()),
    )
    tables: dict[str, list[Row]] = {"sweeps": [], "loads": [], "plans": []}
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        scratch = Path(name)
        shapes = [
            _shape(text, options.places) for text in options.sizes.split(",") if text
        ]
        models = [(str(s), scratch / str(s), s.places) for s in shapes]
        for shape, (_, directory, _) in zip(shapes, models, strict=True):
            make_checkpoint(directory, shape.config())
        if options.checkpoint:
            path = Path(options.checkpoint)
            config = json.loads((path / "config.json").read_text())
            models = [("trained", path, config["data"]["seq_len"]), *models[1:]]
        for number, (shape_name, directory, places) in enumerate(models):
            loads = number == 0 and bool(counts)
            rows = run_size(
                shape_name, directory, places, lengths, loads, setting, scratch
            )
            for key, found in rows.items():
                tables[key] += found
    for key, title in (
        ("sweeps", "One sweep over the baseline"),
        ("loads", "Under load"),
        ("plans", "The planner"),
    ):
        show(title, tables[key])
    said = verdicts(tables)
    print("\n".join(said))
    if options.json:
        facts = {**tables, "settings": vars(options), "summary": said}
        Path(options.json).write_text(json.dumps(facts, indent=2) + "\n")
    return 1 if any(row["errors"] for row in tables["loads"]) else 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    arguments = parser(__doc__ or "")
    arguments.formatter_class = argparse.RawDescriptionHelpFormatter
    add = arguments.add_argument
    add("--rtt", type=float, default=0.04, help="seconds of a link's round trip")
    add("--sizes", default="96x4,256x4", help="WIDTHxLAYERS of a block")
    add("--lengths", default="64,128", help="bytes of output")
    add("--places", type=int, default=256, help="T of the models")
    add("--prompt", type=int, default=16, help="bytes")
    add("--concurrency", default="1,2,4,8,16,32,64", help="clients; empty: no load")
    add("--seconds", type=float, default=10.0, help="of a load, at least")
    add("--methods", default=";".join(ALONE), help="of tables 1 and 3")
    add("--load-methods", default=";".join(LOADED), help="of table 2")
    add("--max-batch", type=int, default=16, help="rows of a step at most")
    add("--checkpoint", help="a run's directory, in place of the first size")
    add("--directory", help="where to write; default: a temporary")
    add("--quick", action="store_true", help="tiny, to see that it works")
    arguments.set_defaults(repeats=5)
    options = arguments.parse_args(argv)
    if options.quick:
        options.sizes, options.lengths, options.places = "16x1", "8", 32
        options.prompt, options.concurrency, options.seconds = 4, "1,2", 0.5
        options.repeats, options.max_batch = 1, 2
        options.methods, options.load_methods = "", SWEEP
    return options


def _progress(row: Row) -> None:
    print(" ".join(map(str, row.values())), file=sys.stderr, flush=True)


def _methods(text: str, always: tuple[str, ...]) -> tuple[str, ...]:
    """Methods in the decoder's own words, each once."""
    named = (str(Method.parse(each)) for each in text.split(";") if each)
    return tuple(dict.fromkeys((*always, *named)))


def _shape(text: str, places: int) -> Shape:
    width, _, layers = text.partition("x")
    return Shape(int(width), int(layers), places)


if __name__ == "__main__":
    # Told to end, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
