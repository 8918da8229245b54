"""How fast weights should fall with age: alpha of CGAD and Adam-Decay.

Source: CGAD (arXiv 2605.09126): best at 0.2 (25 M) or 0.4 (1 B) at a delay of eight.
With one age for all Adam divides the weight out again, whatever alpha is; what is left
is the start, where ages grow. Where ages vary alpha can matter. Age-blind Adam, which
has no alpha, is the flat line to beat. What we measured is in the README.

    python -m experiments.sweep --config=configs/alpha_sweep.py:quick  # minutes
    python -m experiments.sweep --config=configs/alpha_sweep.py:small  # half an hour
"""

from ml_collections import ConfigDict

from configs import delayed
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

GRID = (0.05, 0.1, 0.2, 0.4, 0.8)

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
    c.name = "alpha_sweep"
    c.methods = ("adam", "adam_decay", "cgad")
    c.sweep = config.delay_cells(
        "outer.alpha",
        tuple(
            f"outer.alpha={alpha} delay.kind={kind} delay.tau={tau}"
            for kind, tau in (("fixed", 8), ("uniform", 16))
            for alpha in GRID
        ),
        panel="delay.kind",
        log_x=True,
    )
    return at_size(c, SIZES, size)
