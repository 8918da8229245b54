"""Real text, a private cache, and a web server that can misbehave."""

import http.server
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from spheroid_jax.data import load_corpus

Pages = dict[str, tuple[int, int | None, bytes]]


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
