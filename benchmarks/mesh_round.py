"""Time of a round against K, on a mesh, on one device, and in a loop over workers.

python -m benchmarks.mesh_round [--config=configs/b3_l4.py:quick] [--replicas=1,2,4]
python -m benchmarks.mesh_round --config=configs/b3_l4.py:paper \\
    --compile="train.replicas=2 mesh.block=3 mesh.replica=2 mesh.fsdp=1"

All three do the same work: B x K workers of H local steps, and the mean. The mesh is
one compiled call on eight devices, "one device" the same call on one, and the loop a
compiled local phase for each worker in turn. On a CPU the eight devices are threads
that share its cores, so the table shows what the mesh costs there and not what it
gains; on accelerators the first column is the one that scales.

The second form runs nothing: it compiles a round for a mesh and prints what it takes
of each device's memory and what the devices exchange.
"""

import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

_DEVICES = "--xla_force_host_platform_device_count"
# Before JAX is imported; other platforms have the devices they have.
if _DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}=8".strip()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from ml_collections import ConfigDict  # noqa: E402

from benchmarks._harness import alternate, paired_ratio, parser, report  # noqa: E402
from spheroid_jax.commandline import load, overrides  # noqa: E402
from spheroid_jax.delivery import lockstep  # noqa: E402
from spheroid_jax.rounds import (  # noqa: E402
    RoundState,
    init_state,
    local_phase,
    make_round,
    mean_pseudo_gradient,
    worker_keys,
)
from spheroid_jax.rounds.collectives import (  # noqa: E402
    collectives,
    collectives_table,
)
from spheroid_jax.rounds.mesh import (  # noqa: E402
    WINDOWS,
    make_mesh,
    mesh_round,
    state_sharding,
)
from spheroid_jax.rounds.outer_step import step_outer  # noqa: E402
from spheroid_jax.runs.methods import Method, build_method  # noqa: E402
from spheroid_jax.runs.settings import mesh_shape  # noqa: E402
from spheroid_jax.validation import validate  # noqa: E402


def first_state(method: Method, key: jax.Array) -> RoundState:
    """A fresh state of ``method``."""
    return init_state(method.engine, method.init(key), key)


def windows_shape(method: Method, config: ConfigDict) -> tuple[int, ...]:
    """(B, K, H, N, T + 1) of a round."""
    workers = (method.engine.partition.count, method.engine.replicas)
    data = config.data
    return (*workers, config.train.local_steps, data.batch, data.seq_len + 1)


def compiled_round(config: ConfigDict) -> tuple[Any, Mesh, int]:
    """BlockTrain's round for the mesh of ``config``, from shapes alone.

    Returns:
      The compiled program, the mesh, and the bytes of the state on one device.
    """
    validate(config)
    method = build_method(config, "blocktrain")
    mesh = make_mesh(*mesh_shape(config, config.model.blocks))
    state = jax.eval_shape(lambda key: first_state(method, key), jax.random.key(0))
    shardings = state_sharding(mesh, state)

    def placed(leaf: Any, at: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at)

    shape = windows_shape(method, config)
    windows = jax.ShapeDtypeStruct(
        shape, jnp.uint8, sharding=NamedSharding(mesh, WINDOWS)
    )
    round_ = mesh_round(method.engine, mesh, shardings)
    state = jax.tree.map(placed, state, shardings)
    program = round_.lower(state, windows, lockstep(*shape[:2])).compile()
    held = sum(
        int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves((state.params, state.workers))
    )
    return program, mesh, held


def described(config: ConfigDict) -> str:
    """Memory on each device of a compiled round, and its collectives."""
    program, mesh, held = compiled_round(config)
    memory = program.memory_analysis()
    sizes = {
        "parameters and optimizer states": held,
        "arguments": memory.argument_size_in_bytes,
        "of these updated in place": memory.alias_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
    }
    lines = [f"{name}: {size / 2**30:.3f} GiB" for name, size in sizes.items()]
    table = collectives_table(collectives(program, mesh))
    return "\n".join([f"on each of {mesh.size} devices", *lines, "", table])


