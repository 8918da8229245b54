"""Which windows the workers see: all of them, no other, never one another's."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spheroid_jax.data import (
    CorpusError,
    fingerprint,
    round_batches,
)

SETTINGS = {
    "seq_len": 8,
    "stride": 0,
    "batch": 3,
    "local_steps": 2,
    "blocks": 2,
    "replicas": 2,
    "sharding": "replica",
    "seed": 0,
}


def random_corpus(size: int) -> np.ndarray:
    """Bytes in which every window of 9 or more occurs once."""
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


def start_of(corpus: np.ndarray, window: np.ndarray) -> int:
    """Where a window was cut out; fails if it is no piece of the corpus."""
    data, piece = corpus.tobytes(), window.tobytes()
    assert data.count(piece) == 1
    return data.index(piece)


def streams(corpus: np.ndarray, rounds: int, **changes: object) -> np.ndarray:
    """Starts of the windows, (B, K, number of windows over all rounds)."""
    batches = round_batches(corpus, **{**SETTINGS, **changes})
    stacked = np.stack([batches[r] for r in range(rounds)], axis=2)
    blocks, replicas, *_, length = stacked.shape
    flat = stacked.reshape(blocks * replicas, -1, length)
    starts = [[start_of(corpus, window) for window in worker] for worker in flat]
    return np.array(starts).reshape(blocks, replicas, -1)


def test_shape_and_type() -> None:
    batches = round_batches(random_corpus(500), **SETTINGS)
    for index in (0, 1, 10**6):
        assert batches[index].shape == (2, 2, 2, 3, 9)
        assert batches[index].dtype == np.uint8


@settings(max_examples=25, deadline=None)
@given(
    windows=st.integers(6, 40),
    spare=st.integers(0, 7),
    stride=st.sampled_from([0, 3, 8, 11]),
    blocks=st.integers(1, 3),
    replicas=st.integers(1, 2),
    batch=st.integers(1, 5),
    sharding=st.sampled_from(["replica", "worker", "shared"]),
    seed=st.integers(0, 2**40),
)
def test_an_epoch_is_a_partition_of_all_windows(
    windows: int,
    spare: int,
    stride: int,
    blocks: int,
    replicas: int,
    batch: int,
    sharding: str,
    seed: int,
) -> None:
    step = stride or 8
    corpus = random_corpus((windows - 1) * step + 9 + min(spare, step - 1))
    everything = [number * step for number in range(windows)]
    parts = blocks * replicas if sharding == "worker" else replicas
    longest = -(-windows // parts)
    seen = streams(
        corpus,
        -(-longest // batch),
        stride=stride,
        blocks=blocks,
        replicas=replicas,
        local_steps=1,
        batch=batch,
        sharding=sharding,
        seed=seed,
    )

    # The first epoch of a worker is as long as its shard: shards differ by one at most.
    def epoch(block: int, replica: int) -> list[int]:
        shard = (block * replicas + replica) % parts
        return list(seen[block, replica, : len(range(shard, windows, parts))])

    for block in range(blocks):
        of_block = [start for k in range(replicas) for start in epoch(block, k)]
        assert len(set(of_block)) == len(of_block)
        if sharding != "worker":
            assert sorted(of_block) == everything
    if sharding == "worker":
        of_all = [
            s for b in range(blocks) for k in range(replicas) for s in epoch(b, k)
        ]
        assert sorted(of_all) == everything
    if sharding == "shared":
        assert (seen == seen[:1]).all()


def test_every_epoch_is_complete_and_in_another_order() -> None:
    corpus = random_corpus(8 * 24 + 1)
    seen = streams(corpus, 12, batch=6, local_steps=1)  # 12 windows a worker: 6 epochs
    epochs = seen.reshape(2, 2, 6, 12)
    assert (np.sort(epochs, axis=-1) == np.sort(epochs[:, :, :1], axis=-1)).all()
    for worker in epochs.reshape(4, 6, 12):
        assert len({tuple(order) for order in worker}) == 6


def test_no_order_of_an_epoch_occurs_twice() -> None:
    """Neither across workers and epochs, nor across neighbouring seeds."""
    corpus = random_corpus(8 * 24 + 1)
    seen = np.stack([streams(corpus, 6, blocks=3, seed=seed) for seed in range(3)])
    within_shard = seen // 8 // 2  # replica k holds windows k, k+2, ...
    orders = [tuple(order) for order in within_shard.reshape(-1, 12)]
    assert len(orders) == 54
    assert len(set(orders)) == 54


def test_blocks_differ_unless_they_share() -> None:
    corpus = random_corpus(800)
    own = streams(corpus, 4, blocks=3)
    shared = streams(corpus, 4, blocks=3, sharding="shared")
    assert (own[0] != own[1]).any()
    assert (own[1] != own[2]).any()
    assert (shared == shared[:1]).all()
    # So a reference of one block can be given the very windows that the blocks share.
    assert (shared[0] == streams(corpus, 4, blocks=1)[0]).all()


def test_seeds_differ_and_repeat() -> None:
    corpus = random_corpus(800)
    zero, one = streams(corpus, 2, seed=0), streams(corpus, 2, seed=1)
    assert (zero != one).any()
    assert (zero == streams(corpus, 2, seed=0)).all()


def test_the_order_does_not_depend_on_how_a_round_is_divided() -> None:
    corpus = random_corpus(400)
    whole = streams(corpus, 1, local_steps=4, batch=6)
    assert (whole == streams(corpus, 1, local_steps=6, batch=4)).all()
    assert (whole == streams(corpus, 12, local_steps=2, batch=1)).all()


def test_rounds_are_random_access() -> None:
    corpus = random_corpus(400)
    forwards = round_batches(corpus, **SETTINGS)
    backwards = round_batches(corpus, **SETTINGS)
    for index in reversed(range(6)):
        np.testing.assert_array_equal(backwards[index], forwards[index])


def test_a_shard_shorter_than_a_round_still_fills_it() -> None:
    corpus = random_corpus(8 * 3 + 1)
    seen = streams(corpus, 1, replicas=1, batch=7)
    assert set(seen[0, 0]) == {0, 8, 16}
    assert seen.shape == (2, 1, 14)


@pytest.mark.parametrize(
    ("size", "changes", "words"),
    [
        (8, {}, ["has 8 bytes", "one window needs 9"]),
        (0, {}, ["has 0 bytes", "one window needs 9"]),
        (24, {"replicas": 3}, ["24 bytes", "2 windows", "3 workers", "fewer replicas"]),
        (30, {"sharding": "worker"}, ["3 windows", "4 workers"]),
    ],
)
def test_too_small_a_corpus(size: int, changes: dict, words: list[str]) -> None:
    with pytest.raises(CorpusError) as caught:
        round_batches(random_corpus(size), **{**SETTINGS, **changes})
    for word in words:
        assert word in str(caught.value)


def test_the_smallest_corpus_that_serves() -> None:
    corpus = random_corpus(9)
    assert (round_batches(corpus, **{**SETTINGS, "replicas": 1})[3] == corpus).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((f, 0) for f in ("seq_len", "batch", "local_steps", "blocks", "replicas")),
        ("stride", -1),
        ("seed", -7),
        ("sharding", "replicas"),
    ],
)
def test_settings_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"{field} must .*{value}"):
        round_batches(random_corpus(100), **{**SETTINGS, field: value})


class TestFingerprint:
    def test_is_json_and_names_every_setting(self) -> None:
        mark = fingerprint(random_corpus(400), **SETTINGS)
        assert json.loads(json.dumps(mark)) == mark
        assert set(SETTINGS) < set(mark)
        assert mark["train_bytes"] == 400

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("seq_len", 9),
            ("stride", 7),
            ("batch", 4),
            ("local_steps", 3),
            ("blocks", 3),
            ("replicas", 1),
            ("sharding", "shared"),
            ("seed", 1),
        ],
    )
    def test_changes_with_every_setting(self, field: str, value: object) -> None:
        corpus = random_corpus(400)
        before = fingerprint(corpus, **SETTINGS)
        after = fingerprint(corpus, **{**SETTINGS, field: value})
        assert before[field] != after[field] == value

    def test_stride_zero_is_the_window_length(self) -> None:
        corpus = random_corpus(400)
        spelt_out = fingerprint(corpus, **{**SETTINGS, "stride": 8})
        assert fingerprint(corpus, **SETTINGS) == spelt_out

    def test_changes_with_one_byte(self) -> None:
        corpus = random_corpus(400)
        changed = corpus.copy()
        changed[-1] ^= 1
        before, after = (
            fingerprint(corpus, **SETTINGS),
            fingerprint(changed, **SETTINGS),
        )
        assert {k for k in before if before[k] != after[k]} == {"sha256"}

    def test_notices_another_shuffle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As if a new grain shuffled otherwise from the second epoch on."""
        import grain

        corpus = random_corpus(400)
        before = fingerprint(corpus, **SETTINGS)
        monkeypatch.setattr(
            grain.MapDataset,
            "repeat",
            lambda self, _: _OtherRepeat(self),
        )
        after = fingerprint(corpus, **SETTINGS)
        assert {k for k in before if before[k] != after[k]} == {"order"}


class _OtherRepeat:
    """Endless repetition of the first epoch."""

    def __init__(self, parent: object):
        self._parent = parent

    def __getitem__(self, index: int) -> object:
        return self._parent[index % len(self._parent)]  # type: ignore[index, arg-type]

    def batch(self, *_: object, **__: object) -> "_OtherRepeat":
        return self
