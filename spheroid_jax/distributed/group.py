"""Which process this is, of which group: from the flags of a command line."""

from typing import NamedTuple

from spheroid_jax.fields import ConfigError

JOIN_TIMEOUT = 300  # seconds
HEARTBEAT_TIMEOUT = 60  # seconds


class Group(NamedTuple):
    """Which process this is, of which group.

    Attributes:
      coordinator: ``HOST:PORT`` where process 0 listens; the host is as others see it.
      processes: how many there are.
      process: which this is, from 0.
      detect: let JAX find the three out (SLURM, Open MPI, Kubernetes, Cloud TPU).
      join_timeout: seconds in which every process must have started.
      heartbeat_timeout: seconds of silence after which a process counts as dead.
    """

    coordinator: str = ""
    processes: int = 1
    process: int = 0
    detect: bool = False
    join_timeout: int = JOIN_TIMEOUT
    heartbeat_timeout: int = HEARTBEAT_TIMEOUT

    @property
    def several(self) -> bool:
        """Whether there may be other processes."""
        return self.detect or self.processes > 1


def group_from_flags(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    detect: bool = False,
    join_timeout: int = JOIN_TIMEOUT,
    heartbeat_timeout: int = HEARTBEAT_TIMEOUT,
) -> Group:
    """The group that the flags of a command line describe.

    Raises:
      ConfigError: flags are missing, contradict each other or are out of range.
    """
    timeouts = (join_timeout, heartbeat_timeout)
    for flag, seconds in zip(
        ("--join-timeout", "--heartbeat-timeout"), timeouts, strict=True
    ):
        if seconds < 1:
            raise ConfigError(f"{flag}={seconds} must be at least 1 (seconds)")
    given = {
        "--coordinator": coordinator,
        "--processes": processes,
        "--process": process,
    }
    named = [flag for flag, value in given.items() if value is not None]
    if detect and named:
        raise ConfigError(
            f"--distributed finds the processes by itself: leave {named[0]} out, or "
            "--distributed"
        )
    if not named:
        return Group("", 1, 0, detect, *timeouts)
    if coordinator is None or processes is None or process is None:
        missing = [flag for flag, value in given.items() if value is None]
        raise ConfigError(
            f"{named[0]} needs {' and '.join(missing)} too: write "
            "--coordinator=HOST:PORT --processes=N --process=I"
        )
    if processes < 1:
        raise ConfigError(f"--processes={processes} must be at least 1")
    if not 0 <= process < processes:
        raise ConfigError(
            f"--process={process} is none of --processes={processes}: they are "
            f"numbered 0 to {processes - 1}"
        )
    host_and_port(coordinator)
    return Group(coordinator, processes, process, False, *timeouts)


def host_and_port(coordinator: str) -> tuple[str, int]:
    """The two halves of ``HOST:PORT``.

    Raises:
      ConfigError: it isn't of that form.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"--coordinator={coordinator} is not HOST:PORT: name the host of process 0 "
            "and a free port of it, such as node1:29400"
        )
    return host.strip("[]"), int(port)
