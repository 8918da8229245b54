import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from spheroid_jax.reports.log import METRICS, MetricsError, MetricsLog, read_metrics


def write_rounds(log: MetricsLog, method: str, rounds: range) -> None:
    for round_ in rounds:
        metrics = {"ce": 3.0 - round_ / 10, "bytes_seen": 1000 * round_}
        log.write(method, round_, metrics, step=20 * round_, seconds=1.5 * round_)


def rounds_of(path: Path, method: str) -> list[int]:
    return [r["round"] for r in read_metrics(path) if r["method"] == method]


def strict(line: str) -> Any:
    """JSON without Python's NaN and Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} isn't JSON")

    return json.loads(line, parse_constant=refuse)


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    """(tag, step, value) that TensorBoard shows, which heeds a purge of later steps."""
    seen: list[tuple[str, int, float]] = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:  # length (8), its crc (4), event, its crc (4)
            size = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]
            if event.HasField("session_log"):
                seen = [s for s in seen if s[1] < event.step]
            seen += [(v.tag, event.step, v.simple_value) for v in event.summary.value]
    return seen


def test_a_record_is_one_line_in_the_order_it_was_given(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        log.write("blocktrain", 3, {"ce": 1.5, "n": 7}, step=60, seconds=2.25)
        text = (tmp_path / METRICS).read_text()  # flushed, though still open
    assert text == (
        '{"method": "blocktrain", "round": 3, "step": 60, "seconds": 2.25, '
        '"ce": 1.5, "n": 7}\n'
    )
    assert read_metrics(tmp_path / METRICS) == [json.loads(text)]


def test_a_number_that_is_not_finite_is_null(tmp_path: Path) -> None:
    metrics = {"a": float("nan"), "b": np.float32("inf"), "c": np.float32(0.5)}
    with MetricsLog(tmp_path) as log:
        log.write("m", 1, metrics, step=1, seconds=0.0)
    record = strict((tmp_path / METRICS).read_text())
    assert (record["a"], record["b"], record["c"]) == (None, None, 0.5)
    assert scalars(tmp_path / "tensorboard" / "m") == [("c", 1, 0.5)]


def test_a_metric_can_not_take_the_place_of_the_round(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log, pytest.raises(ValueError, match="'round'"):
        log.write("m", 1, {"round": 2.0}, step=1, seconds=0.0)


def test_rewind_forgets_the_later_rounds_of_one_method(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    with MetricsLog(tmp_path) as log:
        write_rounds(log, "a", range(1, 6))
        write_rounds(log, "b", range(1, 6))
    with MetricsLog(tmp_path) as log:
        log.rewind("a", 3)
        assert rounds_of(path, "a") == [1, 2, 3]
        write_rounds(log, "a", range(4, 6))
        log.rewind("a", 4)  # within a session too
        write_rounds(log, "a", range(5, 8))
    assert rounds_of(path, "a") == [1, 2, 3, 4, 5, 6, 7]
    assert rounds_of(path, "b") == [1, 2, 3, 4, 5]
    shown = [step for tag, step, _ in scalars(tmp_path / "tensorboard" / "a")]
    assert sorted(shown) == sorted([1, 2, 3, 4, 5, 6, 7] * 2)  # ce and bytes_seen


def test_rewind_of_an_empty_log_does_nothing(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        log.rewind("a", 0)
        write_rounds(log, "a", range(1, 3))
    assert rounds_of(tmp_path / METRICS, "a") == [1, 2]


@pytest.mark.parametrize("torn", ['{"method": "a", "rou', "{", "\0\0\0"])
def test_a_torn_last_line_is_dropped(tmp_path: Path, torn: str) -> None:
    path = tmp_path / METRICS
    with MetricsLog(tmp_path) as log:
        write_rounds(log, "a", range(1, 4))
    with path.open("a") as file:
        file.write(torn)
    assert rounds_of(path, "a") == [1, 2, 3]
    with MetricsLog(tmp_path) as log:  # and isn't glued to the next record
        write_rounds(log, "a", range(4, 5))
    assert rounds_of(path, "a") == [1, 2, 3, 4]


def test_a_last_record_without_its_newline_counts(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    with MetricsLog(tmp_path) as log:
        write_rounds(log, "a", range(1, 4))
    os.truncate(path, path.stat().st_size - 1)
    with MetricsLog(tmp_path) as log:
        write_rounds(log, "a", range(4, 5))
    assert rounds_of(path, "a") == [1, 2, 3, 4]


@pytest.mark.parametrize("garbage", ["{", "[1, 2]", '{"round": 1}', "hello"])
def test_garbage_elsewhere_is_one_line_with_its_number(
    tmp_path: Path, garbage: str
) -> None:
    path = tmp_path / METRICS
    with MetricsLog(tmp_path) as log:
        write_rounds(log, "a", range(1, 3))
    path.write_text(path.read_text().replace("\n", f"\n{garbage}\n", 1))
    with pytest.raises(MetricsError) as error:
        read_metrics(path)
    assert f"{path} line 2 " in str(error.value)
    assert "\n" not in str(error.value)


def test_no_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MetricsError, match="No such file"):
        read_metrics(tmp_path / METRICS)


WRITE_FOR_EVER = """
    import itertools, sys
    from pathlib import Path
    from spheroid_jax.reports.log import MetricsLog

    log = MetricsLog(Path(sys.argv[1]))
    for round_ in itertools.count(1):
        log.write("m", round_, {"ce": 1.0}, step=1, seconds=0.0)
        print(round_, flush=True)
    """


def test_a_kill_loses_no_record_that_was_written(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITE_FOR_EVER), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    announced = [int(process.stdout.readline()) for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    announced += map(int, process.stdout.read().split())
    process.wait()
    process.stdout.close()
    rounds = rounds_of(tmp_path / METRICS, "m")
    assert rounds == list(range(1, len(rounds) + 1))
    assert len(rounds) >= len(announced)
