"""Checkpoints against plain ``cp`` of the same bytes, and against Orbax's own arrays.

python -m benchmarks.checkpoint [--megabytes=16,64,256] [--directory=DIR]
    [--repeats=5] [--json=FILE]

The state is two blocks and a small interface, in float32. A save is timed until it is
on disk (flushed, digests and manifest written): waited for, as a run does unless it is
told otherwise; beside training, which needs a copy of the state first; and the call
alone of such a save, which is what training then waits for. Restores verify every
digest. Digests are XXH3 where the row doesn't say otherwise. ``cp`` runs in turn with
each, into a new directory, from the page cache; restores read from there too. ``over cp
flushed`` is against a ``cp`` whose copies are flushed to disk, as a save is and ``cp``
isn't.
Rates are the best of the repeats, ratios the median of pairs.

``peak`` is the most memory the process held beyond what it held before, in sizes of
what is saved or loaded (what is loaded counts: 1.0 can't be beaten). ``CPU`` is seconds
of processor time a gigabyte, for a look behind the noise of a busy machine.

For comparison: the same state through Orbax's StandardCheckpointHandler, with a SHA-256
of every file it wrote, checked before loading.
"""

import contextlib
import ctypes
import dataclasses
import gc
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from benchmarks._harness import paired_ratio, parser, report
from spheroid_jax.checkpoints import Checkpoints

BLOCKS, LEAVES = 2, 8
TARGET, PEAK = 0.5, 1.3
_LIBC = ctypes.CDLL(None)


@dataclasses.dataclass
class Operation:
    """Something to time, against a copy of ``files``."""

    name: str
    run: Callable[[], Any]
    files: Callable[[], list[Path]]
    after: Callable[[], Any] = lambda: None  # not timed


@dataclasses.dataclass
class Timing:
    """One run: wall and processor seconds, and peak memory in bytes."""

    seconds: float
    cpu: float
    peak: float


def make_state(size: int) -> dict[str, Any]:
    """About ``size`` bytes; noise, so that nothing can be compressed."""
    each = size // (4 * BLOCKS * LEAVES)
    noise = np.random.default_rng(0)
    blocks = {
        f"w{n}": jnp.asarray(noise.standard_normal((BLOCKS, each), np.float32))
        for n in range(LEAVES)
    }
    return {"params": {"blocks": blocks, "interface": {"head": jnp.ones((256, 8))}}}


def size_of(tree: Any) -> int:
    """Bytes of all leaves, which may be abstract."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def files_of(*directories: Path) -> list[Path]:
    """All files below some directories."""
    return [p for d in directories for p in sorted(d.rglob("*")) if p.is_file()]


def timed(function: Callable[[], Any]) -> Timing:
    """Runs once. Peak memory is Linux's; elsewhere it is NaN."""
    gc.collect()
    if hasattr(_LIBC, "malloc_trim"):  # glibc keeps what was freed, as if still held
        _LIBC.malloc_trim(0)
    before, cpu, began = _memory("VmRSS", reset=True), _cpu(), time.perf_counter()
    result = function()
    jax.block_until_ready(result)
    seconds, cpu = time.perf_counter() - began, _cpu() - cpu
    return Timing(seconds, cpu, _memory("VmHWM") - before)


