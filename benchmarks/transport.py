"""Our server and client against nginx and curl: the same bytes over loopback.

python -m benchmarks.transport [--mib=1024] [--repeats=3] [--scheme=http,https]
    [--directory=DIR] [--json=FILE]

A file of random bytes goes up and an item of the same bytes comes down, with the pairs
in turn: ours with ours, ours with curl, ours with nginx, curl with nginx. Every server
is a process of its own. MB/s are of the median time, ``of nginx`` is the median of the
ratios of timings taken side by side to curl with nginx.

It is not the same work. Our server hashes (BLAKE3) what comes up, and answers once
it is flushed to disk (fsync) and renamed; our client hashes each piece that comes down,
and flushes it to disk. nginx and curl do neither. Rows ``hashed and flushed`` are curl
and nginx followed by a BLAKE3 digest and ``sync`` of what came: the same work.
``CPU`` is seconds of processor time a GiB, for a look behind the noise of a busy
machine; of curl's side with all that it starts.

The second table is the most memory that our server takes beyond what it had before,
for one and for several transfers at once, and for a small and for a large file.
"""

import asyncio
import dataclasses
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks import _moving, _processes
from benchmarks._harness import paired_ratio, parser, report
from benchmarks._moving import Mover, Server

TARGET = 0.6


@dataclasses.dataclass
class Way:
    """One way to move the bytes: who sends, who receives."""

    direction: str
    name: str
    run: Callable[[], Any]
    server: Server


@dataclasses.dataclass(frozen=True)
class Timing:
    """Wall seconds, and processor seconds of each side."""

    seconds: float
    client: float
    server: float


def ways(mover: Mover, ours: Server, nginx: Server | None, *, curl: bool) -> list[Way]:
    """What can be compared with the programs there are; curl with nginx comes first."""
    down, up = "download", "upload"
    found = []
    if curl and nginx is not None:
        n = nginx
        found = [
            Way(down, "curl, nginx", lambda: mover.curl_down(n), n),
            Way(
                down,
                "curl, nginx: hashed and flushed",
                lambda: mover.curl_down(n, also=True),
                n,
            ),
            Way(up, "curl, nginx", lambda: mover.curl_put(n), n),
            Way(
                up,
                "curl, nginx: hashed and flushed",
                lambda: mover.curl_put(n, also=True),
                n,
            ),
        ]
    found += [
        Way(down, "ours, ours", _run(lambda: mover.fetch(ours)), ours),
        Way(up, "ours, ours", _run(lambda: mover.submit(ours)), ours),
    ]
    if nginx is not None:
        n = nginx
        name = "ours, nginx"
        found.append(Way(down, name, _run(lambda: mover.fetch(n)), n))
    if curl:
        name = "curl, ours"
        found += [
            Way(down, name, lambda: mover.curl_down(ours), ours),
            Way(up, name, lambda: mover.curl_up(ours), ours),
        ]
    return sorted(found, key=lambda way: way.direction)


def timed(way: Way, mover: Mover) -> Timing:
    """Moves the bytes once; what is before and after that isn't timed."""
    mover.make_ready()
    pid = way.server.process.pid
    server, client = _processes.cpu_seconds(pid), _cpu()
    began = time.perf_counter()
    way.run()
    seconds = time.perf_counter() - began
    timing = Timing(seconds, _cpu() - client, _processes.cpu_seconds(pid) - server)
    mover.forget()
    return timing


def compare(
    scheme: str, all_ways: list[Way], mover: Mover, size: int, repeats: int
) -> list[dict[str, Any]]:
    """Rows of the first table; ways are timed in turn, once before for nothing."""
    timings: dict[tuple[str, str], list[Timing]] = {}
    for number in range(repeats + 1):
        for way in all_ways:
            timing = timed(way, mover)
            if number:
                timings.setdefault((way.direction, way.name), []).append(timing)
    rows = []
    for (direction, name), own in timings.items():
        seconds = [timing.seconds for timing in own]

        def over(other: str, own: list[float] = seconds, to: str = direction) -> Any:
            base = timings.get((to, other))
            if base is None:
                return "-"
            return round(paired_ratio([t.seconds for t in base], own), 2)

        gib = size / 2**30
        rows.append(
            {
                "scheme": scheme,
                "what": direction,
                "client, server": name,
                "MB/s": round(size / 1e6 / statistics.median(seconds)),
                "of nginx": over("curl, nginx"),
                "of the same work": over("curl, nginx: hashed and flushed"),
                "client CPU s/GiB": _median((t.client for t in own), gib),
                "server CPU s/GiB": _median((t.server for t in own), gib),
            }
        )
    return rows


