"""Processes that are watched: started, looked at, told to end, and cleaned up after.

Each writes to a file of its own. Whatever happens to this process, nothing of theirs is
left behind: :mod:`spheroid_jax.runs.exchange.keeper`, a process of its own, sees to it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from spheroid_jax.runs.exchange import keeper
from spheroid_jax.runs.exchange.hosts import HOSTS, Hosts, HostsError

GRACE = 5.0  # seconds between a request to end and the end
LINK = ".link"  # ends the name of a link
POLL = 0.05  # seconds between looks
TAIL = 4096  # bytes of an output that are looked at for its last lines
WIDTH = 300  # characters of such a line
_PAUSES = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGCONT)


class FleetError(RuntimeError):
    """A process ended that shouldn't have, or couldn't start; one line says which."""


class Fleet:
    """Processes and the hosts they run on. A context manager: it closes.

    Attributes:
      hosts: where they run.
      addresses: by name, ``HOST:PORT`` at which a process reaches the coordinator,
        through its link where it has one.
      logs: by name, the file with a process's output; of links, ``NAME.link``.

    Args:
      directory: of the outputs; is there already.
      hosts: see :data:`spheroid_jax.runs.exchange.hosts.HOSTS`.
      environment: what is set in the processes' environment, beside this process's.

    Raises:
      FleetError: there are no such hosts here.
    """

    def __init__(self, directory: Path, hosts: str, environment: Mapping[str, str]):
        self._directory, self._environment = directory, environment
        self.addresses: dict[str, str] = {}
        self.logs: dict[str, Path] = {}
        self._commands: dict[str, list[str]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._begun: dict[str, float] = {}
        self._expected: set[str] = set()  # to end, since somebody told them to
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is not for it
        )
        try:
            self.hosts: Hosts = HOSTS[hosts](self._tell_namespace)
        except HostsError as error:
            self.close()
            raise FleetError(str(error)) from None

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def network(self) -> str:
        """What the processes are connected by, for the report."""
        return self.hosts.kind

    def add(self, name: str, argv: Sequence[str], host: str = "") -> None:
        """Says what a process is; :meth:`launch` starts it.

        Args:
          name: also of its output, which begins anew.
          argv: program and arguments.
          host: of whose process; its own by default.
        """
        self._commands[name] = self.command(host or name, argv)
        self.logs[name] = self._directory / f"{name}.log"
        self.logs[name].unlink(missing_ok=True)

    def launch(self, name: str) -> None:
        """Starts a process that was to come later, or one that has ended, again.

        Its output goes on in the same file.

        Raises:
          ValueError: there is none of this name, or it runs.
          FleetError: it can't be started.
        """
        if name not in self._commands:
            known = ", ".join(self._commands)
            raise ValueError(f"name = {name!r}: the processes are {known}")
        if name in self._running and self._running[name].poll() is None:
            raise ValueError(f"name = {name!r}: it runs already")
        self._forget(name)
        with self.logs[name].open("ab") as output:
            try:
                process = subprocess.Popen(
                    self._commands[name],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self._environment},
                    start_new_session=True,  # a group of its own, to end as one
                )
            except OSError as error:
                why = error.strerror or str(error)
                raise FleetError(f"{name} can't be started: {why}") from None
        self._running[name], self._begun[name] = process, time.monotonic()
        self._tell(f"+process {process.pid}")
        self._expected.discard(name)

    def statuses(self) -> dict[str, int | None]:
        """Exit statuses by name, without the links'; None while a process runs.

        Negative: the number of the signal that ended it.
        """
        return {
            name: process.poll()
            for name, process in self._running.items()
            if not name.endswith(LINK)
        }

    def check(self) -> None:
        """Looks whether all is well.

        Raises:
          FleetError: a process has failed, and nobody had told it to end.
        """
        for name, process in self._running.items():
            status = process.poll()
            if status and name not in self._expected:
                seconds = time.monotonic() - self._begun[name]
                raise FleetError(
                    f"{name} {_ended(status)} within {seconds:.1f} s; its last lines: "
                    f"{last_lines(self.logs[name])} (all are in {self.logs[name]})"
                )

    def wait(
        self, timeout: float, names: Collection[str] | None = None
    ) -> dict[str, int]:
        """Waits until processes have ended; returns their exit statuses.

        Args:
          timeout: seconds.
          names: of these; by default of all that were started.

        Raises:
          FleetError: any process has failed, and nobody had told it to end.
          TimeoutError: some still run; one line names them.
        """
        deadline = time.monotonic() + timeout
        while True:
            self.check()
            statuses = self.statuses()
            waited = statuses if names is None else {n: statuses[n] for n in names}
            ended = {n: s for n, s in waited.items() if s is not None}
            if len(ended) == len(waited):
                return ended
            if time.monotonic() >= deadline:
                still = ", ".join(sorted(waited.keys() - ended.keys()))
                raise TimeoutError(f"not ended after {timeout:g} s: {still}")
            time.sleep(POLL)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Sends a signal to a process, and not to what it has started itself.

        After one that may end it, :meth:`check` doesn't mind its end.
        """
        if number not in _PAUSES:
            self._expected.add(name)
        self._running[name].send_signal(number)

    def command(self, name: str, argv: Sequence[str]) -> list[str]:
        """What runs another command on the host of a process, as one to ask it."""
        return self.hosts.command(name, argv)

    def close(self) -> None:
        """Ends all processes, first with SIGTERM, and removes their hosts."""
        for process in self._running.values():
            if process.poll() is None:
                with contextlib.suppress(OSError):
                    process.send_signal(signal.SIGTERM)
                    process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + GRACE
        for process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        # What is left, the keeper ends: it does so too where we are killed.
        with contextlib.suppress(OSError):
            if self._keeper.stdin:
                self._keeper.stdin.close()
        self._keeper.wait()
        for process in self._running.values():
            process.kill()  # if somebody killed the keeper
            process.wait()

    def _tell(self, line: str) -> None:
        assert self._keeper.stdin
        try:
            self._keeper.stdin.write(f"{line}\n".encode())
            self._keeper.stdin.flush()
        except OSError:
            raise FleetError("who cleans up behind the processes is gone") from None

    def _tell_namespace(self, name: str) -> None:
        self._tell(f"+namespace {name}")

    def _forget(self, name: str) -> None:
        """Ends what an ended process has left, and tells the keeper."""
        process = self._running.pop(name, None)
        if process:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            self._tell(f"-process {process.pid}")


def last_lines(log: Path, count: int = 3) -> str:
    """The last lines of an output, as one."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        text = ""
    lines = ["".join(c for c in line if c.isprintable()) for line in text.split("\n")]
    kept = [line.strip()[:WIDTH] for line in lines if line.strip()][-count:]
    return " | ".join(kept) or "none"


def _ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"