def python_loop(method: Method) -> Callable[[RoundState, jax.Array], RoundState]:
    """A round as one would write it without vmap: workers one after the other."""
    engine = method.engine
    count, replicas = engine.partition.count, engine.replicas

    @jax.jit
    def train(part: Any, opt_state: Any, windows: Any, block: Any, key: Any) -> Any:
        return local_phase(
            engine.objective, engine.inner, part, opt_state, windows, block, key
        )

    @jax.jit
    def finish(state: RoundState, sent: Any, returned: Any) -> Any:
        accepted = lockstep(count, replicas)
        delta = mean_pseudo_gradient(engine.partition, sent, returned, accepted)
        present = jnp.any(accepted, axis=1)
        params, outer, _ = step_outer(engine, delta, state.outer, state.params, present)
        return params, outer

    take = jax.jit(engine.partition.take)

    @jax.jit
    def stack(trees: list[Any]) -> Any:
        def one(*leaves: jax.Array) -> jax.Array:
            return jnp.stack(leaves).reshape(count, replicas, *leaves[0].shape)

        return jax.tree.map(one, *trees)

    @jax.jit
    def pick(tree: Any, b: Any, k: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[b, k], tree)

    def run(state: RoundState, windows: jax.Array) -> RoundState:
        sent = take(state.params)
        key = jax.random.fold_in(state.key, state.round)
        keys = worker_keys(key, count, replicas)
        done = []
        for b in range(count):
            part = jax.tree.map(lambda leaf, b=b: leaf[b], sent)
            for k in range(replicas):
                own = pick(state.workers, b, k)
                done.append(train(part, own, windows[b, k], jnp.int32(b), keys[b, k]))
        parts, opt_states, _ = stack(done)
        params, outer = finish(state, sent, parts)
        return RoundState(params, outer, opt_states, state.round + 1, state.key)

    return run


def measure(
    config: ConfigDict, repeats: int
) -> tuple[dict[str, Any], dict[str, float], str]:
    """One row: seconds of a round in the three ways.

    Returns:
      The row, ratios of paired timings, and a table of the mesh's collectives.
    """
    method = build_method(config, "blocktrain")
    engine = method.engine
    shape = mesh_shape(config, config.model.blocks)
    mesh = make_mesh(*shape)
    state = jax.jit(lambda key: first_state(method, key))(jax.random.key(0))
    windows = jax.random.randint(
        jax.random.key(1), windows_shape(method, config), 0, 256
    ).astype(jnp.uint8)
    accepted = lockstep(*windows.shape[:2])
    placed = jax.device_put(state, state_sharding(mesh, state))
    spread = jax.device_put(windows, NamedSharding(mesh, WINDOWS))
    # Not donated, so that it can be called again and again with the same state.
    shardings = (
        state_sharding(mesh, state),
        NamedSharding(mesh, P("block", "replica")),
    )
    round_ = jax.jit(make_round(engine), out_shardings=shardings)
    program = round_.lower(placed, spread, accepted).compile()
    alone, loop = jax.jit(make_round(engine)), python_loop(method)
    ways: dict[str, Callable[[], Any]] = {
        "mesh": lambda: program(placed, spread, accepted)[0],
        "one device": lambda: alone(state, windows, accepted)[0],
        "loop": lambda: loop(state, windows),
    }
    seconds = alternate(ways, repeats)
    typical = {name: statistics.median(times) for name, times in seconds.items()}
    workers = windows.shape[0] * windows.shape[1]
    row = {
        "K": config.train.replicas,
        "mesh": " x ".join(str(n) for n in shape),
        "workers": workers,
        **{f"{name}, ms": round(1e3 * t, 1) for name, t in typical.items()},
        "mesh, ms a worker": round(1e3 * typical["mesh"] / workers, 1),
    }
    ratios = {
        f"K={row['K']}: {other} / mesh": paired_ratio(seconds[other], seconds["mesh"])
        for other in ("loop", "one device")
    }
    return row, ratios, collectives_table(collectives(program, mesh))


def main(argv: list[str]) -> int:
    """Measures rounds of growing K and reports them."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--config", default="configs/b3_l4.py:quick")
    arguments.add_argument("--replicas", default="1,2,4", help="values of K")
    arguments.add_argument(
        "--compile", metavar="FIELDS", help="only compile, with these"
    )
    options = arguments.parse_args(argv)
    if options.compile:
        print(described(overrides(load(options.config), options.compile)))
        return 0
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    for count in (int(k) for k in options.replicas.split(",")):
        config = overrides(
            load(options.config),
            f"train.replicas={count} mesh.block=0 mesh.replica=0 mesh.fsdp=1",
        )
        validate(config)
        row, ratio, exchanged = measure(config, options.repeats)
        rows.append(row)
        ratios |= ratio
    report(rows, ratios, options.json)
    print(f"\nCollectives of a round of K={rows[-1]['K']}, on each device:")
    print(exchanged)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
