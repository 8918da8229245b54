"""Byte windows of every worker and round, by number and without state.

A window is T+1 bytes: T inputs and, one further, T targets. Windows start at multiples
of the stride. Grain shuffles the *numbers* of a worker's windows, epoch after epoch;
the bytes of a whole round are then gathered in one numpy call, which costs less than
making an array for every window.
"""

import dataclasses
import hashlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import grain
import numpy as np

from spheroid_jax.data.corpus import CorpusError

SHARDINGS = ("replica", "worker", "shared")
_PROBE = 8  # window numbers per worker and epoch that the fingerprint looks at


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowPlan:
    """Which windows each worker sees, in numbers.

    Attributes:
      seq_len: T, bytes predicted per window.
      stride: bytes between window starts; 0 means ``seq_len``.
      batch: N, windows per local step.
      local_steps: H, local steps per round.
      blocks: B.
      replicas: K, workers per block.
      sharding: ``replica``: the K replicas of a block share all windows among them,
        and every block goes through them in an order of its own; ``worker``: all B*K
        workers hold windows of their own; ``shared``: as ``replica``, but all blocks
        go through the very same windows (for comparisons at equal bytes seen).
      seed: the order of the windows.
    """

    seq_len: int
    stride: int
    batch: int
    local_steps: int
    blocks: int
    replicas: int
    sharding: str
    seed: int

    def __post_init__(self) -> None:
        for name in ("seq_len", "batch", "local_steps", "blocks", "replicas"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be at least 1, got {getattr(self, name)}"
                )
        for name in ("stride", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"{name} must not be negative, got {getattr(self, name)}"
                )
        if self.sharding not in SHARDINGS:
            raise ValueError(
                f"sharding must be one of {', '.join(SHARDINGS)}, got {self.sharding!r}"
            )
        if self.stride == 0:
            object.__setattr__(self, "stride", self.seq_len)

    @property
    def shards(self) -> int:
        """Into how many disjoint parts the windows are divided."""
        worker = self.sharding == "worker"
        return self.blocks * self.replicas if worker else self.replicas

    def windows(self, size: int) -> int:
        """How many windows ``size`` bytes hold."""
        return max(0, (size - self.seq_len - 1) // self.stride + 1)


class _Rounds:
    """Random access to the rounds of a corpus: the source that grain reads."""

    def __init__(self, train: np.ndarray, plan: WindowPlan):
        _check_enough(train.size, plan)
        self._plan = plan
        # A view, (positions, T+1): row s is the window that starts at byte s.
        self._view = np.lib.stride_tricks.sliding_window_view(train, plan.seq_len + 1)
        numbers = grain.MapDataset.range(plan.windows(train.size))
        self.shards = [numbers[shard :: plan.shards] for shard in range(plan.shards)]
        self.streams = [
            self.shards[shard].seed(seed).shuffle().repeat(None)
            for shard, seed in _orders(plan)
        ]
        # Repeated first and batched then, a shard shorter than a round still fills it.
        per_round = plan.local_steps * plan.batch
        self._rounds = [s.batch(per_round, drop_remainder=True) for s in self.streams]

    def __len__(self) -> int:
        return sys.maxsize // (self._plan.local_steps * self._plan.batch)

    def __getitem__(self, index: int) -> np.ndarray:
        plan = self._plan
        windows = self._read(index, range(len(self._rounds)))
        windows = windows.reshape(-1, plan.replicas, *windows.shape[1:])
        # Shared windows are read once, for block 0, and repeated for the others.
        return np.repeat(windows, plan.blocks // len(windows), axis=0)

    def of_workers(self, index: int, workers: Sequence[tuple[int, int]]) -> np.ndarray:
        """The windows of some workers, (len(workers), H, N, T+1); no other is read."""
        plan = self._plan
        # With shared windows there are streams for block 0 alone.
        streams = [(b * plan.replicas + k) % len(self._rounds) for b, k in workers]
        return self._read(index, streams)

    def _read(self, index: int, streams: Sequence[int]) -> np.ndarray:
        plan = self._plan
        numbers = np.stack([self._rounds[stream][index] for stream in streams])
        return self._view[numbers * plan.stride].reshape(
            len(streams), plan.local_steps, plan.batch, plan.seq_len + 1
        )


class _RoundsOfWorkers:
    """As :class:`_Rounds`, for some of the workers."""

    def __init__(self, rounds: _Rounds, workers: Sequence[tuple[int, int]]):
        self._rounds, self._workers = rounds, workers

    def __len__(self) -> int:
        return len(self._rounds)

    def __getitem__(self, index: int) -> np.ndarray:
        return self._rounds.of_workers(index, self._workers)


def round_batches(
    train: np.ndarray,
    *,
    workers: Sequence[tuple[int, int]] | None = None,
    **settings: Any,
) -> grain.MapDataset:
    """The windows of every round, as an endless data set with random access.

    Every worker goes through the windows of its shard, reshuffled in every epoch;
    rounds run on across the ends of epochs, so no window is left out. Element r
    depends on ``train``, the settings and r alone.

    Args:
      train: (n,) uint8.
      workers: pairs (b, k); the windows of all others aren't even read. None: all.
      **settings: the fields of :class:`WindowPlan`, all of them.

    Returns:
      A data set whose element r is uint8 of shape (B, K, H, N, T+1): the windows of
      round r for worker (b, k) at local step h. With ``workers`` it has the same
      windows in shape (len(workers), H, N, T+1).

    Raises:
      CorpusError: the corpus has no window for some worker.
      ValueError: a setting is out of range.
    """
    plan = WindowPlan(**settings)
    rounds = _Rounds(train, plan)
    if workers is None:
        return grain.MapDataset.source(rounds)
    outside = [w for w in workers if not _is_worker(w, plan)]
    if outside or not workers:
        raise ValueError(
            f"workers={list(workers)} must be some of the {plan.blocks} x "
            f"{plan.replicas} (b, k)"
        )
    return grain.MapDataset.source(_RoundsOfWorkers(rounds, workers))


def _is_worker(worker: tuple[int, int], plan: WindowPlan) -> bool:
    block, replica = worker
    return 0 <= block < plan.blocks and 0 <= replica < plan.replicas


def fingerprint(train: np.ndarray, **settings: Any) -> dict[str, Any]:
    """All that decides which windows a run sees, as a JSON-able dictionary.

    Besides the corpus' SHA-256 and the settings, ``order`` is a digest of the first
    windows of every worker in two epochs: it changes if another version of grain
    shuffles in another way, though every setting is the same.

    Args and raises: as :func:`round_batches`.
    """
    plan = WindowPlan(**settings)
    rounds = _Rounds(train, plan)
    probe = [
        [int(stream[epoch * len(rounds.shards[shard]) + i]) for i in range(_PROBE)]
        for (shard, _), stream in zip(_orders(plan), rounds.streams, strict=True)
        for epoch in range(2)
    ]
    return {
        "sha256": hashlib.sha256(np.ascontiguousarray(train).data).hexdigest(),
        "train_bytes": int(train.size),
        **dataclasses.asdict(plan),
        "order": hashlib.sha256(repr(probe).encode()).hexdigest(),
    }


def evaluation_windows(valid: np.ndarray, *, seq_len: int, count: int) -> np.ndarray:
    """``count`` windows spread evenly over ``valid``, the same at every call.

    No byte is predicted twice: starts are at least ``seq_len`` apart.

    Args:
      valid: (n,) uint8.
      seq_len: T, bytes predicted per window.
      count: how many windows.

    Returns:
      (count, T+1) uint8.

    Raises:
      CorpusError: ``valid`` is too small; says how many windows fit.
    """
    if seq_len < 1 or count < 1:
        raise ValueError(f"need seq_len, count >= 1, got {seq_len=}, {count=}")
    fit = max(0, valid.size - 1) // seq_len
    if count > fit:
        raise CorpusError(
            f"the validation split has {valid.size} bytes, enough for {fit} windows "
            f"of {seq_len} bytes, not {count}: it needs {count * seq_len + 1} bytes, "
            "or ask for fewer or shorter windows"
        )
    last = valid.size - seq_len - 1
    starts = np.arange(count) * last // max(count - 1, 1)
    view = np.lib.stride_tricks.sliding_window_view(valid, seq_len + 1)
    return view[starts]


def _orders(plan: WindowPlan) -> Iterator[tuple[int, int]]:
    """The shard and the seed of every stream of windows, block by block.

    SeedSequence mixes the three numbers; their sum would give block 1 of seed 0 the
    order of block 0 of seed 1, and two runs that should differ would be related.
    """
    blocks = 1 if plan.sharding == "shared" else plan.blocks
    for block in range(blocks):
        for replica in range(plan.replicas):
            shard = (block * plan.replicas + replica) % plan.shards
            seeds = np.random.SeedSequence(plan.seed, spawn_key=(block, replica))
            yield shard, int(seeds.generate_state(1)[0])


def _check_enough(size: int, plan: WindowPlan) -> None:
    windows = plan.windows(size)
    if windows == 0:
        raise CorpusError(
            f"the training split has {size} bytes, but one window needs "
            f"{plan.seq_len + 1}: use a larger corpus or lower seq_len"
        )
    if windows < plan.shards:
        raise CorpusError(
            f"the training split has {size} bytes, that is {windows} windows of "
            f"{plan.seq_len + 1} bytes for {plan.shards} workers that must not share "
            "any: use a larger corpus, fewer replicas, or a lower seq_len or stride"
        )