def measure_memory(
    directory: Path, tls: tuple[Path, Path, Path] | None, sizes: list[tuple[int, int]]
) -> list[dict[str, Any]]:
    """Rows of the second table: the most memory beyond that of the idle server.

    Args:
      directory: for contents.
      tls: files of the certificate.
      sizes: (bytes of each, how many at once).
    """
    rows = []
    for size in sorted({size for size, _ in sizes}):
        content = _moving.make_content(directory / f"memory{bool(tls)}{size}", size)
        mover, server = Mover(content), _moving.start_ours(content, tls)
        pid = server.process.pid
        try:
            asyncio.run(mover.together("upload", server, 1))  # all modules are there
            for count in (count for each, count in sizes if each == size):
                row: dict[str, Any] = {
                    "scheme": "https" if tls else "http",
                    "MiB each": round(size / 2**20, 1),
                    "at once": count,
                    "idle MiB": round(_processes.resident(pid) / 2**20, 1),
                }
                for what in ("upload", "download"):
                    before = _processes.resident(pid)
                    _processes.reset_peak(pid)
                    asyncio.run(mover.together(what, server, count))
                    peak = _processes.resident(pid, "VmHWM") - before
                    mover.forget()
                    row[f"{what}s MiB"] = round(peak / 2**20, 1)
                    row[f"{what} MiB each"] = round(peak / 2**20 / count, 1)
                rows.append(row)
        finally:
            _processes.end(server.process)
        shutil.rmtree(content.directory)
    return rows


def run_scheme(
    directory: Path, tls: tuple[Path, Path, Path] | None, size: int, repeats: int
) -> list[dict[str, Any]]:
    """The first table of one scheme."""
    scheme = "https" if tls else "http"
    content = _moving.make_content(directory / scheme, size)
    mover = Mover(content)
    has = {name: shutil.which(name) is not None for name in ("nginx", "curl")}
    for name in (name for name, there in has.items() if not there):
        print(f"{name} isn't installed: rows with it are left out")
    ours, nginx = _moving.start_ours(content, tls), None
    try:
        if has["nginx"]:
            nginx = _moving.start_nginx(content, tls)
        found = ways(mover, ours, nginx, curl=has["curl"])
        return compare(scheme, found, mover, size, repeats)
    finally:
        for server in (ours, nginx):
            if server is not None:
                _processes.end(server.process)
        shutil.rmtree(content.directory)


def main(argv: list[str]) -> int:
    """Measures and reports."""
    arguments = parser(__doc__ or "")
    arguments.set_defaults(repeats=3)
    arguments.add_argument("--mib", type=float, default=1024, help="size of the file")
    arguments.add_argument("--scheme", default="http,https", help="one or both")
    arguments.add_argument("--at-once", default="1,4,8", help="transfers, for memory")
    arguments.add_argument("--directory", help="where to write; default: a temporary")
    options = arguments.parse_args(argv)
    size = 4 * int(options.mib * 2**18)
    small = max(4, 4 * int(options.mib * 2**14))  # a sixteenth
    counts = [int(n) for n in options.at_once.split(",")]
    rows, memory = [], []
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        files = _moving.certificate(Path(scratch))
        for scheme in options.scheme.split(","):
            tls = files if scheme == "https" else None
            rows += run_scheme(Path(scratch), tls, size, options.repeats)
            sizes = [(small, count) for count in counts] + [(size, 1)]
            memory += measure_memory(Path(scratch), tls, sizes)
    ratios = {
        f"{row['scheme']} {row['what']}: of nginx (target {TARGET})": row["of nginx"]
        for row in rows
        if row["client, server"] == "ours, ours" and row["of nginx"] != "-"
    }
    report(memory, {}, None)
    print()
    report(rows, ratios, options.json)
    if options.json:
        file = Path(options.json)
        file.write_text(
            json.dumps({**json.loads(file.read_text()), "memory": memory}, indent=2)
            + "\n"
        )
    return 0


def _run(start: Callable[[], Any]) -> Callable[[], None]:
    return lambda: asyncio.run(start())


def _median(values: Iterable[float], gib: float) -> float:
    return round(statistics.median(values) / gib, 2)


def _cpu() -> float:
    """Processor seconds of this process and of the commands it ran."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
