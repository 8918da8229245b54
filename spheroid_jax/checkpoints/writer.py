"""Writes rounds in the background; Orbax keeps order among processes and commits."""

import contextlib
import itertools
import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from spheroid_jax import manifests
from spheroid_jax.checkpoints.blobs import ItemSave
from spheroid_jax.checkpoints.errors import CheckpointError, cause
from spheroid_jax.checkpoints.leaves import Item
from spheroid_jax.checkpoints.threads import Pending

COMMITTED = "commit_success.txt"  # Orbax's name

_barriers = itertools.count()  # processes must agree on names, which can't be reused


class Writer:
    """One save at a time, each with a deadline."""

    def __init__(self, directory: Path, seconds: float, digest: str) -> None:
        """Opens ``directory``; a save that takes longer than ``seconds`` is given up.

        Data gets digests of the kind called ``digest``.

        Raises:
          CheckpointError: The directory can't be made or read.
        """
        self._directory, self._seconds, self._digest = directory, seconds, digest
        self._pending: tuple[int, Pending, threading.Event] | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)  # Orbax takes a file too
            self._manager: ocp.CheckpointManager | None = self._open()
        except Exception as error:
            raise CheckpointError(
                f"checkpoint directory {directory} can't be used: {cause(error)}"
            ) from error

    def _open(self) -> ocp.CheckpointManager:
        options = ocp.CheckpointManagerOptions(
            max_to_keep=None,  # ours to decide: Orbax doesn't know about manifests
            async_options=ocp.AsyncOptions(
                timeout_secs=max(1, round(self._seconds)),
                create_directories_asynchronously=False,
            ),
            atomicity_options=ocp.options.AtomicityOptions(
                mode=ocp.options.AtomicityMode.COMMIT_FILE
            ),
        )
        with _quiet():
            return ocp.CheckpointManager(self._directory, options=options)

    def start(
        self,
        round_: int,
        items: Mapping[str, Item],
        manifest: Mapping[str, Any],
        after: Callable[[], None],
    ) -> None:
        """Starts to write a round and returns; call ``wait`` before the next one.

        Args:
          round_: Rounds completed.
          items: What this process writes, by item.
          manifest: What is known of the round; files and digests are added.
          after: Called when the round counts, by the first process only.
        """
        save = ocp.args.Composite(
            **{
                name: ItemSave(item, self._seconds, self._digest)
                for name, item in items.items()
            }
        )
        given_up = threading.Event()
        barrier = f"{self._directory.name}_{round_}_{next(_barriers)}"

        def begin() -> ocp.CheckpointManager:
            with _quiet():
                if jax.process_index() == 0:
                    # Left by a killed save; a complete round was refused before.
                    shutil.rmtree(self._directory / str(round_), ignore_errors=True)
                self._barrier(f"cleared_{barrier}")
                self._manager = self._manager or self._open()
                self._manager.reload()
                if not self._manager.save(round_, args=save, force=True):
                    raise RuntimeError("Orbax declined to write it")
                return self._manager

        def finish(manager: ocp.CheckpointManager) -> None:
            with _quiet():
                manager.wait_until_finished()
                if given_up.is_set():
                    return
                if jax.process_index() == 0:
                    self._complete(round_, manifest)
                    after()
                self._barrier(f"complete_{barrier}")

        if jax.process_count() == 1:
            pending = Pending(lambda: finish(begin()), self._seconds)
        else:
            # Orbax starts a save with collectives, which must come in the same order
            # everywhere, so not from a thread.
            manager = begin()
            pending = Pending(lambda: finish(manager), self._seconds)
        self._pending = round_, pending, given_up

    def wait(self) -> None:
        """Waits for the save in progress, if there is one.

        Raises:
          CheckpointError: It failed or took too long; names its round. Raised once.
        """
        if self._pending is None:
            return
        round_, pending, given_up = self._pending
        self._pending = None
        try:
            pending.wait()
            return
        except TimeoutError as error:
            given_up.set()  # so that it doesn't count after all, if it ends one day
            failure = CheckpointError(
                f"round {round_} not saved in {self._directory} within "
                f"{self._seconds:g} s; look after the disk, or raise checkpoint.timeout"
            )
            failure.__cause__ = error
        except CheckpointError as error:
            failure = error
        except Exception as error:
            failure = CheckpointError(
                f"round {round_} not saved in {self._directory}: {cause(error)}"
            )
            failure.__cause__ = error
        self._manager = None  # Orbax would raise its error again at every call
        raise failure

    def close(self) -> None:
        """Releases what Orbax holds; call ``wait`` before."""
        if self._manager is not None:
            with _quiet():
                self._manager.close()

    def _complete(self, round_: int, manifest: Mapping[str, Any]) -> None:
        """Makes a round that Orbax has committed count."""
        step = self._directory / str(round_)
        files = manifests.digests(step)
        items = manifests.item_digests(files)
        manifests.write(step, {**manifest, "items": items, "files": files})
        manifests.sync(self._directory)

    def _barrier(self, name: str) -> None:
        wait = ocp.multihost.get_barrier_sync_fn()
        wait(key=name, timeout_ms=round(self._seconds * 1000))


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
