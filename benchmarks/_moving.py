"""Moves the same bytes between clients and servers: ours, curl and nginx."""

import asyncio
import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from blake3 import blake3

from benchmarks import _processes
from benchmarks._serving import token_of
from spheroid_jax import manifests
from spheroid_jax.transport import protocol
from spheroid_jax.transport.http.client import HttpLink
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.items.index import DATA, INDEX
from spheroid_jax.transport.protocol import Item, Upload

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
    blake3: str

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


def make_content(directory: Path, size: int) -> Content:
    """Random bytes, and the index that makes them an item; ``size`` in fours."""
    folder = directory / "item"
    folder.mkdir(parents=True)
    noise, whole, digests = np.random.default_rng(0), blake3(), []
    with (folder / DATA).open("wb") as file:
        for at in range(0, size, PIECE):
            piece = noise.bytes(min(PIECE, size - at))
            digests.append(blake3(piece).hexdigest())
            whole.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    count = size // 4
    leaf = {"is": f"float32[{count}]", "dtype": "float32", "shape": [count]}
    box = {"leaf": "w", "start": [0], "shape": [count], "offset": 0, "blake3": digests}
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
    place = folder / "root/v2/items" / content.item.digest
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
        """Deletes what came down or went up, before the disk has all of it."""
        shutil.rmtree(self._got, ignore_errors=True)
        for folder in ("nginx/root/put", "accepted"):
            for path in (self._content.directory / folder).glob("*"):
                path.unlink()

    def make_ready(self) -> None:
        """The same start for all: a quiet disk, and memory that the system has at hand.

        A virtual machine may give its free memory back, and then pays for it anew,
        about a second a GiB on some: whoever comes first would.
        """
        os.sync()
        path, block = self._content.directory / "touched", bytes(PIECE)
        with path.open("wb") as file:
            for _ in range(0, self._content.item.bytes * 5 // 4, PIECE):
                file.write(block)
        path.unlink()

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
        path = f"/v2/items/{self._content.item.digest}/data"
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
        message = protocol.encode(self._upload()).decode()
        said = _curl(server, "/v2/uploads", "--data", message)
        path = f"/v2/uploads/{json.loads(said)['upload']}"
        data = ("--request", "PATCH", "--upload-file", str(self._content.data))
        _curl(server, path, *data, "--header", "Upload-Offset: 0")
        verdict = json.loads(_curl(server, f"{path}/commit", "--data", "{}"))
        if verdict["verdict"] != "accepted":
            raise RuntimeError(f"the upload was {verdict}")

    @property
    def _put(self) -> Path:
        return self._content.directory / "nginx/root/put/update"

    def _link(self, server: Server, worker: str) -> HttpLink:
        return HttpLink(server.url, Token(token_of(worker)), server.ca, notice=_fail)

    def _upload(self) -> Upload:
        self._attempt += 1
        size, digest = self._content.item.bytes, self._content.blake3
        return Upload(SESSION, 0, 0, 0, self._attempt, size, digest, ticket="")


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
    blake3().update_mmap(path).hexdigest()  # by one thread
    subprocess.run(["sync", str(path)], check=True)


def _fail(line: str) -> None:
    print(line, file=sys.stderr)
