"""An update on its way is there until it is delivered, whole or not at all."""

import uuid
from pathlib import Path

import msgspec
import pytest

from spheroid_jax import manifests
from spheroid_jax.transport.outbox import Outbox
from spheroid_jax.transport.protocol import Upload

UPLOAD = Upload(
    session=uuid.UUID(int=1).hex, round=3, block=1, replica=0, attempt=7, bytes=5,
    blake3="0" * 64, ticket="given", loss=1.5,
)  # fmt: skip


def filled(directory: Path) -> Outbox:
    outbox = Outbox(directory)
    outbox.file.write_bytes(b"12345")
    outbox.put(UPLOAD)
    return outbox


def test_a_new_one_is_empty(tmp_path: Path) -> None:
    assert Outbox(tmp_path / "a" / "b").pending() is None


def test_it_survives_its_process(tmp_path: Path) -> None:
    filled(tmp_path)
    again = Outbox(tmp_path)
    assert again.pending() == UPLOAD
    assert again.file.read_bytes() == b"12345"
    again.clear()
    assert Outbox(tmp_path).pending() is None
    assert not list(tmp_path.iterdir())
    again.clear()  # and again


@pytest.mark.parametrize("left", [b"1234", b"123456", b"", None])
def test_a_file_of_another_size_is_no_update(
    tmp_path: Path, left: bytes | None
) -> None:
    outbox = filled(tmp_path)
    if left is None:
        outbox.file.unlink()
    else:
        outbox.file.write_bytes(left)
    assert outbox.pending() is None


@pytest.mark.parametrize("letter", [b"", b"{", b"[]", b"\xff", b'{"round": "3"}'])
def test_a_damaged_letter_is_none(tmp_path: Path, letter: bytes) -> None:
    outbox = filled(tmp_path)
    (tmp_path / "upload.json").write_bytes(letter)
    assert outbox.pending() is None


def test_a_disk_that_refuses_leaves_the_letter_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = filled(tmp_path)

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifests, "sync", full)
    with pytest.raises(OSError, match="No space"):
        outbox.put(msgspec.structs.replace(UPLOAD, round=4))
    assert Outbox(tmp_path).pending() == UPLOAD
