"""Rounds in sequence, read ahead in the background, resumable to the window."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grain
import numpy as np

from spheroid_jax.data.windows import fingerprint, round_batches


class DataStateError(ValueError):
    """A saved position belongs to other data; the message names what differs."""


class RoundIterator(Iterator[np.ndarray]):
    """Iterates over :func:`spheroid_jax.data.windows.round_batches`.

    The state is the number of the next round and the fingerprint of the data. Grain
    on its own would resume at that number under any batch size, seed or corpus, and
    so train on other windows without a word.
    """

    def __init__(
        self,
        train: np.ndarray,
        *,
        prefetch: int = 2,
        workers: Sequence[tuple[int, int]] | None = None,
        **settings: Any,
    ):
        """Starts at round 0.

        Args:
          train: (n,) uint8.
          prefetch: rounds assembled ahead by one background thread; 0 for none.
          workers: whose windows to read, pairs (b, k); None for all. The state doesn't
            depend on it: what one process saved, any other number of them takes up.
          **settings: the fields of :class:`spheroid_jax.data.windows.WindowPlan`.
        """
        self._fingerprint = fingerprint(train, **settings)
        options = grain.ReadOptions(
            num_threads=min(prefetch, 1), prefetch_buffer_size=prefetch
        )
        rounds = round_batches(train, workers=workers, **settings)
        self._iterator = iter(rounds.to_iter_dataset(options))

    def __next__(self) -> np.ndarray:
        """The windows of the next round, uint8 (B, K, H, N, T+1).

        With ``workers``, theirs, (len(workers), H, N, T+1).
        """
        return next(self._iterator)

    def get_state(self) -> dict[str, Any]:
        """The position: JSON-able, independent of what was read ahead."""
        return {
            "next_round": int(self._iterator.get_state()["next_index"]),
            "fingerprint": dict(self._fingerprint),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues where ``state`` was taken.

        Raises:
          DataStateError: the state was taken from other data or other settings, or
            isn't a state at all; the iterator stays where it was.
        """
        next_round, saved = state.get("next_round"), state.get("fingerprint")
        if (
            not isinstance(next_round, int)
            or not isinstance(saved, Mapping)
            or next_round < 0
        ):
            raise DataStateError(
                "the saved data position is damaged (next_round or fingerprint is "
                "missing): resume from another checkpoint, or start a new run"
            )
        names = [*self._fingerprint, *(n for n in saved if n not in self._fingerprint)]
        differing = [
            f"{name} was {saved.get(name)!r}, is {self._fingerprint.get(name)!r}"
            for name in names
            if saved.get(name) != self._fingerprint.get(name)
        ]
        if differing:
            raise DataStateError(
                f"cannot resume, the data differ: {'; '.join(differing)}; restore what "
                f"differs or start a new run{_why_order(differing)}"
            )
        self._iterator.set_state({"next_index": next_round})

    def close(self) -> None:
        """Ends the background thread."""
        self._iterator.close()


def _why_order(differing: list[str]) -> str:
    if len(differing) == 1 and differing[0].startswith("order "):
        return f" (grain {grain.__version__} shuffles unlike the one that saved it)"
    return ""
