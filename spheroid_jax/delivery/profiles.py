"""Workers of a network nobody owns, as data: how fast, how far, how reliable.

The model of a worker is BlockTrain's virtual network (arXiv 2606.24722): an update
arrives ``local_steps x step time + latency + bytes / bandwidth, down and up + jitter``
after its round has opened, unless the worker drops out.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.special import ndtri

NEVER = math.inf
# What is multiplied by draws that may be zero, or divided by its own sum.
_FINITE = ("share", "step_spread", "speed_spread", "jitter_seconds", "link_spread")


@dataclasses.dataclass(frozen=True)
class Profile:
    """A kind of worker; the defaults are those of a perfect one.

    Attributes:
      share: of all workers, relative to the other profiles'.
      step_seconds: median time of a local step.
      step_spread: standard deviation of the logarithm of a phase's time, from round to
        round.
      speed_spread: the same, from worker to worker.
      latency_seconds: of a whole exchange, there and back.
      jitter_seconds: mean of what is exponentially distributed on top.
      down: bytes per second to the worker.
      up: bytes per second from the worker.
      link_spread: standard deviation of the logarithm of both, from worker to worker.
      dropout: probability that an update begun is lost.
      session_seconds: mean time until a worker leaves.
      away_seconds: mean time until one that left comes back.
      join_seconds: when the first session may begin, since the start.
      leave_seconds: when the worker leaves for good.
    """

    share: float = 1.0
    step_seconds: float = 0.05
    step_spread: float = 0.0
    speed_spread: float = 0.0
    latency_seconds: float = 0.0
    jitter_seconds: float = 0.0
    down: float = NEVER
    up: float = NEVER
    link_spread: float = 0.0
    dropout: float = 0.0
    session_seconds: float = NEVER
    away_seconds: float = 0.0
    join_seconds: float = 0.0
    leave_seconds: float = NEVER

    def __post_init__(self) -> None:
        for name in ("share", "step_seconds", "down", "up", "session_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)!r}")
        for name in _FINITE:
            if math.isinf(getattr(self, name)):
                raise ValueError(f"{name} must be finite, got {getattr(self, name)!r}")
        if not 0 <= self.dropout <= 1:
            raise ValueError(f"dropout must be in [0, 1], got {self.dropout!r}")
        for field in dataclasses.fields(self):
            if not getattr(self, field.name) >= 0:
                value = getattr(self, field.name)
                raise ValueError(f"{field.name} must be >= 0, got {value!r}")
        if self.leave_seconds <= self.join_seconds:
            raise ValueError(
                f"leave_seconds={self.leave_seconds!r} must be after "
                f"join_seconds={self.join_seconds!r}"
            )


class Reference(NamedTuple):
    """What the presets' names hold for: participation changes with all of these."""

    part_bytes: int
    local_steps: int
    deadline_seconds: float


# A block of two layers of width 64 and its interface are about 0.5 MB.
REFERENCE = Reference(part_bytes=500_000, local_steps=8, deadline_seconds=2.0)

_MEGABIT = 125_000.0  # bytes per second

# BlockTrain's regimes by name. Their profiles are ours, as the paper prints none: home
# lines and shared computers, such that the share of updates in time is the paper's
# (100 %, about 90 %, 42 %, 0 %) under REFERENCE.
PRESETS: Mapping[str, tuple[Profile, ...]] = {
    "lockstep": (Profile(),),
    "mild": (
        Profile(
            step_seconds=0.15,
            step_spread=0.15,
            speed_spread=0.1,
            latency_seconds=0.05,
            jitter_seconds=0.05,
            down=100 * _MEGABIT,
            up=20 * _MEGABIT,
            link_spread=0.3,
            dropout=0.05,
        ),
    ),
    "wan": (
        Profile(
            step_seconds=0.08,
            step_spread=0.5,
            speed_spread=0.4,
            latency_seconds=0.15,
            jitter_seconds=0.3,
            down=50 * _MEGABIT,
            up=5 * _MEGABIT,
            link_spread=0.5,
            dropout=0.05,
        ),
    ),
    "bad_edge": (
        Profile(
            step_seconds=0.4,
            step_spread=0.3,
            speed_spread=0.2,
            latency_seconds=0.5,
            jitter_seconds=0.5,
            down=8 * _MEGABIT,
            up=1 * _MEGABIT,
            link_spread=0.3,
            dropout=0.1,
        ),
    ),
}


class Fleet(NamedTuple):
    """Workers one by one; every field is float32 (B, K), B blocks of K replicas.

    Attributes are those of :class:`Profile`, after the spreads from worker to worker.
    """

    step_seconds: Array
    step_spread: Array
    latency_seconds: Array
    jitter_seconds: Array
    down: Array
    up: Array
    dropout: Array
    session_seconds: Array
    away_seconds: Array
    join_seconds: Array
    leave_seconds: Array


def preset(name: str) -> tuple[Profile, ...]:
    """The profiles of a preset.

    Raises:
      ValueError: if there is no such preset.
    """
    if name not in PRESETS:
        raise ValueError(f"no network {name!r}: use one of {', '.join(PRESETS)}")
    return PRESETS[name]


def make_fleet(
    profiles: Sequence[Profile], blocks: int, replicas: int, seed: int
) -> Fleet:
    """Workers drawn from profiles; the k-th replicas of blocks share no draw.

    Profiles are dealt by their shares, in an order that the seed decides, so that the
    numbers of workers differ from the shares by less than one.

    Args:
      profiles: at least one.
      blocks: B.
      replicas: K, per block.
      seed: of the order and of the spreads from worker to worker.

    Raises:
      ValueError: if there is no profile.
    """
    if not profiles:
        raise ValueError("profiles is empty: name at least one kind of worker")
    workers = blocks * replicas
    rng = np.random.default_rng(seed)
    kinds = _shuffled_kinds(profiles, workers, rng)
    table = {
        field.name: np.array([getattr(p, field.name) for p in profiles])[kinds]
        for field in dataclasses.fields(Profile)
    }
    speed = np.exp(table["speed_spread"] * _normals(rng, workers))
    link = np.exp(table["link_spread"] * _normals(rng, workers))
    table["step_seconds"] = table["step_seconds"] * speed
    table["down"], table["up"] = table["down"] * link, table["up"] * link
    return Fleet(
        **{
            name: jnp.asarray(table[name].reshape(blocks, replicas), jnp.float32)
            for name in Fleet._fields
        }
    )


def kinds_of(
    profiles: Sequence[Profile], blocks: int, replicas: int, seed: int
) -> np.ndarray:
    """Which profile each worker of :func:`make_fleet` has, int (B, K)."""
    rng = np.random.default_rng(seed)
    kinds = _shuffled_kinds(profiles, blocks * replicas, rng)
    return kinds.reshape(blocks, replicas)


def _shuffled_kinds(
    profiles: Sequence[Profile], workers: int, rng: np.random.Generator
) -> np.ndarray:
    return rng.permutation(_dealt([p.share for p in profiles], workers))


def _normals(rng: np.random.Generator, count: int) -> np.ndarray:
    """Normal quantiles in random order: six workers are as mixed as six can be."""
    return rng.permutation(ndtri((np.arange(count) + 0.5) / count))


def _dealt(shares: Sequence[float], workers: int) -> np.ndarray:
    """Profile of each worker: largest remainders, int (workers,)."""
    exact = np.array(shares) / np.sum(shares) * workers
    counts = np.floor(exact).astype(int)
    rest = np.argsort(counts - exact, kind="stable")[: workers - counts.sum()]
    counts[rest] += 1
    return np.repeat(np.arange(len(counts)), counts)
