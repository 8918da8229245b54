"""Our server and client against nginx and curl: the same bytes over loopback.

python -m benchmarks.transport [--mib=1024] [--repeats=3] [--scheme=http,https]
    [--directory=DIR] [--json=FILE]

A file of random bytes goes up and an item of the same bytes comes down, with the pairs
in turn: ours with ours, ours with curl, ours with nginx, curl with nginx. Every server
is a process of its own. MB/s are of the median time, ``of nginx`` is the median of the
ratios of timings taken side by side to curl with nginx.

It is not the same work. Our server hashes (SHA-256) what comes up, and answers once
it is flushed to disk (fsync) and renamed; our client hashes each piece that comes down,
and flushes it to disk. nginx and curl do neither. Rows ``hashed and flushed`` are curl
and nginx followed by ``sha256sum`` and ``sync`` of what came, and so the same work.
``CPU`` is seconds of processor time a GiB, for a look behind the noise of a busy
machine; of curl's side with all that it starts.

The second table is the most memory that our server takes beyond what it had before,
for one and for several transfers at once, and for a small and for a large file.
"""

import asyncio
import dataclasses
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _processes
from benchmarks._harness import paired_ratio, parser, report
from benchmarks._serving import token_of
from spheroid_jax import manifests
from spheroid_jax.transport.http.client import HttpLink
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.items.index import DATA, INDEX
from spheroid_jax.transport.protocol import Item, Upload

TARGET = 0.6
PIECE = 4 << 20  # bytes, as of checkpoints
SESSION = "0" * 32
NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off; sendfile on; client_max_body_size 0;
    client_body_temp_path {folder}/bodies; proxy_temp_path {folder}/p;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    server {{
        listen 127.0.0.1:{port} {tls};
        root {folder}/root;
        location /put/ {{ dav_methods PUT; create_full_put_path on; }}
    }}
}}
"""


@dataclasses.dataclass(frozen=True)
class Content:
    """The bytes to move, as an item in ``directory/item``."""

    directory: Path
    item: Item
    sha256: str

    @property
    def data(self) -> Path:
        """The file with the bytes."""
        return self.directory / "item" / DATA


@dataclasses.dataclass(frozen=True)
class Server:
    """A server that runs."""

    process: subprocess.Popen[str]
    url: str
    ca: Path | None


@dataclasses.dataclass
class Way:
    """One way to move the bytes: who sends, who receives."""

    direction: str
    name: str
    run: Callable[[], Any]
    server: Server
    after: Callable[[], Any] = lambda: None  # not timed


@dataclasses.dataclass(frozen=True)
class Timing:
    """Wall seconds, and processor seconds of each side."""

    seconds: float
    client: float
    server: float


def make_content(directory: Path, size: int) -> Content:
    """Random bytes, and the index that makes them an item; ``size`` in fours."""
    folder = directory / "item"
    folder.mkdir(parents=True)
    noise, whole, digests = np.random.default_rng(0), hashlib.sha256(), []
    with (folder / DATA).open("wb") as file:
        for at in range(0, size, PIECE):
            piece = noise.bytes(min(PIECE, size - at))
            digests.append(hashlib.sha256(piece).hexdigest())
            whole.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    count = size // 4
    leaf = {"is": f"float32[{count}]", "dtype": "float32", "shape": [count]}
    box = {"leaf": "w", "start": [0], "shape": [count], "offset": 0, "sha256": digests}
    index = {"bytes": size, "piece": PIECE, "leaves": {"w": leaf}, "boxes": [box]}
    content = json.dumps(index).encode()
    (folder / INDEX).write_bytes(content)
    digest = manifests.sha256_of_json([hashlib.sha256(content).hexdigest()])
    return Content(directory, Item(digest, size), whole.hexdigest())


def certificate(directory: Path) -> tuple[Path, Path, Path]:
    """Files of a certificate for localhost, of its key, and of who signed it."""
    import trustme

    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    files = directory / "certificate.pem", directory / "key.pem", directory / "ca.pem"
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(str(files[0]), append=number > 0)
    issued.private_key_pem.write_to_path(str(files[1]))
    authority.cert_pem.write_to_path(str(files[2]))
    return files


def start_ours(content: Content, tls: tuple[Path, Path, Path] | None) -> Server:
    """Our server, as a process."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "benchmarks._serving"),
            *(str(content.directory), content.item.digest),
            *map(str, tls[:2] if tls else ()),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    port = _processes.line_of(process, 60.0)
    scheme = "https" if tls else "http"
    return Server(process, f"{scheme}://127.0.0.1:{port}", tls[2] if tls else None)


