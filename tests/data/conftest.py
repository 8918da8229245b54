"""Real text, a private cache, a small WikiText, and a web server that misbehaves."""

import dataclasses
import hashlib
import http.server
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spheroid_jax.data import Corpus, load_corpus, wikitext

Pages = dict[str, tuple[int, int | None, bytes]]


@dataclasses.dataclass(frozen=True)
class FakeWikiText:
    """A text in the form of WikiText-2, raw and as the hub serves it."""

    raw: dict[str, bytes]  # by split
    shards: dict[str, bytes]  # parquet files by path within the data set

    @staticmethod
    def as_parquet(raw: bytes, path: Path) -> bytes:
        """Rows as on the hub: lines with their newline, blank lines as ""."""
        lines = raw.decode().split("\n")[:-1]
        rows = ["" if line == " " else f"{line}\n" for line in lines]
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"text": rows}), path, row_group_size=100)
        return path.read_bytes()

    def pages_under(self, root: str) -> Pages:
        return {f"{root}/{path}": (200, None, d) for path, d in self.shards.items()}

    def hub_pages(self) -> Pages:
        return self.pages_under(f"/{wikitext._DATASET}")

    def check(self, corpus: Corpus) -> None:
        for split, data in self.raw.items():
            assert getattr(corpus, split).tobytes() == data


@pytest.fixture(autouse=True)
def _private_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's cache, nor sends local requests through a proxy."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture(scope="session")
def wikitext_raw() -> Path:
    """Folder of the official raw files: $SPHEROID_DATA/wikitext-2-raw, else skips."""
    folder = Path(os.environ.get("SPHEROID_DATA", "")) / "wikitext-2-raw"
    if not os.environ.get("SPHEROID_DATA") or not folder.is_dir():
        pytest.skip("set SPHEROID_DATA to a folder that holds wikitext-2-raw/")
    return folder


@pytest.fixture(scope="session")
def real_text() -> np.ndarray:
    """English bytes: the validation split of WikiText-2, else the embedded corpus."""
    folder = os.environ.get("SPHEROID_DATA", "")
    path = Path(folder) / "wikitext-2-raw" / "wiki.valid.raw"
    if folder and path.is_file():
        return np.fromfile(path, np.uint8)
    return load_corpus("embedded").train


@pytest.fixture
def wiki(tmp_path: Path) -> FakeWikiText:
    raw = {
        "train": " \n = Böhmen = \n \n Some <unk> text .\u2028 More . \n \n".encode()
        * 300,
        "valid": b" \n = Valid = \n \n Other text . \n" * 40,
        "test": b" \n = Test = \n \n Final text . \n" * 50,
    }
    stems = {"train": "train", "valid": "validation", "test": "test"}
    shards = {
        f"wikitext-2-raw-v1/{stem}-00000-of-00001.parquet": FakeWikiText.as_parquet(
            raw[split], tmp_path / "source" / stem
        )
        for split, stem in stems.items()
    }
    return FakeWikiText(raw, shards)


@pytest.fixture
def official(wiki: FakeWikiText, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the fake the official WikiText-2."""
    digests = {s: (len(d), hashlib.sha256(d).hexdigest()) for s, d in wiki.raw.items()}
    monkeypatch.setitem(wikitext.OFFICIAL, "wikitext-2-raw", digests)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every hub refuses the connection at once."""
    hubs = ("http://127.0.0.1:9", "http://127.0.0.1:9/x")
    monkeypatch.setattr(wikitext, "HUBS", hubs)


@pytest.fixture
def cache_folder(tmp_path: Path) -> Path:
    """Where WikiText-2 is cached."""
    return tmp_path / "xdg" / "spheroid_jax" / "wikitext-2-raw"


@pytest.fixture
def serve() -> Iterator[Callable[[Pages], str]]:
    """A function that serves pages from a port of its own and returns the address.

    A page has a status, an announced length (None: the true one) and a body, which
    for status 302 is the address to go to.
    """
    servers = []

    def start(pages: Pages) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, announced, body = pages.get(self.path, (404, None, b"gone"))
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", body.decode())
                    body = b""
                length = len(body) if announced is None else announced
                self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
