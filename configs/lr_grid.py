"""The learning rate of every method, chosen from one grid.

No comparison counts unless each method runs at its own best rate: an end-to-end model
at an untuned rate looks worse than BlockTrain at a tuned one. A cell gives all three
methods the same rate; each method then takes the best of its own column, for
``train.learning_rate``, ``train.learning_rate_end_to_end`` and
``train.learning_rate_block_sized`` of ``configs/b3_l4.py``. Expect a best rate inside
the grid: at an end of it, widen the grid. What we measured is in the README.

    python -m experiments.sweep --config=configs/lr_grid.py:quick  # a quarter hour
    python -m experiments.sweep --config=configs/lr_grid.py:small  # half an hour

Times are for 2 cores. ``small`` has the model and the batches of ``b3_l4.py:small`` and
a quarter of its rounds.
"""

from ml_collections import ConfigDict

from configs import b3_l4
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

SIZES: Sizes = {
    "quick": b3_l4.SIZES["quick"],
    "small": b3_l4.SIZES["small"] | {"train.rounds": 40},
}

GRID = (2e-3, 4e-3, 8e-3)


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the grid at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.default()
    c.name = "lr_grid"
    c.sweep = ConfigDict()
    c.sweep.axis = "train.learning_rate"
    c.sweep.cells = tuple(
        f"train.learning_rate={rate} train.learning_rate_end_to_end={rate}"
        f" train.learning_rate_block_sized={rate}"
        for rate in GRID
    )
    c.sweep.log_x = True
    c.sweep.series = ("ce_chain", "ce_ensemble", "block_sized", "end_to_end")
    return at_size(c, SIZES, size)
