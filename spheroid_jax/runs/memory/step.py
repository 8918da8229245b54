"""The local phase of one worker, compiled from shapes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from ml_collections import ConfigDict

from spheroid_jax.config import default
from spheroid_jax.memory import StepMemory, step_memory
from spheroid_jax.rounds.worker import local_phase
from spheroid_jax.runs.methods import Method, build_method

# A model that is too large for a compiler's integers, or for the machine itself.
FAILURES = (jax.errors.JaxRuntimeError, MemoryError, OverflowError)
# How hard the code generator works, which comes after memory is assigned: the sizes are
# the same without it, and a program compiles in a third of the time.
_SKIP_CODE: dict[str, str | bool] = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
}


class Compiled(NamedTuple):
    """What became of compiling a step: its memory, or why there is none."""

    memory: StepMemory | None
    why: str = ""


def method_at(config: ConfigDict, width: int, name: str) -> Method:
    """Block training's method ``name`` for one width of a config of kind ``memory``."""
    c = default()
    m = config.model
    for field in ("blocks", "layers", "mlp_ratio", "head", "compute_dtype", "remat"):
        c.model[field] = m[field]
    c.model.width, c.model.heads = width, width // m.head_width
    c.data.seq_len, c.data.batch = config.data.seq_len, config.data.batch
    c.train.local_steps = config.train.local_steps
    return build_method(c, name)


def part_shapes(method: Method) -> Any:
    """Abstract parameters of what one worker of ``method`` trains."""
    parts = jax.eval_shape(
        lambda key: method.engine.partition.take(method.init(key)), jax.random.key(0)
    )
    return jax.tree.map(lambda leaf: _shape(leaf.shape[1:], leaf.dtype), parts)


def compile_local_phase(method: Method, config: ConfigDict) -> Compiled:
    """Compiles a worker's local phase; its part and optimizer state are donated.

    Args:
      method: what the worker trains.
      config: of kind ``memory``; ``data`` and ``train.local_steps`` are used.

    Returns:
      Bytes on one device of the default backend. A step that can't be compiled here is
      no error: ``why`` has the reason.
    """
    engine, part = method.engine, part_shapes(method)
    windows = (config.train.local_steps, config.data.batch, config.data.seq_len + 1)

    def phase(part: Any, state: Any, windows: Array, block: Array, key: Array) -> Any:
        return local_phase(
            engine.objective, engine.inner, part, state, windows, block, key
        )

    lowered = jax.jit(phase, donate_argnums=(0, 1)).lower(
        part,
        jax.eval_shape(engine.inner.init, part),
        _shape(windows, jnp.uint8),
        _shape((), jnp.int32),
        jax.eval_shape(lambda: jax.random.key(0)),
    )
    options = _SKIP_CODE if jax.default_backend() == "cpu" else None
    try:
        memory = step_memory(lowered.compile(compiler_options=options))
    except FAILURES as error:
        first = (str(error).splitlines() or [""])[0]
        return Compiled(None, f"does not compile here ({first or repr(error)})")
    if memory is None:
        return Compiled(None, "the backend tells no memory of a program")
    return Compiled(memory)


def _shape(shape: tuple[int, ...], dtype: DTypeLike) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)
