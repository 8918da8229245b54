"""Where the gate goes: before Adam's moments, after its division, or both.

CGAD (arXiv 2605.09126) weighs the pseudo-gradient before both moments. With one age for
all Adam divides that out again, so a gate after the division is the natural contender:
it shortens steps by age, as a smaller rate would. Age-blind Adam is the reference. What
we measured, and what we recommend, is in the README.

    python -m experiments.sweep --config=configs/gate_ablation.py:quick  # minutes
    python -m experiments.sweep --config=configs/gate_ablation.py:small  # half an hour
"""

from ml_collections import ConfigDict

from configs import delayed
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

SIZES: Sizes = {
    "quick": delayed.SIZES["quick"] | {"seeds": 3},
    "small": dict(delayed.SIZES["small"]),
}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the sweep at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.delayed()
    c.name = "gate_ablation"
    c.methods = ("adam", "cgad", "cgad_post", "cgad_both")
    c.sweep = config.delay_cells(
        "delay.tau",
        tuple(
            f"delay.tau={tau} delay.kind={kind}"
            for kind in ("fixed", "uniform")
            for tau in (4, 8, 16)
        ),
        panel="delay.kind",
    )
    return at_size(c, SIZES, size)
