"""Cost of one block step beside its references: the same layers, the same optimizer.

python -m benchmarks.train_step [--config=configs/b3_l4.py:small] [--json=FILE]

A block step should cost at most 1.10 of the step of an autoregressive model of as many
layers: the noise, the noisy input and the sigma embedding are what comes on top.
GFLOP/s are the model's own; on an accelerator whose peak is known their share of it is
printed too (MFU, one device).
"""

import statistics
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from benchmarks._harness import alternate, matmul_peak, paired_ratio, parser, report
from benchmarks._peaks import model_flops_utilisation
from spheroid_jax.commandline import load
from spheroid_jax.config import METHODS
from spheroid_jax.rounds import local_phase
from spheroid_jax.runs.methods import Method, build_method
from spheroid_jax.validation import validate

STEPS = 4  # local steps in one call, scanned as in a round
NAMES = {
    "blocktrain": "block step",
    "block_sized": "L-layer autoregressive step",
    "end_to_end": "end-to-end step",
}


def step_function(method: Method, config: ConfigDict) -> Callable[[], Any]:
    """A compiled call of ``STEPS`` local steps of one worker of ``method``."""
    engine, key = method.engine, jax.random.key(0)
    params = method.init(key)
    part = jax.tree.map(lambda leaf: leaf[0], engine.partition.take(params))
    shape = (STEPS, config.data.batch, config.data.seq_len + 1)
    windows = jax.random.randint(key, shape, 0, 256).astype(jnp.uint8)
    opt_state, block = engine.inner.init(part), jnp.int32(0)

    @jax.jit
    def steps(part: Any, opt_state: Any) -> Any:
        return local_phase(
            engine.objective, engine.inner, part, opt_state, windows, block, key
        )

    return lambda: steps(part, opt_state)


def main(argv: list[str]) -> int:
    """Measures the three steps in turn and reports them."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--config", default="configs/b3_l4.py:small")
    options = arguments.parse_args(argv)
    config = load(options.config)
    validate(config)

    methods = {name: build_method(config, name) for name in METHODS}
    seconds = alternate(
        {name: step_function(m, config) for name, m in methods.items()},
        options.repeats,
    )
    peak = matmul_peak()
    rows = []
    for name, method in methods.items():
        step = statistics.median(seconds[name]) / STEPS
        flops = method.window_flops * config.data.batch / step
        mfu = model_flops_utilisation(flops)
        rows.append(
            {
                "step": NAMES[name],
                "layers": method.layers_per_worker,
                "ms": round(step * 1e3, 2),
                "tokens/s": round(config.data.batch * config.data.seq_len / step),
                "GFLOP/s": round(flops / 1e9, 2),
                "share of matmul peak": round(flops / peak, 3),
                # Of the published peak; a CPU has none.
                **({} if mfu is None else {"MFU": round(mfu, 4)}),
            }
        )
    block, sized, whole = (
        seconds[n] for n in ("blocktrain", "block_sized", "end_to_end")
    )
    ratios = {
        "block step / L-layer step": paired_ratio(block, sized),
        "end-to-end step / block step": paired_ratio(whole, block),
        "measured matmul peak, GFLOP/s": peak / 1e9,
    }
    report(rows, ratios, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
