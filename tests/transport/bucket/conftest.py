"""A local S3 server if there is one to run, and a coordinator that is none."""

import asyncio
import contextlib
import hashlib
import json
import logging
import secrets
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from spheroid_jax import manifests
from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.coordinator_side import serve_bucket
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.bucket.worker_side import BucketLink
from spheroid_jax.transport.http.retry import Pace
from spheroid_jax.transport.protocol import (
    VERSION,
    Heartbeat,
    Item,
    Leave,
    ProtocolError,
    Pulse,
    Register,
    Registered,
    Upload,
    Verdict,
    Work,
    WorkRequest,
    upload_name,
)

POLL = 0.01
PACE = Pace(patience=10.0, first_patience=10.0, first_delay=0.01, longest_delay=0.05)
TOKENS = {"ada": "spheroid_a", "bob": "spheroid_b"}


def make_item(directory: Path, seed: int, size: int) -> Item:
    """An item as checkpoints write it, of random bytes."""
    directory.mkdir(parents=True)
    data = np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()
    piece = 4 << 20
    digests = [
        blake3(data[at : at + piece]).hexdigest() for at in range(0, size, piece)
    ]
    leaves = {"a": {"is": f"uint8[{size}]", "dtype": "uint8", "shape": [size]}}
    box = {"leaf": "a", "start": [0], "shape": [size], "offset": 0, "blake3": digests}
    index = {"bytes": size, "piece": piece, "leaves": leaves, "boxes": [box]}
    content = json.dumps(index).encode()
    (directory / "index.0.json").write_bytes(content)
    (directory / "data.0").write_bytes(data)
    digest = manifests.sha256_of_json([hashlib.sha256(content).hexdigest()])
    return Item(digest, size)


