"""What serving a model takes: which host holds what, and how fast it will be.

python -m experiments.plan --preset=paper [--rtt=0.145]
python -m experiments.plan --config=configs/b3_l4.py:paper --rtt=0.04 --rate=1Gbit
    --host=a:80:1935:312 --host=b:80:1935:312 --host=c:80:1935:312
python -m experiments.plan --checkpoint=runs/b3_l4-small --hosts=hosts.json --json=-
python -m experiments.plan --shape=10240:60:3:80:2048 --dtype=float16 --hosts=h.json

A host is NAME:GiB:GB/s:TFLOP/s[:OVERHEAD[:LAUNCH]]: its memory, the memory's bandwidth,
what matmuls reach, and the seconds that a step and a drafted byte cost beside. All
hosts and the front end are ``--rtt`` apart; a JSON file can give each link:
docs/serving.md explains it, and the model of time and memory.
"""

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.proxy import rate
from spheroid_jax.commandline import configured
from spheroid_jax.fields import ConfigError
from spheroid_jax.parser import Parser, mistake
from spheroid_jax.reports.published import load_published
from spheroid_jax.serving.decoding import Method
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.planner import (
    KINDS,
    Cluster,
    Load,
    ModelSize,
    Placed,
    Prediction,
    Request,
    Wire,
    parse_host,
    place,
    predict,
    presets,
    read_cluster,
    tables,
)

METHODS = (
    "token",
    "one_sweep:expected",
    "one_sweep:drafted",
    "windowed=16:drafted",
    "speculative=8",
)
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclasses.dataclass(frozen=True)
class _Ask:
    """What is planned."""

    size: ModelSize
    cluster: Cluster
    load: Load
    wire: Wire
    note: str = ""


