"""More than 2 GiB each way: no limit of a message, a field or a signed number."""

import asyncio
import hashlib
import os
import resource
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from spheroid_jax.transport.http.client import HttpLink
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.protocol import Upload, Verdict
from tests.transport.http import server_fakes
from tests.transport.http.client_server import SECRET, SESSION
from tests.transport.items.making import item_of

SIZE = (2 << 30) + (8 << 20)
PIECE = 4 << 20


def sparse(path: Path) -> Path:
    """Zeros that take no space, and a byte in the end that isn't."""
    with path.open("wb") as file:
        file.truncate(SIZE)
        os.pwrite(file.fileno(), b"!", SIZE - 1)
    return path


def zeros(size: int, last: bytes = b"") -> str:
    return blake3(bytes(size - len(last)) + last).hexdigest()


@pytest.mark.slow
def test_two_gigabytes_each_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(server_fakes.TOKENS, SECRET, "ada")
    (tmp_path / "item").mkdir()
    data = sparse(tmp_path / "item" / "data.0")
    digests = [zeros(PIECE)] * (SIZE // PIECE - 1) + [zeros(PIECE, b"!")]
    index = {
        "bytes": SIZE,
        "piece": PIECE,
        "leaves": {"w": {"is": f"int8[{SIZE}]", "dtype": "int8", "shape": [SIZE]}},
        "boxes": [
            {"leaf": "w", "start": [0], "shape": [SIZE], "offset": 0, "blake3": digests}
        ],
    }
    item, content = item_of(index, SIZE)
    (tmp_path / "item" / "index.0.json").write_bytes(content)
    with data.open("rb") as file:
        digest = hashlib.file_digest(file, blake3).hexdigest()  # type: ignore[arg-type]

    async def commit(worker: str, request: Upload, path: Path) -> Verdict:
        assert path.stat().st_size == SIZE
        path.unlink()
        return Verdict("accepted")

    async def scenario() -> None:
        async with server_fakes.served(tmp_path / "home", quota=4 << 30) as there:
            there.coordinator.items[item.digest] = tmp_path / "item"
            changed: Any = there.coordinator
            changed.commit = commit
            async with HttpLink(there.url, Token(SECRET)) as link:
                target = tmp_path / "cache" / "item"
                assert await link.fetch(item, target) == SIZE + len(content)
                (target / "data.0").unlink()
                upload = Upload(SESSION, 0, 0, 0, 0, SIZE, digest, ticket="")
                assert (await link.submit(upload, data)).verdict == "accepted"

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    asyncio.run(asyncio.wait_for(scenario(), 300))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 256 << 10  # KiB; both ends are in this process