def start_nginx(content: Content, tls: tuple[Path, Path, Path] | None) -> Server:
    """nginx, which serves the item where our server does, and takes PUT."""
    folder = content.directory / "nginx"
    port = _processes.free_port()
    place = folder / "root/v1/items" / content.item.digest
    place.mkdir(parents=True, exist_ok=True)
    (folder / "root/put").mkdir(exist_ok=True)
    for own, name in ((INDEX, "index"), (DATA, "data")):
        if not (place / name).exists():
            os.link(content.directory / "item" / own, place / name)
    secured = ""
    if tls:
        secured = f"ssl; ssl_certificate {tls[0]}; ssl_certificate_key {tls[1]}"
    text = NGINX.format(folder=folder, port=port, tls=secured)
    (folder / "nginx.conf").write_text(text)
    process = subprocess.Popen(
        ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")],
        text=True,
    )
    _processes.wait_for_port(port, process, 10.0)
    scheme = "https" if tls else "http"
    return Server(process, f"{scheme}://127.0.0.1:{port}", tls[2] if tls else None)


class Mover:
    """Moves the bytes between clients and servers."""

    def __init__(self, content: Content) -> None:
        """Of one content; names are never used twice."""
        self._content = content
        self._attempt = 0
        self._got = content.directory / "got"

    def forget(self) -> None:
        """Deletes what came down."""
        shutil.rmtree(self._got, ignore_errors=True)

    async def fetch(self, server: Server, worker: str = "a") -> None:
        """Our client's download."""
        async with self._link(server, worker) as link:
            await link.fetch(self._content.item, self._got / worker)

    async def submit(self, server: Server, worker: str = "a") -> None:
        """Our client's upload."""
        upload = self._upload()
        async with self._link(server, worker) as link:
            verdict = await link.submit(upload, self._content.data)
        if verdict.verdict != "accepted":
            raise RuntimeError(f"the upload was {verdict}")

    async def together(self, what: str, server: Server, count: int) -> None:
        """Several at once, of as many workers."""
        move = self.fetch if what == "download" else self.submit
        await asyncio.gather(*(move(server, f"w{n}") for n in range(count)))

    def curl_down(self, server: Server, *, also: bool = False) -> None:
        """curl's download; ``also`` hashes and flushes it."""
        self._got.mkdir(exist_ok=True)
        target = self._got / "curl"
        path = f"/v1/items/{self._content.item.digest}/data"
        _curl(server, path, "--output", str(target))
        if also:
            _hash_and_flush(target)

    def curl_put(self, server: Server, *, also: bool = False) -> None:
        """curl's upload to nginx; ``also`` hashes and flushes it."""
        _curl(server, "/put/update", "--upload-file", str(self._content.data))
        if also:
            _hash_and_flush(self._put)

    def curl_up(self, server: Server) -> None:
        """curl's upload to our server: announced, sent in one piece, committed."""
        message = json.dumps(dataclasses.asdict(_Plain.of(self._upload())))
        said = _curl(server, "/v1/uploads", "--data", message)
        path = f"/v1/uploads/{json.loads(said)['upload']}"
        data = ("--request", "PATCH", "--upload-file", str(self._content.data))
        _curl(server, path, *data, "--header", "Upload-Offset: 0")
        verdict = json.loads(_curl(server, f"{path}/commit", "--data", "{}"))
        if verdict["verdict"] != "accepted":
            raise RuntimeError(f"the upload was {verdict}")

    def forget_put(self) -> None:
        """Deletes what nginx got, before the disk has all of it."""
        self._put.unlink(missing_ok=True)

    @property
    def _put(self) -> Path:
        return self._content.directory / "nginx/root/put/update"

    def _link(self, server: Server, worker: str) -> HttpLink:
        return HttpLink(server.url, Token(token_of(worker)), server.ca, notice=_fail)

    def _upload(self) -> Upload:
        self._attempt += 1
        size, sha256 = self._content.item.bytes, self._content.sha256
        return Upload(SESSION, 0, 0, 0, self._attempt, size, sha256, ticket="")