def main(argv: Sequence[str]) -> int:
    """Prints the plan; returns the exit status, 2 after a mistake."""
    try:
        options = _options(argv)
        ask = _asked(options)
        placed, predictions = _plan(ask, options)
        text = "\n".join(_text(ask, placed, predictions, options))
        if options.json:
            content = tables.as_json(ask.size, ask.cluster, placed, predictions)
            _write(options.json, json.dumps(content, indent=2) + "\n")
        if options.json != "-":
            print(text)
    except (ConfigError, ServingError) as error:
        return mistake(error)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    first, _, rest = (__doc__ or "").partition("\n")
    parser = Parser(
        prog="python -m experiments.plan",
        description=first + rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s (--preset=paper | --config=FILE | --checkpoint=DIR | "
        "--shape=...) [options]",
        allow_abbrev=False,
    )
    model = parser.add_argument_group(
        "the model: one of"
    ).add_mutually_exclusive_group()
    model.add_argument("--preset", choices=["paper"], help="75.80 B on three hosts")
    model.add_argument("--config", metavar="FILE[:SIZE]", help="a configuration")
    model.add_argument("--checkpoint", metavar="DIR", help="a run's directory")
    model.add_argument("--shape", metavar="D:LAYERS:BLOCKS:HEADS:T", help="in total")
    parser.add_argument("--dtype", choices=list(_BYTES), help="of parameters and cache")
    hosts = parser.add_argument_group("the hosts")
    hosts.add_argument("--host", action="append", default=[], metavar="NAME:GiB:...")
    hosts.add_argument("--hosts", metavar="FILE", help="JSON, instead of --host")
    hosts.add_argument("--rtt", type=float, metavar="S", help="seconds of a round trip")
    hosts.add_argument("--rate", type=rate, default=math.inf, help="such as 1Gbit")
    ask = parser.add_argument_group("the requests")
    ask.add_argument("--prompt", type=int, default=1, metavar="BYTES")
    ask.add_argument("--output", type=int, default=128, metavar="BYTES")
    ask.add_argument("--methods", default=";".join(METHODS), metavar="A;B;...")
    ask.add_argument("--acceptance", type=float, default=0.7, help="of drafts, 0 to 1")
    ask.add_argument("--concurrency", type=int, default=64, help="requests at once")
    ask.add_argument("--slots", type=int, help="requests that hosts have caches for")
    ask.add_argument("--max-batch", type=int, help="rows of a step")
    ask.add_argument("--wire", choices=list(_BYTES), help="dtype of the state there")
    ask.add_argument("--answer", choices=["last", "ensemble"], default="last")
    parser.add_argument("--json", metavar="FILE", help="also write it; - for stdout")
    return parser.parse_args(argv)


def _asked(options: argparse.Namespace) -> _Ask:
    """Reads the model and the hosts."""
    paper = options.preset == "paper"
    size = presets.PAPER if paper else _size(options)
    if options.dtype:
        width = _BYTES[options.dtype]
        size = dataclasses.replace(size, parameter_bytes=width, compute_bytes=width)
    note, rtt = "", options.rtt or 0.0
    if options.rtt is not None and not 0 <= options.rtt < math.inf:
        raise ServingError(f"rtt is {options.rtt}; give seconds, from 0")
    if options.host and options.hosts:
        raise ServingError("--host and --hosts name hosts; give one of the two")
    if options.hosts:
        cluster = read_cluster(Path(options.hosts), rtt, options.rate)
    elif options.host:
        hosts = [parse_host(text) for text in options.host]
        cluster = Cluster.even(hosts, rtt, options.rate)
    elif paper:
        rtt, note = _paper_rtt(options, size)
        cluster = Cluster.even(presets.HOSTS, rtt, options.rate)
    else:
        raise ServingError("there are no hosts; add --host=NAME:GiB:GB/s:TFLOP/s")
    # Half precision stays half on the wire.
    float_bytes = _BYTES[options.wire] if options.wire else size.compute_bytes
    load = Load(
        presets.LOAD.slots if options.slots is None else options.slots,
        presets.LOAD.max_batch if options.max_batch is None else options.max_batch,
        max(1, min(size.places, max(1, options.prompt) + options.output - 1)),
    )
    wire = Wire(float_bytes, options.answer == "ensemble")
    return _Ask(size, cluster, load, wire, note)


def _size(options: argparse.Namespace) -> ModelSize:
    if options.config:
        return ModelSize.of_config(configured(options.config, []))
    if options.checkpoint:
        return ModelSize.of_config(_config_of(Path(options.checkpoint)))
    if not options.shape:
        raise ServingError(
            "there is no model; add --preset=paper, --config=FILE, --checkpoint=DIR or "
            "--shape=WIDTH:LAYERS:BLOCKS:HEADS:PLACES"
        )
    try:
        width, layers, blocks, heads, places = map(int, options.shape.split(":"))
    except ValueError:
        raise ServingError(
            f"shape is {options.shape!r}; write WIDTH:LAYERS:BLOCKS:HEADS:PLACES, "
            "such as 10240:60:3:80:2048"
        ) from None
    return ModelSize(width, layers, blocks, heads, 4 * width, places)


def _config_of(path: Path) -> dict[str, Any]:
    """The configuration of a run's directory, or of one of its checkpoints."""
    for directory in (path, *list(path.parents)[:2]):
        file = directory / "config.json"
        if file.is_file():
            try:
                found = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ServingError(f"can't read {file}: {error}") from error
            if isinstance(found, dict):
                return found
            raise ServingError(f"{file} holds no configuration: name another run")
    raise ServingError(f"{path} has no config.json: name a run's directory")


def _paper_rtt(options: argparse.Namespace, size: ModelSize) -> tuple[float, str]:
    """The round trip of the preset: as asked, else such that its token row is met."""
    numbers = load_published()
    if options.rtt is not None or numbers is None:
        return options.rtt or 0.0, ""
    rate = numbers.of("plan")["token"].numbers["throughput"]
    latency = presets.paper_latency(rate, size, options.rate)
    return 2 * latency, (
        f"The paper gives no distances. {1e3 * latency:.3g} ms one way between front "
        f"end and hosts are fitted to its token-by-token row; all else follows."
    )


def _plan(
    ask: _Ask, options: argparse.Namespace
) -> tuple[tuple[Placed, ...], list[Prediction]]:
    """Placement of BlockTrain, and all methods of both kinds."""
    methods = [Method.parse(text) for text in options.methods.split(";")]
    found = []
    for kind in reversed(KINDS):
        size = ask.size.as_kind(kind)
        placed = place(size, ask.cluster, ask.load)
        known = methods if kind == "blocktrain" else [Method("token")]
        for method in known:
            request = Request(
                options.prompt, options.output, method, options.acceptance
            )
            found.append(
                predict(
                    size,
                    ask.cluster,
                    placed,
                    request,
                    # Who finds no slot waits until there is one.
                    concurrency=min(options.concurrency, ask.load.slots),
                    max_batch=ask.load.max_batch,
                    wire=ask.wire,
                )
            )
    return placed, found


def _text(
    ask: _Ask,
    placed: Sequence[Placed],
    predictions: Sequence[Prediction],
    options: argparse.Namespace,
) -> list[str]:
    """What is printed."""
    latency = [1e3 * link.latency for link in ask.cluster.links]
    slots = f"{ask.load.slots} slots"
    if options.concurrency > ask.load.slots:
        slots += f" for {options.concurrency} requests at once, so the others wait"
    lines = [
        tables.size_line(ask.size),
        f"{slots}; steps of at most {ask.load.max_batch} rows; prompt "
        f"{options.prompt} bytes, output {options.output}; drafts right with "
        f"probability {options.acceptance:g}",
        f"links, one way: {', '.join(f'{ms:.3g}' for ms in latency)} ms",
        "",
        tables.placement_table(placed).text(),
        tables.prediction_table(predictions).text(),
    ]
    numbers = load_published()
    if options.preset == "paper" and numbers is not None:
        entry = numbers.of("plan")["one_sweep"]
        beside = tables.paper_table(predictions, numbers)
        lines += [
            f"Beside {numbers.source}: {entry.what} ({numbers.tags[entry.tag]})",
            "",
            *([beside.text()] if beside else []),
            *([ask.note] if ask.note else []),
            "Hosts are taken at the peaks of NVIDIA's data sheets, so no plan is too "
            "slow.",
        ]
    return lines


def _write(name: str, text: str) -> None:
    if name == "-":
        print(text, end="")
        return
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ServingError(f"can't write {name}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
