"""How much memory another process has."""

import subprocess
import sys
import time

import pytest

from benchmarks._memory import MIB, Watch, memory_of

_TAKES = """
import sys, time
print("begun", flush=True)
sys.stdin.readline()
held = bytearray(64 << 20)
time.sleep(1.0)
del held
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
def test_a_peak_is_seen_that_is_over() -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", _TAKES]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = memory_of(process.pid)
        watch = Watch(process.pid)
        watch.start()
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        peak, after = watch.end(), memory_of(process.pid)
        process.stdin.write("\n")
    assert 0 < before.own < before.resident
    assert 64 * MIB <= peak.own - before.own < 70 * MIB
    assert after.own - before.own < 6 * MIB


def test_nobody_tells_of_a_process_that_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    watch = Watch(process.pid)
    watch.start()
    time.sleep(0.25)
    assert str(watch.end().text()) == "nan MiB (nan of them its own)"
