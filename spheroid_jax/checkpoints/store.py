"""Saving and restoring; see the package for what lies where.

Orbax keeps order among processes and commits (``CheckpointManager`` with a commit
file). Around it stands what Orbax leaves open:

* digests of everything, because a flipped bit in array data is otherwise loaded
  without a word;
* the facts a checkpoint must agree with (``identity``) and the dtype of every leaf;
* retention that only counts checkpoints which are complete *with* their digests, so
  that the previous one never goes before the next can be loaded.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from spheroid_jax import manifests
from spheroid_jax.checkpoints import leaves, retention
from spheroid_jax.checkpoints.digests import FORMATS, XXH3
from spheroid_jax.checkpoints.errors import CheckpointError, cause
from spheroid_jax.checkpoints.reader import Reader, is_intact
from spheroid_jax.checkpoints.writer import Writer

PyTree = Any

FORMAT_VERSION = max(FORMATS.values())


class Checkpoints:
    """The checkpoints of one method of one run, in one directory.

    A run of several processes opens the same, shared directory in all of them, and
    all of them make the same calls.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep: int,
        identity: Mapping[str, Any],
        keep_best: int = 0,
        timeout: float = 1800.0,
        digest: str = XXH3,
        wait: bool = False,
    ) -> None:
        """Opens ``directory`` and creates it if need be.

        Args:
          directory: Holds nothing but checkpoints of this method.
          keep: Complete checkpoints to keep, the newest ones; at least 1.
          identity: JSON facts, nested if you like, that a checkpoint must share with
            this run to be restored: configuration, corpus digest, and so on.
          keep_best: Checkpoints to keep besides, those of the lowest ``metric``.
          timeout: Seconds after which a save counts as failed.
          digest: Of data: ``"xxh3"`` finds accidents, ``"blake3"`` (slower) and
            ``"sha256"`` (much slower) vouch for items that strangers hand on. All can
            be restored, whatever it is.
          wait: Whether ``save`` returns only when the round is on disk, so that a kill
            never costs a saved round. It needs no copy of the state then.

        Raises:
          CheckpointError: The directory can't be made, or a setting is out of range.
        """
        if keep < 1:
            raise CheckpointError(f"checkpoints to keep must be at least 1, not {keep}")
        if keep_best < 0:
            raise CheckpointError(f"keep_best must be at least 0, not {keep_best}")
        if not timeout > 0:
            raise CheckpointError(f"timeout must be above 0 seconds, not {timeout}")
        if digest not in FORMATS:
            raise CheckpointError(
                f"digest must be one of {', '.join(sorted(FORMATS))}, not {digest!r}"
            )
        self._directory = Path(directory).absolute()
        self._keep, self._keep_best = keep, keep_best
        self._identity = json.loads(json.dumps(dict(identity)))  # tuples become lists
        self._format, self._wait = FORMATS[digest], wait
        self._writer = Writer(self._directory, timeout, digest)

    def save(
        self,
        round_: int,
        state: PyTree,
        host: Mapping[str, Any],
        *,
        metric: float | None = None,
        age: float = 0.0,
    ) -> None:
        """Starts to write ``state`` and ``host`` as round ``round_``.

        The buffers of ``state`` may be donated as soon as this returns. The round
        counts once it is wholly on disk, and a crash before that goes back to the
        round before. Every other call waits for the disk, and so does this one if the
        store was opened with ``wait``.

        Args:
          round_: Rounds completed; above every round already saved.
          state: Tree of JAX arrays (typed keys too), NumPy arrays, Python numbers.
          host: JSON data kept beside the arrays; tuples come back as lists.
          metric: How good the round is, the lower the better; None for unknown.
          age: Mean age of what arrived in the round, in outer updates.

        Raises:
          CheckpointError: Nothing was saved; names the round and the cause, which may
            be of the save before this one. Earlier checkpoints are untouched.
        """
        self.wait()
        try:
            self._check_newer(round_)
            manifest = {
                "format": self._format,
                "round": round_,
                "age": float(age),
                "metric": None if metric is None else float(metric),
                "config": manifests.sha256_of_json(self._identity),
                "identity": self._identity,
                "host": json.loads(json.dumps(dict(host))),
                "leaves": {
                    n: leaves.describe(x) for n, x in leaves.named(state).items()
                },
            }
            items = leaves.snapshot(state, copy=not self._wait)
            self._writer.start(round_, items, manifest, lambda: self._prune(round_))
        except Exception as error:
            raise CheckpointError(
                f"round {round_} not saved in {self._directory}: {cause(error)}"
            ) from error
        if self._wait:
            self.wait()

    def wait(self) -> None:
        """Waits until the last ``save`` is on disk.

        Raises:
          CheckpointError: It isn't and won't be; names the round and the cause.
        """
        self._writer.wait()

    def latest(self) -> int | None:
        """Returns the newest complete round, or None; leftovers don't count."""
        self.wait()
        return max(self._complete(), default=None)

    def best(self) -> int | None:
        """Returns the complete round of the lowest metric, or None if none has one."""
        self.wait()
        best = retention.best(retention.metrics(self._directory), 1)
        return best[0] if best else None

    def metadata(self, round_: int | None = None) -> dict[str, Any]:
        """Returns what is known of a round without loading it.

        ``round``, ``age``, ``metric``, ``host``, ``format``, ``config`` (SHA-256 of
        the identity), ``identity`` and ``items`` ({item: SHA-256 of all it holds}).

        Raises:
          CheckpointError: No such round, or its manifest is damaged.
        """
        round_ = self._chosen(round_)
        try:
            manifest = manifests.read(self._step(round_))
        except manifests.Damage as damage:
            raise CheckpointError(self._diagnosis(round_, damage)) from damage
        return {k: v for k, v in manifest.items() if k not in ("leaves", "files")}

    def restore(
        self, abstract: PyTree, round_: int | None = None
    ) -> tuple[PyTree, dict[str, Any]]:
        """Loads a round bit for bit, after checking all there is to check.

        Args:
          abstract: What the caller expects: a tree of ``jax.ShapeDtypeStruct`` (with
            the sharding to load into; without one, the first device) or of arrays.
          round_: Which round; None for the newest complete one.

        Returns:
          The state in the structure of ``abstract``, and ``host`` as it was saved.

        Raises:
          CheckpointError: Nothing to load, damaged files, another format or identity,
            or a leaf that is missing, unknown, or of another shape or dtype.
        """
        return self._read(round_, lambda reader: reader.state(abstract))

    def restore_params(self, abstract: PyTree, round_: int | None = None) -> PyTree:
        """Loads the parameters alone, the state's ``params``: an assembled model.

        Arguments and errors as of ``restore``; optimizer states are neither read nor
        verified.
        """
        return self._read(round_, lambda reader: reader.params(abstract))[0]

    def restore_part(
        self, abstract: PyTree, *, block: int, round_: int | None = None
    ) -> PyTree:
        """Loads what a worker of ``block`` needs; other blocks are left unread.

        Args:
          abstract: ``{"block": ..., "interface": ...}``, the leaves of the block
            without the axis of blocks; shardings as for ``restore``.
          block: Which block, counted from 0.
          round_: Which round; None for the newest complete one.

        Returns:
          The part, in the structure of ``abstract``.

        Raises:
          CheckpointError: As ``restore``, or there is no such block.
        """
        return self._read(round_, lambda reader: reader.part(abstract, block))[0]

    def close(self) -> None:
        """Waits for the last save and releases what Orbax holds.

        Raises:
          CheckpointError: The last save failed.
        """
        try:
            self.wait()
        finally:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except CheckpointError as failed:
            if error is None:
                raise
            error.add_note(str(failed))  # the first error is the one to be told

    def _step(self, round_: int) -> Path:
        return self._directory / str(round_)

    def _name(self, round_: int) -> str:
        return f"checkpoint of round {round_} in {self._directory}"

    def _check_newer(self, round_: int) -> None:
        newest = max(self._complete(), default=None)
        if newest is not None and newest >= round_:
            raise ValueError(
                f"it already holds round {newest}; resume from that, or use another "
                "directory"
            )

    def _complete(self) -> list[int]:
        try:
            return retention.complete(self._directory)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint directory {self._directory} can't be read: {cause(error)}"
            ) from error

    def _prune(self, newest: int) -> None:
        try:
            metrics = retention.metrics(self._directory)
            kept = retention.kept(metrics, keep=self._keep, keep_best=self._keep_best)
            retention.prune(self._directory, newest, kept)
        except OSError as error:
            raise CheckpointError(
                f"round {newest} is saved, but older rounds can't be deleted from "
                f"{self._directory}: {cause(error)}"
            ) from error

    def _chosen(self, round_: int | None) -> int:
        self.wait()
        complete = sorted(self._complete())
        if round_ is None and complete:
            return complete[-1]
        if round_ is None or round_ not in complete:
            wanted = "checkpoint" if round_ is None else f"checkpoint of round {round_}"
            raise CheckpointError(
                f"no complete {wanted} in {self._directory} (complete rounds: "
                f"{', '.join(map(str, complete)) or 'none'})"
            )
        return round_

    def _read(
        self, round_: int | None, load: Callable[[Reader], PyTree]
    ) -> tuple[PyTree, dict[str, Any]]:
        round_ = self._chosen(round_)
        try:
            reader = Reader(
                self._step(round_),
                self._name(round_),
                formats=frozenset(FORMATS.values()),
                identity=self._identity,
            )
            return load(reader), reader.manifest["host"]
        except manifests.Damage as damage:
            raise CheckpointError(self._diagnosis(round_, damage)) from damage

    def _diagnosis(self, round_: int, damage: Exception) -> str:
        """The damage, and what to do about it."""
        older = (r for r in self._complete() if r < round_)
        intact = [r for r in older if is_intact(self._step(r))]
        if intact:
            cure = f"delete {self._step(round_)} to go on from round {max(intact)}"
        else:
            cure = f"nothing older is intact: delete {self._directory} to start again"
        return f"{self._name(round_)} is damaged: {damage}; {cure}"
