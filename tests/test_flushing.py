"""An advice to the disk changes nothing, and its refusal is no error."""

import os
from pathlib import Path

from spheroid_jax.flushing import start_flush


def test_what_was_written_is_there_and_can_be_written_over(tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    with (tmp_path / "a").open("wb+", buffering=0) as file:
        file.write(content)
        start_flush(file.fileno(), 1 << 20, 1 << 20)
        os.pwrite(file.fileno(), b"new", 1 << 20)
        start_flush(file.fileno(), 0, 5 << 20)  # also behind its end
    expected = content[: 1 << 20] + b"new" + content[(1 << 20) + 3 :]
    assert (tmp_path / "a").read_bytes() == expected


def test_what_takes_no_advice_is_left_alone() -> None:
    reading, writing = os.pipe()
    try:
        start_flush(writing, 0, 10)
        os.write(writing, b"x")
        assert os.read(reading, 9) == b"x"
    finally:
        os.close(reading)
        os.close(writing)
