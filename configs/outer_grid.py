"""The outer rate of the Adam family, without delay and under a large one.

The rate that all of the family runs at elsewhere is age-blind Adam's best at delay 0,
frozen for CGAD and all its relatives at every delay (CGAD, arXiv 2605.09126, does not
publish its rate). Under delay the grid answers another question: whether what a gate
does at the frozen rate is more than what a smaller rate does for age-blind Adam. Expect
a best rate inside the grid: at an end of it, widen the grid.

    python -m experiments.sweep --config=configs/outer_grid.py:quick  # minutes
    python -m experiments.sweep --config=configs/outer_grid.py:small  # half an hour
"""

from ml_collections import ConfigDict

from configs import delayed
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)

SIZES: Sizes = {name: dict(delayed.SIZES[name]) for name in ("quick", "small")}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the sweep at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.delayed()
    c.name = "outer_grid"
    c.methods = ("adam", "cgad")
    c.sweep = config.delay_cells(
        "outer.learning_rate",
        tuple(
            f"outer.learning_rate={rate} delay.tau={tau}"
            for tau in (0, 8, 16)
            for rate in GRID
        ),
        panel="delay.tau",
        log_x=True,
    )
    return at_size(c, SIZES, size)