class FakeCoordinator:
    """As much of one as the front needs: a round closes when all have been heard.

    ``accepted`` is what outlives a restart: the content of updates, by name.
    """

    def __init__(self, root: Path, workers: int, rounds: int, size: int = 1000):
        self.root, self.workers, self.rounds = root, workers, rounds
        self.accepted: dict[str, bytes] = {}
        self.commits: list[str] = []
        self.sessions: dict[str, str] = {}  # that registered last
        self.came: dict[str, list[str]] = {}  # in the order of their coming
        self.speaker: dict[str, str] = {}
        self.round = 0
        self.up: dict[str, int] = {}
        self.down: dict[str, int] = {}
        self.left: list[str] = []
        self.beats: list[Heartbeat] = []
        self.items = {
            (r, kind): make_item(root / f"{r}-{kind}", 2 * r + n, size)
            for r in range(rounds)
            for n, kind in enumerate(("block", "interface"))
        }
        self.busy = 0  # commits that find the disk full
        self.news = asyncio.Event()

    def restart(self) -> None:
        self.sessions.clear()
        self.came.clear()
        self.speaker.clear()
        self.news = asyncio.Event()

    async def register(self, worker: str, request: Register) -> Registered:
        if request.protocol != VERSION:
            raise ProtocolError("another version", status=409, code="version")
        self.sessions[worker] = request.session
        came = self.came.setdefault(worker, [])
        if request.session not in came:
            came.append(request.session)
        return Registered(VERSION, "run", worker, {"x": 1}, "0" * 64, "", 60.0, 5.0)

    def check(self, worker: str, session: str) -> None:
        came, speaker = self.came.get(worker, []), self.speaker.get(worker)
        if session not in came:
            raise ProtocolError("register first", status=409, code="unknown")
        if speaker and came.index(session) < came.index(speaker):
            raise ProtocolError("another process", status=409, code="superseded")

    def speaks(self, worker: str, session: str) -> None:
        self.check(worker, session)
        if self.speaker.get(worker) != session:
            self.speaker[worker] = session
            self.tell()

    def tell(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()

    async def work(self, worker: str, request: WorkRequest) -> Work:
        self.speaks(worker, request.session)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(request.wait):
                while request.after >= self.round < self.rounds:
                    await self.news.wait()
                    self.check(worker, request.session)
        if self.round >= self.rounds:
            return Work("stop", why="done")
        if request.after >= self.round:
            return Work("wait")
        kinds = ("block", "interface")
        items = {kind: self.items[self.round, kind] for kind in kinds}
        return Work("train", round=self.round, deadline=100.0, items=items, ticket="t")

    async def heartbeat(self, worker: str, request: Heartbeat) -> Pulse:
        if request.doing == "waiting":
            self.check(worker, request.session)  # it may only start
        else:
            self.speaks(worker, request.session)
        self.beats.append(request)
        return Pulse(self.round, request.round == self.round)

    async def leave(self, worker: str, request: Leave) -> None:
        self.speaks(worker, request.session)
        self.left.append(worker)

    async def begin(self, worker: str, request: Upload) -> Verdict | None:
        self.speaks(worker, request.session)
        if request.bytes > 100_000_000:
            raise ProtocolError("too large", status=413, code="too_large")
        name = upload_name(worker, request)
        if name in self.accepted:
            return Verdict("accepted", applies_in=request.round)
        if request.round != self.round:
            return Verdict("late")
        for other in self.accepted:
            if other.startswith(f"{request.round}-") and f"-{worker}-" in other:
                return Verdict("duplicate")
        return None

    async def commit(self, worker: str, request: Upload, path: Path) -> Verdict:
        self.speaks(worker, request.session)
        if self.busy:
            self.busy -= 1
            raise ProtocolError("full", status=507, code="disk_full")
        name = upload_name(worker, request)
        content = path.read_bytes()
        assert blake3(content).hexdigest() == request.blake3
        self.commits.append(name)
        self.accepted[name] = content
        path.unlink()
        heard = sum(n.startswith(f"{self.round}-") for n in self.accepted)
        if heard == self.workers:
            self.round += 1
            self.tell()
        return Verdict("accepted", applies_in=request.round)

    def item(self, digest: str) -> Path | None:
        for (r, kind), item in self.items.items():
            if item.digest == digest:
                return self.root / f"{r}-{kind}"
        return None

    def worker_of(self, token: str) -> str | None:
        return None

    def status(self) -> dict[str, Any]:
        return {"run": "run", "round": self.round}

    async def changed(self, seen: int, wait: float) -> int:
        return seen

    def add_bytes(self, worker: str, *, down: int = 0, up: int = 0) -> None:
        self.up[worker] = self.up.get(worker, 0) + up
        self.down[worker] = self.down.get(worker, 0) + down


class Bench:
    """A coordinator's front on a store, and what makes workers of it."""

    def __init__(self, store: BlobStore, root: Path, signed: bool = True):
        self.store, self.root, self.signed = store, root, signed
        self.said: list[str] = []
        self.coordinator = FakeCoordinator(root / "coordinator", 2, 3)

    def keys(self, name: str) -> bytes | None:
        return layout.key_of(TOKENS[name]) if name in TOKENS else None

    @contextlib.asynccontextmanager
    async def serving(self, store: BlobStore | None = None) -> AsyncIterator[None]:
        task = asyncio.create_task(
            serve_bucket(
                self.coordinator,
                store or self.store,
                self.root / "incoming",
                keys=self.keys if self.signed else None,
                poll_seconds=POLL,
                say=self.said.append,
            )
        )
        try:
            yield
        finally:
            if task.done():
                task.result()  # it ended by itself
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def link(self, name: str, **options: Any) -> BucketLink:
        given = {"token": TOKENS.get(name) if self.signed else None, "pace": PACE}
        store = options.pop("store", self.store)
        return BucketLink(store, name, **{**given, **options})


def session() -> str:
    return secrets.token_hex(16)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(BlobStore("memory://"), tmp_path)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    server = pytest.importorskip("moto.server", reason="pip install 'moto[s3]' flask")
    boto3 = pytest.importorskip("boto3")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    _, port = running.get_host_and_port()
    endpoint = f"http://127.0.0.1:{port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="models")
    yield endpoint
    running.stop()


@pytest.fixture
def s3(
    s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Callable[[str], str]:
    """Gives the address of a prefix, one of this test alone."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    own = zlib.crc32(request.node.nodeid.encode())
    return lambda prefix: f"s3://models/{own}/{prefix}?endpoint={s3_endpoint}"
