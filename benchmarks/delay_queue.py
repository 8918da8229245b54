"""The compiled simulator against the same simulation driven by a Python loop.

python -m benchmarks.delay_queue [--workers=1,4,16,64] [--delays=0,4,16,64]
    [--json=FILE]

The Python loop calls one jitted local step for each step of each worker, one jitted
outer update a round, and keeps what is on its way in a list. Both do the same sums.
Rounds a second with a growing number of workers (M), and with a growing largest delay:
what a round costs should grow with M, and not with the delay. ``copies`` is the peak
of the compiled run beside its workers, in copies of the parameters, by the compiler's
own accounting; the limit is the largest delay + 2.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from benchmarks._harness import alternate, paired_ratio, parser, report
from spheroid_jax import partition
from spheroid_jax.models import Llama, LlamaShape
from spheroid_jax.objectives import Batch, next_byte
from spheroid_jax.optim import cgad
from spheroid_jax.rounds import Engine
from spheroid_jax.rounds.delayed import Delivery, simulate

MODEL = Llama(LlamaShape(width=32, layers=1, heads=2, kv_heads=2, mlp_width=64))
ROUNDS, STEPS, BATCH, LENGTH = 8, 4, 2, 16


def engine(workers: int) -> Engine:
    """DiLoCo with CGAD as the outer optimizer."""
    return Engine(
        partition.everything(),
        next_byte(MODEL),
        optax.sgd(0.1),
        cgad(1e-3),
        workers,
    )


def inputs(workers: int, delay: int) -> tuple[Array, Array, Array]:
    """Windows, delays and activity of a run."""
    shape = (ROUNDS, 1, workers, STEPS, BATCH, LENGTH + 1)
    windows = jax.random.randint(jax.random.key(0), shape, 0, 256).astype(jnp.uint8)
    delays = jnp.full((ROUNDS, 1, workers), delay, jnp.int32)
    return windows, delays, jnp.ones_like(delays, bool)


def compiled(workers: int, delay: int) -> tuple[Callable[[], Any], float]:
    """The run as one program, and its peak in copies of the parameters."""
    delivery = Delivery("in_flight", delay)
    params = MODEL.init(jax.random.key(1))
    size = sum(leaf.size for leaf in jax.tree.leaves(params))

    def run(params: Any, windows: Array, delays: Array, active: Array) -> Any:
        key = jax.random.key(2)
        state, metrics, _ = simulate(
            engine(workers),
            delivery,
            params,
            key,
            windows,
            delays,
            active,
            lambda params: jnp.float32(0.0),
            ROUNDS,
        )
        return state.params, metrics["loss"]

    given = inputs(workers, delay)
    program = jax.jit(run).lower(params, *given).compile()
    return lambda: program(params, *given), _copies(program, size)


def _copies(program: Any, size: int) -> float:
    memory = program.memory_analysis()
    if memory is None:
        return float("nan")
    return memory.temp_size_in_bytes / (4 * size)


def looped(workers: int, delay: int) -> Callable[[], Any]:
    """The same run, driven step by step from Python."""
    e = engine(workers)
    gradient = jax.grad(e.objective, has_aux=True)
    outer = optax.with_extra_args_support(e.outer)

    @jax.jit
    def local_step(part: Any, state: Any, windows: Array, key: Array) -> Any:
        grads, _ = gradient(part, Batch(windows, jnp.int32(0)), key)
        updates, state = e.inner.update(grads, state, part)
        return optax.apply_updates(part, updates), state

    @jax.jit
    def outer_step(params: Any, state: Any, deltas: Any, age: Array) -> Any:
        mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *deltas)
        updates, state = outer.update(mean, state, params, age=age)
        return optax.apply_updates(params, updates), state

    @jax.jit
    def subtract(sent: Any, returned: Any) -> Any:
        return jax.tree.map(jnp.subtract, sent, returned)

    windows, _, _ = inputs(workers, delay)
    start, key = MODEL.init(jax.random.key(1)), jax.random.key(2)

    def run() -> Any:
        params, state = start, outer.init(start)
        inner = [e.inner.init(start) for _ in range(workers)]
        queue: list[tuple[int, Any]] = []
        for round_ in range(ROUNDS):
            for worker in range(workers):
                part = params
                for step in range(STEPS):
                    part, inner[worker] = local_step(
                        part, inner[worker], windows[round_, 0, worker, step], key
                    )
                queue.append((round_ + delay, subtract(params, part)))
            due = [item for at, item in queue if at == round_]
            queue = [(at, item) for at, item in queue if at != round_]
            if due:
                params, state = outer_step(params, state, due, jnp.float32(delay))
        return params

    return run


def check(workers: int, delay: int) -> float:
    """Largest relative difference between the two simulations' parameters."""
    one, _ = compiled(workers, delay)[0]()
    other = looped(workers, delay)()
    apart = jax.tree.map(
        lambda a, b: float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))), one, other
    )
    return max(jax.tree.leaves(apart))


def measure(settings: Sequence[tuple[int, int]], repeats: int) -> list[dict[str, Any]]:
    """A row for each (workers, largest delay)."""
    rows = []
    for workers, delay in settings:
        program, copies = compiled(workers, delay)
        seconds = alternate(
            {"compiled": program, "loop": looped(workers, delay)}, repeats
        )
        rates = {name: ROUNDS / statistics.median(t) for name, t in seconds.items()}
        rows.append(
            {
                "workers": workers,
                "largest delay": delay,
                "compiled rounds/s": round(rates["compiled"], 1),
                "Python loop rounds/s": round(rates["loop"], 1),
                "ratio": round(paired_ratio(seconds["loop"], seconds["compiled"]), 1),
                "copies": round(copies, 1),
            }
        )
    return rows


def main(argv: list[str]) -> int:
    """Measures all settings and reports them."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--workers", default="1,4,16,64", help="numbers of workers")
    arguments.add_argument("--delays", default="0,4,16,64", help="largest delays")
    options = arguments.parse_args(argv)
    workers = [int(n) for n in options.workers.split(",")]
    delays = [int(n) for n in options.delays.split(",")]
    settings = [(m, 4) for m in workers] + [(4, d) for d in delays if d != 4]
    rows = measure(settings, options.repeats)
    at = {(row["workers"], row["largest delay"]): row for row in rows}
    ratios = {
        "compiled over Python loop, median of settings": float(
            np.median([row["ratio"] for row in rows])
        )
    }
    if {(4, min(delays)), (4, max(delays))} <= at.keys():
        few, many = at[4, min(delays)], at[4, max(delays)]
        ratios["cost of a round, largest delay over smallest"] = (
            few["compiled rounds/s"] / many["compiled rounds/s"]
        )
    report(rows, ratios, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
