"""The outer rate of the Adam family, and that of plain SGD, without delay.

Chosen once by age-blind Adam at delay 0 and then frozen for CGAD and all its relatives
at every delay, so that none of them is tuned to its age (CGAD, arXiv 2605.09126, does
not publish its rate). A step of Adam moves each parameter by about the rate, and a
round of H local steps moves it by up to H times the inner rate: the best rate should
lie between. Expect a best rate inside the grid: at an end of it, widen the grid.

    python -m experiments.sweep --config=configs/outer_grid.py:quick  # minutes
    python -m experiments.sweep --config=configs/outer_grid.py:small  # a quarter hour
"""

from ml_collections import ConfigDict

from configs import delayed
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

GRID = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)

SIZES: Sizes = {name: dict(delayed.SIZES[name]) for name in ("quick", "small")}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the sweep at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.delayed()
    c.name = "outer_grid"
    c.methods = ("adam",)
    c.sweep = config.delay_cells(
        "outer.learning_rate",
        tuple(f"outer.learning_rate={rate}" for rate in GRID),
        log_x=True,
    )
    return at_size(c, SIZES, size)
