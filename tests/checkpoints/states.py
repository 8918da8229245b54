"""States, comparisons and processes that the tests of checkpoints share."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from spheroid_jax.checkpoints import Checkpoints

IDENTITY = {"model": {"layers": 3, "width": 8}, "corpus": "sha-of-the-corpus"}


def open_(
    directory: Path, *, keep: int = 5, identity: Any = None, **settings: Any
) -> Checkpoints:
    """Checkpoints of a run; the identity may be added to."""
    identity = IDENTITY | (identity or {})
    return Checkpoints(directory, keep=keep, identity=identity, **settings)


class State(NamedTuple):
    """As the engine has it."""

    params: Any
    outer: Any
    workers: Any
    round: Any
    key: Any


def blocks_state(blocks: int = 3, layers: int = 2, seed: int = 0) -> State:
    """A state whose parameters are blocks and an interface."""
    values = np.random.default_rng(seed)  # NumPy, so that nothing is compiled

    def normal(*shape: int, dtype: Any = jnp.float32) -> jax.Array:
        return jnp.asarray(values.normal(size=shape).astype(dtype))

    params = {
        "blocks": {
            "w": normal(blocks, layers, 8, 4),
            "bias": normal(blocks, 3, dtype=jnp.bfloat16),
        },
        "interface": {"head": normal(5), "scale": jnp.float32(seed + 0.5)},
    }
    outer = optax.TraceState(jax.tree.map(lambda x: -x, params))
    workers = {"head": normal(2, 5), "scale": normal(2)}
    return State(params, outer, workers, jnp.int32(seed), jax.random.key(seed))


def part_of(state: State, block: int) -> dict[str, Any]:
    """What a worker of ``block`` holds, by plain indexing."""
    return {
        "block": jax.tree.map(lambda x: x[block], state.params["blocks"]),
        "interface": state.params["interface"],
    }


def abstract(tree: Any) -> Any:
    """Shapes and dtypes alone."""
    return jax.eval_shape(lambda: tree)


def bits(leaf: Any) -> tuple[str, tuple[int, ...], bytes]:
    """dtype, shape and bytes, so that NaN payloads and signed zeros count."""
    if not isinstance(leaf, jax.Array | np.ndarray):
        return type(leaf).__name__, (), repr(leaf).encode()
    name = str(leaf.dtype)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return name, leaf.shape, np.asarray(leaf).tobytes()


def assert_same(actual: Any, expected: Any) -> None:
    """Same containers (NamedTuple types too), same bits."""
    assert str(jax.tree.structure(actual)) == str(jax.tree.structure(expected))
    assert jax.tree.map(bits, actual) == jax.tree.map(bits, expected)


def files_of(step: Path) -> list[Path]:
    """All files below a directory."""
    return sorted(path for path in step.rglob("*") if path.is_file())


def run_python(source: str, *args: object, **environment: str) -> subprocess.Popen[str]:
    """Starts Python on ``source`` with this test's path."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source), *map(str, args)],
        env=os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"} | environment,
        stdout=subprocess.PIPE,
        text=True,
    )
