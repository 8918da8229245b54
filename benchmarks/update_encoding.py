"""What an update costs in each encoding: bits, error, speed.

python -m benchmarks.update_encoding [--config=configs/b3_l4.py:quick] [--rounds=3]
    [--numbers=2000000] [--json=FILE]

Of three kinds of updates: ``gaussian`` numbers; ``heavy`` ones, Student's t with 4
degrees of freedom whose rows differ in scale; and the ``trained`` pseudo-gradient of
the first block and the interface of ``--config`` after ``--rounds`` rounds of local
steps on text. ``bits`` are of the encoded numbers without the file's header. ``times
smaller`` is against plain float32. ``error`` is the norm of what is lost over the norm
of the update; the worker sends it with its next update. MB/s are of float32, the best
of the repeats, one thread; plain float32 is hardly touched.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._harness import parser, report
from spheroid_jax.commandline import load
from spheroid_jax.data.embedded import load_embedded
from spheroid_jax.rounds import local_phase
from spheroid_jax.runs.methods import build_method
from spheroid_jax.transport.updates.encoding import KINDS, Encoding, decode, encode
from spheroid_jax.transport.updates.file import ranges
from spheroid_jax.validation import validate

LEVEL = 3


def gaussian(count: int) -> list[np.ndarray]:
    """A leaf of normal noise."""
    noise = np.random.default_rng(0).standard_normal(count)
    return [(1e-3 * noise).astype(np.float32)]


def heavy(count: int) -> list[np.ndarray]:
    """A leaf with heavy tails, and rows that differ in scale."""
    noise = np.random.default_rng(1)
    rows = max(1, count // 512)
    scale = 1e-3 * np.exp(noise.standard_normal((rows, 1)))
    return [(scale * noise.standard_t(4, (rows, 512))).astype(np.float32).reshape(-1)]


def trained(file: str, rounds: int) -> list[np.ndarray]:
    """The leaves of the first block's worker: what it had, less what it has."""
    config = load(file)
    validate(config)
    method = build_method(config, "blocktrain")
    engine, text = method.engine, load_embedded().train
    shape = (config.train.local_steps, config.data.batch, config.data.seq_len + 1)
    part = jax.tree.map(
        lambda leaf: leaf[0], engine.partition.take(method.init(jax.random.key(0)))
    )
    state, noise = engine.inner.init(part), np.random.default_rng(2)

    @jax.jit
    def phase(part: Any, state: Any, windows: Any, key: Any) -> Any:
        return local_phase(
            engine.objective, engine.inner, part, state, windows, jnp.int32(0), key
        )

    before = part
    for round_ in range(rounds):
        starts = noise.integers(0, len(text) - shape[2], shape[:2])
        windows = text[starts[..., np.newaxis] + np.arange(shape[2])]
        before = part
        part, state, _ = phase(part, state, windows, jax.random.key(round_))
    delta = jax.tree.map(lambda a, b: np.asarray(a - b).reshape(-1), before, part)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(delta)]


def best(function: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """The shortest of ``repeats`` runs in seconds, and what the last one returned."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - began)
    return min(seconds), result


def measure(
    name: str, leaves: list[np.ndarray], encoding: Encoding, repeats: int
) -> dict[str, Any]:
    """A row of the table."""
    chunks = [leaf[a:b] for leaf in leaves for a, b in ranges(len(leaf))]
    numbers = sum(map(len, chunks))
    writing, data = best(lambda: [encode(c, encoding) for c in chunks], repeats)

    def read() -> list[np.ndarray]:
        return [decode(d, len(c), encoding) for d, c in zip(data, chunks, strict=True)]

    reading, decoded = best(read, repeats)
    lost = np.concatenate(chunks).astype(np.float64) - np.concatenate(decoded)
    bits = 8 * sum(map(len, data)) / numbers
    return {
        "update": name,
        "numbers": numbers,
        "encoding": encoding.kind + (f" zstd {encoding.zstd}" if encoding.zstd else ""),
        "bits": round(bits, 3),
        "times smaller": round(32 / bits, 2),
        "error": round(
            float(np.linalg.norm(lost) / np.linalg.norm(np.concatenate(chunks))), 5
        ),
        "encode MB/s": round(4e-6 * numbers / writing),
        "decode MB/s": round(4e-6 * numbers / reading),
    }


def main(argv: list[str]) -> int:
    """Measures every encoding of every update."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--config", default="configs/b3_l4.py:quick")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--numbers", type=int, default=2_000_000)
    options = arguments.parse_args(argv)
    updates = {
        "gaussian": gaussian(options.numbers),
        "heavy": heavy(options.numbers),
        "trained": trained(options.config, options.rounds),
    }
    rows = [
        measure(name, leaves, Encoding(kind, level), options.repeats)
        for name, leaves in updates.items()
        for kind in KINDS
        for level in (0, LEVEL)
    ]
    ratios = {
        f"{row['update']}, {row['encoding']}, times smaller": row["times smaller"]
        for row in rows
        if row["encoding"] == f"int4 zstd {LEVEL}"
    }
    report(rows, ratios, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
