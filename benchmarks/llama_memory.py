"""Weights and AdamW's moments on each device, for every size of the decoder.

python -m benchmarks.llama_memory [--sizes=tiny,7b] [--devices=1,8,64] [--json=FILE]

Worked out from shapes, nothing is allocated. Gradients and activations come on top;
tests/models/test_llama_abstract.py has those of a compiled step.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax

from benchmarks._harness import parser, report
from spheroid_jax.models import SIZES, abstract_params, llama, parameter_count
from spheroid_jax.models.sharding import bytes_per_device
from spheroid_jax.optim.quantized import adamw_8bit

GIB = 2**30
Init = Callable[[Any], Any]
# Name, dtype of the parameters, how the optimizer's state begins.
STATES: tuple[tuple[str, str, Init], ...] = (
    ("float32, AdamW", "float32", optax.adamw(1e-3).init),
    ("bfloat16, 8-bit AdamW", "bfloat16", adamw_8bit(1e-3).init),
)


def rows_of(size: str, devices: Sequence[int]) -> list[dict[str, Any]]:
    """What one device holds of a size, for each kind of state and number of devices."""
    rows = []
    for name, dtype, init in STATES:
        model = llama(size, param_dtype=dtype)
        params = abstract_params(model)
        moments = jax.eval_shape(init, params)
        for count in devices:
            weights, state = (bytes_per_device(t, count) for t in (params, moments))
            rows.append(
                {
                    "size": size,
                    "parameters": parameter_count(model),
                    "state": name,
                    "devices": count,
                    "weights, GiB": round(weights / GIB, 4),
                    "moments, GiB": round(state / GIB, 4),
                    "on a device, GiB": round((weights + state) / GIB, 4),
                    "bytes on a device": weights + state,
                }
            )
    return rows


def main(argv: list[str]) -> int:
    """Prints the table; the ratios say what 8-bit moments and bfloat16 save."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--sizes", default=",".join(SIZES))
    arguments.add_argument("--devices", default="1,8,64")
    options = arguments.parse_args(argv)
    devices = [int(count) for count in options.devices.split(",")]

    rows: list[dict[str, Any]] = []
    ratios = {}
    for size in options.sizes.split(","):
        own = rows_of(size, devices)
        rows += own
        exact, half = own[0], own[len(devices)]
        ratios[f"{size}: float32 and AdamW over bfloat16 and 8-bit AdamW"] = (
            exact["bytes on a device"] / half["bytes on a device"]
        )
    report(rows, ratios, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