def copy(files: list[Path], target: Path, *, flush: bool) -> Timing:
    """``cp`` of files that are in the page cache, into a new directory."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for file in files:
        file.read_bytes()
    sources = [str(file) for file in files]

    def run() -> None:
        subprocess.run(["cp", "--backup=numbered", *sources, str(target)], check=True)
        if flush:
            for path in target.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    timing = timed(run)
    shutil.rmtree(target)
    return timing


def own_operations(
    directory: Path, state: dict[str, Any], stack: contextlib.ExitStack
) -> list[Operation]:
    """Saves and restores of the library. Rounds are numbered on; one is kept."""
    beside, waiting, signed = (
        stack.enter_context(Checkpoints(directory, keep=2, identity={}, **settings))
        for settings in ({}, {"wait": True}, {"wait": True, "digest": "blake3"})
    )
    shapes = jax.eval_shape(lambda: state)
    part = {
        "block": jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype),
            shapes["params"]["blocks"],
        ),
        "interface": shapes["params"]["interface"],
    }
    round_ = 0

    def step() -> Path:
        return directory / str(round_)

    def start(store: Checkpoints) -> None:
        nonlocal round_
        round_ += 1
        store.save(round_, state, {})

    def save(store: Checkpoints) -> None:
        start(store)
        store.wait()

    def forget() -> None:
        beside.wait()
        if round_ > 1:
            shutil.rmtree(directory / str(round_ - 1))

    def all_files() -> list[Path]:
        return files_of(step())

    def part_files() -> list[Path]:
        return files_of(step() / "block_1", step() / "interface")

    return [
        Operation("save beside, its call", lambda: start(beside), all_files, forget),
        Operation("save beside, on disk", lambda: save(beside), all_files, forget),
        Operation("save, waited for", lambda: save(waiting), all_files, forget),
        Operation(
            "restore a block", lambda: beside.restore_part(part, block=1), part_files
        ),
        Operation("restore all", lambda: beside.restore(shapes)[0], all_files),
        Operation("BLAKE3: save, waited for", lambda: save(signed), all_files, forget),
        Operation("BLAKE3: restore all", lambda: signed.restore(shapes)[0], all_files),
    ]


def orbax_operations(directory: Path, state: dict[str, Any]) -> list[Operation]:
    """The same through Orbax's handler of arrays, with digests of its files."""
    target = directory / "orbax"
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one), state
    )
    checkpointer = ocp.Checkpointer(ocp.StandardCheckpointHandler())

    def digest() -> None:
        for path in files_of(target):
            with path.open("rb") as file:
                hashlib.file_digest(file, "sha256")
                os.fsync(file.fileno())

    def save() -> None:
        checkpointer.save(target, args=ocp.args.StandardSave(state), force=True)
        digest()

    def restore() -> Any:
        digest()
        return checkpointer.restore(target, args=ocp.args.StandardRestore(shapes))

    def files() -> list[Path]:
        return files_of(target)

    return [
        Operation("Orbax arrays: save", save, files),
        Operation("Orbax arrays: restore all", restore, files),
    ]


def measure(operation: Operation, size: int, scratch: Path, repeats: int) -> Any:
    """A row of the table; the first run, which compiles and opens, isn't counted."""
    operation.run()
    operation.after()
    runs, plain, flushed = [], [], []
    for _ in range(repeats):
        for path in operation.files():
            path.read_bytes()
        runs.append(timed(operation.run))
        operation.after()
        plain.append(copy(operation.files(), scratch, flush=False))
        flushed.append(copy(operation.files(), scratch, flush=True))
    seconds = [run.seconds for run in runs]
    return {
        "operation": operation.name,
        "MB": round(size / 1e6, 1),
        "MB/s": round(size / 1e6 / min(seconds)),
        "cp MB/s": round(size / 1e6 / min(t.seconds for t in plain)),
        "over cp": round(paired_ratio([t.seconds for t in plain], seconds), 2),
        "over cp flushed": round(
            paired_ratio([t.seconds for t in flushed], seconds), 2
        ),
        "CPU s/GB": round(1e9 * statistics.median(t.cpu for t in runs) / size, 2),
        "cp CPU s/GB": round(1e9 * statistics.median(t.cpu for t in plain) / size, 2),
        "peak": round(statistics.median(t.peak for t in runs) / size, 2),
    }


def table(megabytes: list[int], directory: Path, repeats: int) -> list[dict[str, Any]]:
    """All rows of all sizes."""
    rows = []
    for number in megabytes:
        state = make_state(number * 10**6)
        size, part = size_of(state), size_of(state) // BLOCKS
        own = directory / f"own{number}"
        with contextlib.ExitStack() as stack:
            for operation in [
                *own_operations(own, state, stack),
                *orbax_operations(directory, state),
            ]:
                bytes_ = part if operation.name == "restore a block" else size
                rows.append(measure(operation, bytes_, directory / "copy", repeats))
        shutil.rmtree(own)
    return rows


def main(argv: list[str]) -> int:
    """Measures all sizes and reports them."""
    arguments = parser(__doc__ or "")
    arguments.set_defaults(repeats=5)
    arguments.add_argument("--megabytes", default="16,64,256", help="sizes of a state")
    arguments.add_argument("--directory", help="where to write; default: a temporary")
    options = arguments.parse_args(argv)
    sizes = [int(n) for n in options.megabytes.split(",")]
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        rows = table(sizes, Path(scratch), options.repeats)
    largest = {row["operation"]: row for row in rows}  # sizes come in turn
    ratios: dict[str, float] = {}
    for name in ("save, waited for", "restore a block", "restore all"):
        ratios[f"{name}: over cp (target {TARGET})"] = largest[name]["over cp"]
        ratios[f"{name}: peak over size (target {PEAK})"] = largest[name]["peak"]
    report(rows, ratios, options.json)
    return 0


def _cpu() -> float:
    """Processor seconds of this process and of the commands it ran."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _memory(field: str, *, reset: bool = False) -> float:
    """Bytes of memory now (VmRSS) or at most since the last reset (VmHWM)."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return float("nan")
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return 1024.0 * int(line.split()[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
