"""A coordinator and its workers as processes, on hosts with links between them."""

import importlib.util
import os
import re
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from spheroid_jax.runs.exchange.fleet import LINK, POLL, Fleet, FleetError
from spheroid_jax.runs.exchange.hosts import HOSTS, HostsError
from spheroid_jax.transport.protocol import NAME
from spheroid_jax.transport.shaping import Shape

LINK_START = 30.0  # seconds until a link must carry


def start(
    commands: Mapping[str, Sequence[str]],
    directory: Path,
    links: Mapping[str, Shape] | None = None,
    *,
    hosts: str = "",
    later: Collection[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Fleet:
    """Starts a coordinator and workers.

    Args:
      commands: by name, of which the first is the coordinator's. In their words,
        ``{listen}`` stands for the ``HOST:PORT`` where the coordinator has to listen,
        ``{coordinator}`` for that where a process reaches it.
      directory: where the outputs go, to ``NAME.log``; made if it isn't there.
      links: by name of a worker, what its way to the coordinator and back is like.
        Each link is a proxy beside the worker.
      hosts: where they run: ``same``: this host; ``namespaces``: a network namespace
        each; ``loopback``: an address of 127.0.0.0/8 each; ``best``: namespaces, or
        else addresses. By default the best where there are links, and else the same.
      later: names that are to be started by :meth:`Fleet.launch`.
      environment: what is set in the processes' environment, beside this process's.

    Raises:
      ValueError: names that can't be.
      FleetError: one of them can't be started, or there are no such hosts here.
    """
    links = links or {}
    hosts = hosts or ("best" if links else "same")
    if hosts not in HOSTS:
        raise ValueError(f"hosts = {hosts!r}: use one of {', '.join(HOSTS)}")
    _check_names(commands, links, later)
    directory.mkdir(parents=True, exist_ok=True)
    where = {"PYTHONPATH": _import_path(), **(environment or {})}
    fleet = Fleet(directory, hosts, where)
    try:
        _fill(fleet, commands, links)
        for name in commands:
            if name not in later:
                fleet.launch(name)
    except BaseException as error:
        fleet.close()
        if isinstance(error, HostsError):
            raise FleetError(str(error)) from None
        raise
    return fleet


def _fill(
    fleet: Fleet,
    commands: Mapping[str, Sequence[str]],
    links: Mapping[str, Shape],
) -> None:
    """Makes hosts and links, and fills the addresses into the commands."""
    hosts, coordinator = fleet.hosts, next(iter(commands))
    listen = f"{hosts.place(coordinator)}:{hosts.port(coordinator)}"
    for name, argv in commands.items():
        hosts.place(name)
        reached = _link(fleet, name, listen, links[name]) if name in links else listen
        fleet.addresses[name] = reached
        filled = [
            word.replace("{listen}", listen).replace("{coordinator}", reached)
            for word in argv
        ]
        fleet.add(name, filled)


def _link(fleet: Fleet, name: str, to: str, shape: Shape) -> str:
    """Starts the proxy of a process; returns where it listens."""
    link = f"{name}{LINK}"
    argv = [
        *(sys.executable, "-m", "experiments.proxy"),
        *(f"--listen={fleet.hosts.near(name)}:0", f"--to={to}"),
        *(f"--delay={shape.delay_seconds!r}", f"--rate={shape.rate_bytes!r}"),
        *(f"--loss={shape.loss!r}", f"--jitter={shape.jitter_seconds!r}"),
        f"--seed={len(fleet.addresses)}",
    ]
    fleet.add(link, argv, host=name)
    fleet.launch(link)
    deadline = time.monotonic() + LINK_START
    while time.monotonic() < deadline:
        said = fleet.logs[link].read_text()
        found = re.search(r"^listening on (\S+)\n", said, re.M)
        if found:
            return found[1]
        fleet.check()
        time.sleep(POLL)
    raise FleetError(f"{link} doesn't carry after {LINK_START:g} s: {said.strip()}")


def _check_names(
    commands: Mapping[str, object], links: Mapping[str, Shape], later: Collection[str]
) -> None:
    if not commands:
        raise ValueError("commands = {}: name the coordinator's and the workers'")
    for name in commands:
        if not re.match(NAME, name) or name.endswith(LINK):
            raise ValueError(f"commands: {name!r} is no name for a process and a file")
    for what, names in (("links", list(links)), ("later", list(later))):
        for name in names:
            if name not in commands:
                known = ", ".join(commands)
                raise ValueError(f"{what}: {name!r} is none of {known}")
    if next(iter(commands)) in links:
        raise ValueError("links: the coordinator has none; give the workers theirs")


def _import_path() -> str:
    """PYTHONPATH with which a child finds this project's packages."""
    found = importlib.util.find_spec("experiments")
    roots = [str(Path(found.origin).parents[1])] if found and found.origin else []
    return os.pathsep.join([*roots, *filter(None, [os.environ.get("PYTHONPATH")])])
