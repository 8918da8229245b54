"""What other processes take: memory and processor time, as Linux counts them."""

import os
import select
import socket
import subprocess
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def resident(pid: int, field: str = "VmRSS") -> float:
    """Bytes in memory now, or at most (``VmHWM``); NaN where nobody tells."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return float("nan")
    found = [line for line in lines if line.startswith(f"{field}:")]
    return 1024.0 * int(found[0].split()[1]) if found else float("nan")


def reset_peak(pid: int) -> None:
    """Begins ``VmHWM`` anew at what is resident now."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:
        return  # the peak is that since its start then


def cpu_seconds(pid: int) -> float:
    """Processor seconds of a process and of its threads; NaN where nobody tells."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return float("nan")
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def waiting_seconds(pid: int) -> float:
    """Seconds that a process's main thread was ready to run, but others ran."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text()
    except OSError:
        return float("nan")
    return int(text.split()[1]) / 1e9


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[str], seconds: float) -> None:
    """Waits until somebody listens; RuntimeError if that process ends before."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"{process.args!r} doesn't listen on port {port}")


def line_of(process: subprocess.Popen[str], seconds: float) -> str:
    """The next line of a process's output; RuntimeError if there is none in time."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    line = process.stdout.readline() if ready else ""
    if not line:
        raise RuntimeError(f"{process.args!r} said nothing (status {process.poll()})")
    return line.rstrip("\n")


def end(process: subprocess.Popen[str]) -> None:
    """Ends a process that was started here."""
    process.terminate()
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
