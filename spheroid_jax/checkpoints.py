"""Checkpoints of a run: one directory, one sub-directory a round.

Orbax writes the arrays (``CheckpointManager``, with a commit file as the sign of a
finished write). Around it this module adds what Orbax leaves open:

* a SHA-256 of every file, because a flipped bit in array data is otherwise loaded
  without a word;
* the facts a checkpoint must agree with (``identity``) and the dtype of every leaf,
  because Orbax casts to the dtype it is asked for;
* retention that only counts checkpoints which are complete *with* their digests, so
  that the previous one never goes before the next can be loaded.

All of it stands in a manifest, written last: a round without one doesn't count.
"""

import contextlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np
import orbax.checkpoint as ocp

from spheroid_jax import manifests

PyTree = Any

FORMAT_VERSION = 1
_LISTED = 3  # differences spelt out in one error line; the rest are counted


class CheckpointError(RuntimeError):
    """A checkpoint that can't be written, or mustn't be loaded; one line, with cure."""


class Checkpoints:
    """The checkpoints of one method of one run, in one directory.

    Not for several processes on one directory: a run that spans processes saves from
    one of them.
    """

    def __init__(
        self, directory: Path, *, keep: int, identity: Mapping[str, Any]
    ) -> None:
        """Opens ``directory`` and creates it if need be.

        Args:
          directory: Holds nothing but checkpoints of this method.
          keep: Complete checkpoints to keep, the newest ones; at least 1.
          identity: JSON facts, nested if you like, that a checkpoint must share with
            this run to be restored: configuration, corpus digest, and so on.

        Raises:
          CheckpointError: The directory can't be made, or ``keep`` is below 1.
        """
        if keep < 1:
            raise CheckpointError(f"checkpoints to keep must be at least 1, not {keep}")
        self._directory = Path(directory).absolute()
        self._keep = keep
        self._identity = json.loads(json.dumps(dict(identity)))  # tuples become lists
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None,  # ours to decide: Orbax doesn't know about manifests
            enable_async_checkpointing=False,
            atomicity_options=ocp.options.AtomicityOptions(
                mode=ocp.options.AtomicityMode.COMMIT_FILE
            ),
        )
        try:
            self._directory.mkdir(parents=True, exist_ok=True)  # Orbax takes a file too
            with _quiet():
                self._manager = ocp.CheckpointManager(self._directory, options=options)
        except Exception as error:
            raise CheckpointError(
                f"checkpoint directory {self._directory} can't be used: {_cause(error)}"
            ) from error

    def save(self, round_: int, state: PyTree, host: Mapping[str, Any]) -> None:
        """Writes ``state`` and ``host`` as round ``round_``; durable on return.

        The buffers of ``state`` may be donated as soon as this returns.

        Args:
          round_: Rounds completed; above every round already saved.
          state: Tree of JAX arrays (typed keys too), NumPy arrays, Python numbers.
            Arrays of size zero aren't possible (Orbax).
          host: JSON data kept beside the arrays; tuples come back as lists.

        Raises:
          CheckpointError: Nothing was saved; names the round and the cause. Earlier
            checkpoints are untouched.
        """
        newest = self.latest()
        if newest is not None and newest >= round_:
            raise CheckpointError(
                f"round {round_} not saved: {self._directory} already holds round "
                f"{newest}; resume from it, or use another directory"
            )
        try:
            with _quiet():
                self._write(round_, state, host)
        except Exception as error:
            raise CheckpointError(
                f"round {round_} not saved in {self._directory}: {_cause(error)}"
            ) from error
        try:
            self._prune(round_)
        except OSError as error:
            raise CheckpointError(
                f"round {round_} is saved, but older rounds can't be deleted from "
                f"{self._directory}: {_cause(error)}"
            ) from error

    def latest(self) -> int | None:
        """Returns the newest complete round, or None; leftovers don't count."""
        return max(self._complete(), default=None)

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
        complete = sorted(self._complete())
        if round_ is None and complete:
            round_ = complete[-1]
        if round_ not in complete:
            wanted = "checkpoint" if round_ is None else f"checkpoint of round {round_}"
            raise CheckpointError(
                f"no complete {wanted} in {self._directory} (complete rounds: "
                f"{', '.join(map(str, complete)) or 'none'})"
            )
        try:
            manifest = manifests.read(self._step(round_))
            self._check_format(round_, manifest["format"])
            self._check_identity(round_, manifest["identity"])
            self._check_leaves(round_, manifest["leaves"], abstract)
            manifests.verify(self._step(round_), manifest)
        except manifests.Damage as damage:
            raise CheckpointError(self._diagnosis(round_, damage)) from damage
        state = self._load(round_, abstract)
        self._check_leaves(round_, manifest["leaves"], state)  # shows any cast
        return state, manifest["host"]

    def close(self) -> None:
        """Releases what Orbax holds."""
        with _quiet():
            self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _step(self, round_: int) -> Path:
        return self._directory / str(round_)

    def _name(self, round_: int) -> str:
        return f"checkpoint of round {round_} in {self._directory}"

    def _complete(self) -> list[int]:
        """Rounds that Orbax committed and that have a manifest."""
        try:
            with _quiet():
                self._manager.reload()
                steps = self._manager.all_steps()
        except Exception as error:
            raise CheckpointError(
                f"checkpoint directory {self._directory} can't be read: {_cause(error)}"
            ) from error
        return [
            step for step in steps if (self._step(step) / manifests.MANIFEST).is_file()
        ]

    def _write(self, round_: int, state: PyTree, host: Mapping[str, Any]) -> None:
        manifest = {
            "format": FORMAT_VERSION,
            "identity": self._identity,
            "host": json.loads(json.dumps(dict(host))),  # fails before anything is cut
            "leaves": _leaves(state),
        }
        step = self._step(round_)
        if step.exists():  # left by a killed save; a complete one was refused above
            shutil.rmtree(step)
            self._manager.reload()
        args = ocp.args.StandardSave(state)
        if not self._manager.save(round_, args=args, force=True):
            raise RuntimeError("Orbax declined to write it")
        manifest["files"] = manifests.digests(step)
        manifests.write(step, manifest)
        manifests.sync(self._directory)

    def _prune(self, newest: int) -> None:
        """Deletes what isn't to be kept: older rounds and leftovers of killed saves."""
        kept = sorted(self._complete())[-self._keep :]
        for path in self._directory.iterdir():
            if not (path.name.isdecimal() and path.is_dir()):
                continue
            if int(path.name) < newest and int(path.name) not in kept:
                # The manifest goes first: half a directory is then a leftover, not
                # a damaged checkpoint.
                (path / manifests.MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(path)

    def _check_format(self, round_: int, found: Any) -> None:
        if found != FORMAT_VERSION:
            raise CheckpointError(
                f"{self._name(round_)} has format {found}, this version reads format "
                f"{FORMAT_VERSION}; use the version that wrote it, or another directory"
            )

    def _check_identity(self, round_: int, found: Mapping[str, Any]) -> None:
        different = _differences(_flat(found), _flat(self._identity))
        if different:
            raise CheckpointError(
                f"{self._name(round_)} is of another run: {'; '.join(different)}; use "
                "the same settings, or another directory"
            )

    def _check_leaves(
        self, round_: int, found: Mapping[str, str], state: PyTree
    ) -> None:
        different = _differences(found, _leaves(state))
        if different:
            more = len(different) - _LISTED
            rest = [f"and {more} more"] if more > 0 else []
            raise CheckpointError(
                f"{self._name(round_)} holds another state: "
                f"{'; '.join(different[:_LISTED] + rest)}; use the settings that wrote "
                "it, or another directory"
            )

    def _load(self, round_: int, abstract: PyTree) -> PyTree:
        args = ocp.args.StandardRestore(jax.tree.map(_target, abstract))
        try:
            with _quiet():
                return self._manager.restore(round_, args=args)
        except Exception as error:
            raise CheckpointError(
                f"{self._name(round_)} can't be loaded: {_cause(error)}"
            ) from error

    def _diagnosis(self, round_: int, damage: Exception) -> str:
        """The damage, and what to do about it."""
        intact = [r for r in self._complete() if r < round_ and self._is_intact(r)]
        if intact:
            cure = f"delete {self._step(round_)} to go on from round {max(intact)}"
        else:
            cure = f"nothing older is intact: delete {self._directory} to start again"
        return f"{self._name(round_)} is damaged: {damage}; {cure}"

    def _is_intact(self, round_: int) -> bool:
        try:
            manifests.verify(self._step(round_), manifests.read(self._step(round_)))
        except manifests.Damage:
            return False
        return True


def _target(leaf: Any) -> Any:
    """What Orbax is asked to load; it must always be told where to."""
    if isinstance(leaf, np.generic):
        return np.asarray(leaf)
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    return leaf


def _leaves(tree: PyTree) -> dict[str, str]:
    """Returns {path: dtype and shape}, such as {"mu.w": "float32[3, 4]"}."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): (
            f"{leaf.dtype}{list(leaf.shape)}"
            if hasattr(leaf, "dtype")
            else f"Python {type(leaf).__name__}"
        )
        for path, leaf in flat
    }


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted names and JSON: {"model": {"layers": 4}} gives {"model.layers": "4"}."""
    out: dict[str, str] = {}
    for key, value in facts.items():
        if isinstance(value, dict) and value:
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = json.dumps(value)
    return out


def _differences(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    return [
        f"{name} is {there.get(name, 'absent')} there and {here.get(name, 'absent')} "
        "here"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name)
    ]


def _cause(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Orbax's log lines off the screen; what matters is raised anyway."""

    def not_from_orbax(record: logging.LogRecord) -> bool:
        return "orbax" not in Path(record.pathname).parts

    logger = logging.getLogger("absl")
    logger.addFilter(not_from_orbax)
    try:
        yield
    finally:
        logger.removeFilter(not_from_orbax)
