"""Where the processes of an experiment run: one host, or several that are make-believe.

Network namespaces are the nearest to machines of their own: each has its own network
stack and address, and reaches the others over a virtual switch. They need Linux, root
and ``ip``; they touch nothing of the machine's own network.
"""

import os
import re
import secrets
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from spheroid_jax.runs.exchange.keeper import remove_namespaces

# Is called with the name of a namespace before that is made, so that somebody can
# remove it whatever happens.
Tell = Callable[[str], None]

PORT = 8470  # of the coordinator, where it has an address of its own
PREFIX = "spheroid"
# 198.18.0.0/15 is set aside for benchmarks of networks (RFC 2544): nobody's address.
SUBNET = "198.18.0"
_COMMAND = 30.0  # seconds that a call of `ip` may take


class HostsError(RuntimeError):
    """This kind of host can't be had here; one line says why."""


class Hosts(Protocol):
    """Hosts for processes, one each.

    Attributes:
      kind: for the report, such as "one host, loopback".
    """

    kind: str

    def place(self, name: str) -> str:
        """Makes the host of a process; returns its address."""

    def port(self, name: str) -> int:
        """A port that is free on a host."""

    def near(self, name: str) -> str:
        """The address on which a helper of the process listens for it alone."""

    def command(self, name: str, argv: Sequence[str]) -> list[str]:
        """What runs a command on a host."""


class SameHost:
    """All on 127.0.0.1, each at a port of its own."""

    kind = "one host, loopback"

    def place(self, name: str) -> str:
        """See :class:`Hosts`."""
        return "127.0.0.1"

    def port(self, name: str) -> int:
        """See :class:`Hosts`."""
        return _free_port("127.0.0.1")

    def near(self, name: str) -> str:
        """See :class:`Hosts`."""
        return "127.0.0.1"

    def command(self, name: str, argv: Sequence[str]) -> list[str]:
        """See :class:`Hosts`."""
        return list(argv)


class LoopbackAddresses(SameHost):
    """127.0.0.2, 127.0.0.3 and so on: addresses of their own, one network stack.

    Raises:
      HostsError: 127.0.0.2 is no address here, as on macOS by default.
    """

    kind = "loopback addresses"

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        try:
            _free_port("127.0.0.2")
        except OSError as error:
            raise HostsError(f"127.0.0.2 can't be used: {error.strerror}") from None

    def place(self, name: str) -> str:
        """See :class:`Hosts`."""
        return self._addresses.setdefault(name, f"127.0.0.{len(self._addresses) + 2}")

    def port(self, name: str) -> int:
        """See :class:`Hosts`."""
        return _free_port(self._addresses[name])

    def near(self, name: str) -> str:
        """See :class:`Hosts`."""
        return self._addresses[name]


class Namespaces:
    """Network namespaces on a bridge that is in a namespace itself.

    Raises:
      HostsError: there can be none here: no Linux, no ``ip``, or no right to.
    """

    kind = "network namespaces"

    def __init__(self, tell: Tell):
        self._tell = tell
        self._run = f"{PREFIX}-{os.getpid()}-{_started(os.getpid())}"
        self._run += f"-{secrets.token_hex(3)}"
        self._numbers: dict[str, int] = {}
        remove_stale()
        self._switch = self._add("switch")
        _ip(f"-n {self._switch} link add br0 type bridge")
        _ip(f"-n {self._switch} link set br0 up")

    def place(self, name: str) -> str:
        """See :class:`Hosts`."""
        if name in self._numbers:
            return f"{SUBNET}.{self._numbers[name]}"
        number = self._numbers[name] = len(self._numbers) + 1
        if number > 254:
            raise HostsError("254 hosts are the most of one switch")
        host, port = self._add(str(number)), f"p{number}"
        switch, address = f"-n {self._switch} link", f"{SUBNET}.{number}"
        _ip(f"{switch} add {port} type veth peer name eth0 netns {host}")
        _ip(f"{switch} set {port} master br0 up")
        _ip(f"-n {host} addr add {address}/24 dev eth0")
        _ip(f"-n {host} link set lo up")
        _ip(f"-n {host} link set eth0 up")
        return address

    def port(self, name: str) -> int:
        """See :class:`Hosts`."""
        return PORT

    def near(self, name: str) -> str:
        """See :class:`Hosts`."""
        return "127.0.0.1"  # there is one in every namespace

    def command(self, name: str, argv: Sequence[str]) -> list[str]:
        """See :class:`Hosts`."""
        host = f"{self._run}-{self._numbers[name]}"
        return ["ip", "netns", "exec", host, *argv]

    def _add(self, suffix: str) -> str:
        name = f"{self._run}-{suffix}"
        self._tell(name)
        _ip(f"netns add {name}")
        return name


def _ip(command: str) -> None:
    try:
        subprocess.run(
            ["ip", *command.split()],
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND,
        )
    except FileNotFoundError:
        raise HostsError("there is no program ip (iproute2)") from None
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise HostsError(f"ip {command}: {' '.join(said.split())}") from None


def best_hosts(tell: Tell) -> Hosts:
    """The hosts that are nearest to machines of their own; `kind` says which."""
    try:
        return Namespaces(tell)
    except HostsError as error:
        why = f" (no network namespaces: {error})"
    try:
        hosts: SameHost = LoopbackAddresses()
    except HostsError:
        hosts = SameHost()
    hosts.kind += why
    return hosts


# By the word with which a caller asks for them.
HOSTS: dict[str, Callable[[Tell], Hosts]] = {
    "best": best_hosts,
    "same": lambda tell: SameHost(),
    "loopback": lambda tell: LoopbackAddresses(),
    "namespaces": Namespaces,
}


def remove_stale() -> None:
    """Removes the namespaces of runs that are over, with all that runs in them."""
    found = []
    for path in Path("/run/netns").glob(f"{PREFIX}-*"):
        match = re.match(rf"{PREFIX}-([0-9]+)-([0-9]+)-", path.name)
        if match and _started(int(match[1])) != match[2]:
            found.append(path.name)
    remove_namespaces(found)


def _started(pid: int) -> str:
    """When a process was started, in Linux's ticks; "0" where there is none."""
    try:
        # The name of the program is in parentheses and may hold any character.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as server:
        port: int = server.getsockname()[1]
        return port