@dataclasses.dataclass
class _Plain:
    """An announcement for curl."""

    session: str
    round: int
    block: int
    replica: int
    attempt: int
    bytes: int
    sha256: str
    ticket: str

    @staticmethod
    def of(upload: Upload) -> "_Plain":
        fields = (field.name for field in dataclasses.fields(_Plain))
        return _Plain(*(getattr(upload, name) for name in fields))


def ways(mover: Mover, ours: Server, nginx: Server | None, *, curl: bool) -> list[Way]:
    """What can be compared with the programs there are; curl with nginx comes first."""
    down, up = "download", "upload"
    found = []
    if curl and nginx is not None:
        n = nginx
        found = [
            Way(down, "curl, nginx", lambda: mover.curl_down(n), n, mover.forget),
            Way(
                down,
                "curl, nginx: hashed and flushed",
                lambda: mover.curl_down(n, also=True),
                n,
                mover.forget,
            ),
            Way(up, "curl, nginx", lambda: mover.curl_put(n), n, mover.forget_put),
            Way(
                up,
                "curl, nginx: hashed and flushed",
                lambda: mover.curl_put(n, also=True),
                n,
                mover.forget_put,
            ),
        ]
    found += [
        Way(down, "ours, ours", _run(lambda: mover.fetch(ours)), ours, mover.forget),
        Way(up, "ours, ours", _run(lambda: mover.submit(ours)), ours),
    ]
    if nginx is not None:
        n = nginx
        name = "ours, nginx"
        found.append(Way(down, name, _run(lambda: mover.fetch(n)), n, mover.forget))
    if curl:
        name = "curl, ours"
        found += [
            Way(down, name, lambda: mover.curl_down(ours), ours, mover.forget),
            Way(up, name, lambda: mover.curl_up(ours), ours),
        ]
    return sorted(found, key=lambda way: way.direction)


def timed(way: Way) -> Timing:
    """Moves the bytes once."""
    pid = way.server.process.pid
    server, client = _processes.cpu_seconds(pid), _cpu()
    began = time.perf_counter()
    way.run()
    seconds = time.perf_counter() - began
    timing = Timing(seconds, _cpu() - client, _processes.cpu_seconds(pid) - server)
    way.after()
    return timing


def compare(
    scheme: str, all_ways: list[Way], size: int, repeats: int
) -> list[dict[str, Any]]:
    """Rows of the first table; ways are timed in turn, once before for nothing."""
    timings: dict[tuple[str, str], list[Timing]] = {}
    for number in range(repeats + 1):
        for way in all_ways:
            timing = timed(way)
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
        content = make_content(directory / f"memory{bool(tls)}{size}", size)
        mover, server = Mover(content), start_ours(content, tls)
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
    content = make_content(directory / scheme, size)
    mover = Mover(content)
    has = {name: shutil.which(name) is not None for name in ("nginx", "curl")}
    for name in (name for name, there in has.items() if not there):
        print(f"{name} isn't installed: rows with it are left out")
    ours, nginx = start_ours(content, tls), None
    try:
        if has["nginx"]:
            nginx = start_nginx(content, tls)
        found = ways(mover, ours, nginx, curl=has["curl"])
        return compare(scheme, found, size, repeats)
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
        files = certificate(Path(scratch))
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


def _curl(server: Server, path: str, *options: str) -> bytes:
    trust = ("--cacert", str(server.ca)) if server.ca else ()
    header = f"Authorization: Bearer {token_of('a')}"
    command = ["curl", "--silent", "--show-error", "--fail", *trust, *options]
    url = server.url + path
    found = subprocess.run(
        [*command, "--header", header, url], check=True, stdout=subprocess.PIPE
    )
    return found.stdout


def _hash_and_flush(path: Path) -> None:
    for command in (["sha256sum", str(path)], ["sync", str(path)]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _median(values: Iterable[float], gib: float) -> float:
    return round(statistics.median(values) / gib, 2)


def _fail(line: str) -> None:
    print(line, file=sys.stderr)


def _cpu() -> float:
    """Processor seconds of this process and of the commands it ran."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
