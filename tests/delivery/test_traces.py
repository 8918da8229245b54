"""Networks from CSV files: what they mean, and the line that a bad one gets."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from spheroid_jax.delivery.profiles import Profile
from spheroid_jax.delivery.traces import phases, read_phases, read_profiles


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


# Profiles.


def test_profiles_are_rows_and_what_is_left_out_is_the_default(tmp_path: Path) -> None:
    text = (
        'share, step_seconds,down,leave_seconds\n3,0.5,1e6,\n\n  1 ,"2", inf ,86_400\n'
    )
    expected = (
        Profile(share=3, step_seconds=0.5, down=1e6),
        Profile(share=1, step_seconds=2, leave_seconds=86400),
    )
    file = tmp_path / "kinds.csv"
    assert read_profiles(write(file, text)) == expected
    assert read_profiles(str(file)) == expected
    # Spreadsheets write a mark at the beginning, and two bytes at an end of line.
    marked = b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()
    assert read_profiles(write(file, marked)) == expected


BAD_PROFILES = {
    "empty": ("", "the file is empty: give a header and rows"),
    "blank": ("\n\n", "the file is empty: give a header and rows"),
    "header only": ("share\n", "there is no worker: give a row for each kind"),
    "unknown": ("share,speed\n1,2\n", "line 1: no field 'speed': use share, step_sec"),
    "unnamed": ("share,\n1,2\n", "line 1: no field ''"),
    "twice": ("up,share,up\n1,2,3\n", "line 1: field 'up' twice: leave one out"),
    "short row": ("share,up\n1,2\n\n3\n", "line 4: 1 cells where the header has 2"),
    "long row": ("share\n1,2\n", "line 2: 2 cells where the header has 1"),
    "text": ("share\n1\nfast\n", "line 3: 'fast' is not a number"),
    "nan": ("share\nnan\n", "line 2: 'nan' is not a number"),
    "range": ("dropout\n0.5\n1.5\n", "line 3: dropout must be in [0, 1], got 1.5"),
    "negative": ("up\n-1\n", "line 2: up must be > 0, got -1.0"),
    "endless": ("share\ninf\n", "line 2: share must be finite, got inf"),
    "bytes": (b"share\n\xff\xfe\x00\n", "line 2: '\ufffd\ufffd\\x00' is not a number"),
    "huge cell": ("share\n" + "1" * 200_000 + "\n", "line 2: field larger than"),
}


@pytest.mark.parametrize("name", BAD_PROFILES)
def test_a_bad_file_of_profiles_gets_one_line(tmp_path: Path, name: str) -> None:
    text, complaint = BAD_PROFILES[name]
    file = write(tmp_path / "kinds.csv", text)
    with pytest.raises(ValueError, match=re.escape(complaint)) as caught:
        read_profiles(file)
    message = str(caught.value)
    assert message.startswith(f"{file}")
    assert "\n" not in message


# Times.


def test_times_are_rows_of_rounds(tmp_path: Path) -> None:
    file = write(tmp_path / "times.csv", "1, 2.5,\n\n0,inf,3\n")
    times = read_phases(file)
    assert times.dtype == np.float32
    np.testing.assert_array_equal(times, [[1, 2.5, math.inf], [0, math.inf, 3]])
    one = read_phases(write(file, "7\n8\n"))
    np.testing.assert_array_equal(one, [[7], [8]])


BAD_TIMES = {
    "empty": ("", "the trace is empty: give a row of times a round"),
    "ragged": ("1,2\n\n1,2,3\n", "line 3: 3 times where the first row has 2"),
    "negative": ("1,2\n1,-2\n", "line 2: -2.0 seconds: a time must be >= 0"),
    "minus infinity": ("1,-inf\n", "line 1: -inf seconds: a time must be >= 0"),
    "text": ("1,2\n1,x\n", "line 2: 'x' is not a number"),
    "header": ("worker 0,worker 1\n1,2\n", "line 1: 'worker 0' is not a number"),
    "nan": ("1\nnan\n", "line 2: 'nan' is not a number"),
    "huge cell": ("1\n" + "1" * 200_000 + "\n", "line 2: field larger than"),
}


@pytest.mark.parametrize("name", BAD_TIMES)
def test_a_bad_file_of_times_gets_one_line(tmp_path: Path, name: str) -> None:
    text, complaint = BAD_TIMES[name]
    file = write(tmp_path / "times.csv", text)
    with pytest.raises(ValueError, match=re.escape(complaint)) as caught:
        read_phases(file)
    message = str(caught.value)
    assert message.startswith(f"{file}")
    assert "\n" not in message


@pytest.mark.parametrize("read", [read_profiles, read_phases])
def test_no_file_is_an_error_of_the_system(tmp_path: Path, read: object) -> None:
    assert callable(read)
    with pytest.raises(FileNotFoundError, match=r"none\.csv"):
        read(tmp_path / "none.csv")
    with pytest.raises(IsADirectoryError):
        read(tmp_path)


def test_a_worker_takes_its_column_and_a_short_trace_starts_again() -> None:
    times = np.array([[0.0, 1.0, 2.0, 3.0, math.inf], [10.0, 11.0, 12.0, 13.0, 14.0]])
    found = phases(times, rounds=3, blocks=3, replicas=2)
    # Worker (b, k) takes column 3 k + b of five.
    np.testing.assert_array_equal(
        found.seconds,
        [
            [[0, 3], [1, math.inf], [2, 0]],
            [[10, 13], [11, 14], [12, 10]],
            [[0, 3], [1, math.inf], [2, 0]],
        ],
    )
    np.testing.assert_array_equal(found.lost, np.isinf(found.seconds))
    assert phases(times, 1, 1, 1).seconds.tolist() == [[[0.0]]]


@pytest.mark.parametrize("shape", [(3,), (0, 2), (2, 0)])
def test_times_without_rounds_or_workers_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"times must have shape \(rounds, workers\)"):
        phases(np.zeros(shape), 1, 1, 1)
