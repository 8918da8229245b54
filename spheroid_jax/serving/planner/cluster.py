"""Hosts and the links between them: what a user tells of the machines."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spheroid_jax.serving.errors import ServingError

GIB = 2**30
_HOST = "NAME:GiB:GB/s:TFLOP/s[:OVERHEAD[:LAUNCH]]"


def _positive(what: str, name: str, value: Any, zero: bool = False) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    low = value >= 0 if number and zero else number and value > 0
    if not number or math.isnan(value) or not low:
        least = "from 0" if zero else "above 0"
        raise ServingError(f"{name} of {what} is {value!r}; give a number {least}")


@dataclasses.dataclass(frozen=True)
class Host:
    """A machine that holds blocks.

    Attributes:
      name: for tables and messages.
      memory: GiB for parameters, cache and work space.
      bandwidth: of that memory, GB/s (1e9 bytes).
      flops: that matmuls of the model reach, TFLOP/s.
      overhead: seconds of a step that neither explains: launching kernels, queueing,
        packing what is sent.
      launch: seconds of each drafted byte that its computing and reading don't explain:
        a pass through a block is many small kernels.
    """

    name: str
    memory: float
    bandwidth: float
    flops: float
    overhead: float = 0.0
    launch: float = 0.0

    def __post_init__(self) -> None:
        what = f"host {self.name}"
        for field in ("memory", "bandwidth", "flops"):
            _positive(what, field, getattr(self, field))
        for field in ("overhead", "launch"):
            _positive(what, field, getattr(self, field), zero=True)

    def seconds(self, flops: float, read: float) -> float:
        """Seconds of a step: the slower of computing and of reading, by the roofline.

        Williams, Waterman and Patterson, "Roofline" (CACM 52(4), 2009).
        """
        computing = flops / (1e12 * self.flops)
        return self.overhead + max(computing, read / (1e9 * self.bandwidth))


@dataclasses.dataclass(frozen=True)
class Link:
    """One way from a machine to the next.

    Attributes:
      latency: seconds, half of a round trip.
      rate: bytes per second; inf: no bound.
    """

    latency: float = 0.0
    rate: float = math.inf

    def __post_init__(self) -> None:
        _positive("a link", "latency", self.latency, zero=True)
        _positive("a link", "rate", self.rate)

    def seconds(self, size: float) -> float:
        """Until the last of ``size`` bytes is there."""
        return self.latency + size / self.rate


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Hosts in the order of their blocks, and how they are connected.

    Attributes:
      hosts: H of them.
      links: H + 1: from the front end to the first host, from each to the next, and
        from the last back to the front end.
      frontend: seconds of the front end a trip.
    """

    hosts: tuple[Host, ...]
    links: tuple[Link, ...]
    frontend: float = 0.0

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ServingError("there are no hosts; give one at least")
        names = [host.name for host in self.hosts]
        if len(set(names)) < len(names):
            raise ServingError(f"hosts are {names}; give each a name of its own")
        if len(self.links) != len(self.hosts) + 1:
            raise ServingError(
                f"there are {len(self.links)} links for {len(self.hosts)} hosts; give "
                f"{len(self.hosts) + 1}: from the front end, between hosts, and back"
            )
        _positive("a trip", "frontend", self.frontend, zero=True)

    @classmethod
    def even(
        cls, hosts: Sequence[Host], rtt: float, rate: float = math.inf
    ) -> "Cluster":
        """All links alike: ``rtt`` seconds of a round trip, ``rate`` bytes/s."""
        link = Link(rtt / 2, rate)
        return cls(tuple(hosts), (link,) * (len(hosts) + 1))

    @property
    def latency(self) -> float:
        """Seconds of a trip that are the links' alone."""
        return sum(link.latency for link in self.links)


def parse_host(text: str) -> Host:
    """A host of ``NAME:GiB:GB/s:TFLOP/s[:OVERHEAD[:LAUNCH]]``, both in seconds.

    >>> parse_host("a100:80:1935:312:0.002").flops
    312.0
    """
    name, *rest = text.split(":")
    try:
        if name and len(rest) in (3, 4, 5):
            return Host(name, *map(float, rest))
    except ServingError:
        raise
    except ValueError:
        pass
    raise ServingError(f"host is {text!r}; write {_HOST}, such as a100:80:1935:312")


def read_cluster(path: Path, rtt: float = 0.0, rate: float = math.inf) -> Cluster:
    """A cluster of a JSON file with ``hosts``, and perhaps ``links``, ``frontend``.

    Args:
      path: of the file. Its objects have the fields of :class:`Host` and
        :class:`Link`.
      rtt, rate: of all links, where the file has none.

    Raises:
      ServingError: one line that says what is wrong with the file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        hosts = [Host(**host) for host in content["hosts"]]
        even = Cluster.even(hosts, rtt, rate)
        links = even.links
        if "links" in content:
            links = tuple(Link(**link) for link in content["links"])
        return Cluster(even.hosts, links, content.get("frontend", 0.0))
    except OSError as error:
        raise ServingError(f"can't read {path}: {error.strerror}") from error
    except ServingError as error:
        raise ServingError(f"{path}: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ServingError(
            f"{path} is no list of hosts ({error}): write "
            '{"hosts": [{"name": "a100", "memory": 80, "bandwidth": 1935, '
            '"flops": 312}], "links": [{"latency": 0.02}, ...]}'
        ) from error
