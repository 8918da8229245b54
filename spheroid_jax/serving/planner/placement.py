"""Which host holds which blocks: contiguous, balanced by memory."""

import dataclasses
import itertools

from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.planner.cluster import GIB, Cluster, Host
from spheroid_jax.serving.planner.size import ModelSize


@dataclasses.dataclass(frozen=True)
class Load:
    """How much is served at once.

    Attributes:
      slots: requests whose cache a host keeps.
      max_batch: rows of one step, at most.
      positions: of a row in a step, at most.
    """

    slots: int = 16
    max_batch: int = 8
    positions: int = 128

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or value < 1:
                raise ServingError(
                    f"{field.name} is {value!r}; give a whole number from 1"
                )


@dataclasses.dataclass(frozen=True)
class Placed:
    """The blocks of one host, and what they take in bytes.

    Attributes:
      host: who holds them.
      first: the first block.
      blocks: how many.
      parameters: with the interface.
      cache: keys and values of all slots.
      activations: work space of the largest step, an estimate.
    """

    host: Host
    first: int
    blocks: int
    parameters: int
    cache: int
    activations: int

    @property
    def total(self) -> int:
        """Bytes of all."""
        return self.parameters + self.cache + self.activations

    @property
    def missing(self) -> float:
        """Bytes that the host lacks; 0 where it fits."""
        return max(0.0, self.total - self.host.memory * GIB)

    @property
    def share(self) -> float:
        """Of the host's memory."""
        return self.total / (self.host.memory * GIB)


def place(size: ModelSize, cluster: Cluster, load: Load) -> tuple[Placed, ...]:
    """Gives every host a run of blocks, in order, so that the fullest is least full.

    Raises:
      ServingError: there are more hosts than blocks, or it doesn't fit; then it says
        how many GiB are missing, and where.
    """
    hosts = cluster.hosts
    if len(hosts) > size.blocks:
        raise ServingError(
            f"there are {len(hosts)} hosts for {size.blocks} blocks; leave "
            f"{len(hosts) - size.blocks} out, or use them as replicas"
        )
    placed = _balanced(size, hosts, load)
    lacking = [part for part in placed if part.missing]
    if lacking:
        missing = sum(part.missing for part in lacking) / GIB
        where = ", ".join(
            f"{part.host.name} lacks {part.missing / GIB:.3g}" for part in lacking
        )
        raise ServingError(
            f"{missing:.3g} GiB are missing ({where}): add a host or memory, or take "
            f"fewer slots than {load.slots} or a max_batch below {load.max_batch}"
        )
    return placed


def placed_on(
    size: ModelSize, host: Host, first: int, blocks: int, load: Load
) -> Placed:
    """What a run of blocks takes on a host."""
    return Placed(
        host=host,
        first=first,
        blocks=blocks,
        parameters=size.stage_bytes(blocks),
        cache=size.cache_bytes(blocks, load.slots),
        # BlockTrain's stages of one host are processes of their own.
        activations=size.interfaces(blocks)
        * size.activation_bytes(load.max_batch, size.bucket(load.positions)),
    )


def _balanced(
    size: ModelSize, hosts: tuple[Host, ...], load: Load
) -> tuple[Placed, ...]:
    """The least that is missing, then the least share of the fullest host.

    By dynamic programming over how many blocks the first hosts hold: both parts of the
    cost grow with each host, so the best of a prefix stays best.
    """
    best: dict[int, tuple[tuple[float, float], tuple[Placed, ...]]] = {
        0: ((0.0, 0.0), ())
    }
    for number, host in enumerate(hosts):
        after = len(hosts) - number - 1  # each of them needs a block
        found: dict[int, tuple[tuple[float, float], tuple[Placed, ...]]] = {}
        ends = range(number + 1, size.blocks - after + 1)
        for begin, end in itertools.product(best, ends):
            if begin >= end:
                continue
            (missing, share), before = best[begin]
            part = placed_on(size, host, begin, end - begin, load)
            cost = (missing + part.missing, max(share, part.share))
            if end not in found or cost < found[end][0]:
                found[end] = (cost, (*before, part))
        best = found
    return best[size.blocks][1]
