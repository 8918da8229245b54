"""Time and memory of one outer update: CGAD and PA-CGAD beside Adam.

python -m benchmarks.outer_update [--params=100e6] [--json=FILE]

The tree is float32, twelve stacked leaves of equal size; parameters and state are
donated. The gate is one number for each leaf or fragment, so an update should cost at
most 1.05 of Adam's time and no copy of the parameters more than Adam needs.
"""

import statistics
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from benchmarks._harness import alternate, paired_ratio, parser, report
from spheroid_jax.optim import cgad, pa_cgad

LEAVES, FRAGMENTS = 12, 4
WIDTH = 1024
RATE = 1e-3
NAMES = {
    "adam": "optax.adam",
    "cgad": "cgad",
    "pa_cgad": "pa_cgad, all fragments",
    "pa_cgad_one": "pa_cgad, one fragment",
}


class Case(NamedTuple):
    """An outer update to measure."""

    call: Callable[[], Any]
    peak: int  # bytes of the compiled program, arguments included
    params: int  # bytes of the parameters alone


def tree(params: int) -> dict[str, jax.Array]:
    """About ``params`` float32 parameters in ``LEAVES`` leaves."""
    rows = max(1, round(params / LEAVES / WIDTH))
    return {f"leaf_{i:02d}": jnp.ones((rows, WIDTH)) for i in range(LEAVES)}


def fragments() -> dict[str, str]:
    """Strided fragments: neighbouring leaves are in different ones."""
    return {f"leaf_{i:02d}": f"fragment_{i % FRAGMENTS}" for i in range(LEAVES)}


def build(name: str, params: int) -> Case:
    """Compiles an update and places what it needs; the call donates and keeps it."""
    tx: Any = {
        "adam": lambda: optax.with_extra_args_support(optax.adam(RATE)),
        "cgad": lambda: cgad(RATE),
        "pa_cgad": lambda: pa_cgad(RATE, fragments()),
        "pa_cgad_one": lambda: pa_cgad(RATE, fragments()),
    }[name]()

    def update(weights: Any, state: Any, gradient: Any, extra: Any) -> Any:
        steps, state = tx.update(gradient, state, weights, **extra)
        return optax.apply_updates(weights, steps), state

    extra = {} if name == "adam" else {"age": jnp.float32(4)}
    if name == "pa_cgad_one":
        extra["synced"] = jnp.arange(FRAGMENTS) == 0
    weights = tree(params)
    gradient = jax.tree.map(lambda leaf: 1e-3 * leaf, weights)
    held = [weights, jax.jit(tx.init)(weights)]
    compiled = (
        jax.jit(update, donate_argnums=(0, 1)).lower(*held, gradient, extra).compile()
    )

    def call() -> Any:
        held[:] = compiled(*held, gradient, extra)
        return held[0]

    size = sum(leaf.nbytes for leaf in jax.tree.leaves(weights))
    return Case(call, peak_bytes(compiled), size)


def peak_bytes(compiled: Any) -> int:
    """Bytes that a compiled program holds at most, by its own account."""
    memory = compiled.memory_analysis()
    return (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
    )


def main(argv: list[str]) -> int:
    """Measures the updates in turn and reports them."""
    arguments = parser(__doc__ or "")
    arguments.add_argument(
        "--params", type=float, default=100e6, help="parameters in the tree"
    )
    options = arguments.parse_args(argv)

    cases = {name: build(name, int(options.params)) for name in NAMES}
    seconds = alternate({name: c.call for name, c in cases.items()}, options.repeats)
    adam = cases["adam"]
    rows = [
        {
            "update": NAMES[name],
            "ms": round(statistics.median(seconds[name]) * 1e3, 2),
            "memory, MB": round(case.peak / 1e6, 2),
            "memory, copies of the parameters": round(case.peak / case.params, 3),
        }
        for name, case in cases.items()
    ]
    ratios = {}
    for name, case in cases.items():
        if name != "adam":
            ratios[f"{name} / adam, time"] = paired_ratio(
                seconds[name], seconds["adam"]
            )
            extra = (case.peak - adam.peak) / case.params
            ratios[f"{name}, copies more than adam"] = extra
    report(rows, ratios, options.json)
    extra = max((case.peak - adam.peak) / case.params for case in cases.values())
    print(f"no extra copy of the parameters: {'yes' if extra < 0.01 else 'NO'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
