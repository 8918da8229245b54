"""Every outer optimizer at every delay: CGAD's main table, with what it leaves out.

Source: CGAD (arXiv 2605.09126), the controlled delays. The paper reports that Nesterov
with DiLoCo's published 0.7 / 0.9 is lost from four or eight rounds on, and that CGAD at
sixteen is as good as at none. Expect both. Expect, too, age-blind Adam to do as well:
with one age for all, Adam divides any weight of age out again. Only where ages vary
(the uniform cells) can a gate matter. What we measured is in the README.

    python -m experiments.sweep --config=configs/delay_sweep.py:quick  # minutes
    python -m experiments.sweep --config=configs/delay_sweep.py:small  # an hour
    python -m experiments.sweep --config=configs/delay_sweep.py:paper  # a day, one GPU

The rate of the Adam family is age-blind Adam's best without delay, from
``configs/outer_grid.py``, and the same at every delay; those of the Nesterov family are
as published.
"""

from ml_collections import ConfigDict

from configs import delayed
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

METHODS = (
    "nesterov",
    "sgd",
    "delayed_nesterov",
    "sdm_input",
    "sdm_momentum",
    "adam",
    "adam_decay",
    "cgad",
)
TELLING = ("nesterov", "adam", "adam_decay", "cgad")  # also where ages vary

SIZES: Sizes = {name: dict(changes) for name, changes in delayed.SIZES.items()}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the sweep at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.delayed()
    c.name = "delay_sweep"
    fixed = (0, 4, 8, 16) if size == "quick" else (0, 1, 2, 4, 8, 16)
    varying = (8, 16) if size == "quick" else (1, 2, 4, 8, 16)
    c.methods = METHODS
    c.sweep = config.delay_cells(
        "delay.tau",
        (
            *(f"delay.tau={tau} delay.kind=fixed" for tau in fixed),
            *(
                f"delay.tau={tau} delay.kind=uniform methods={','.join(TELLING)}"
                for tau in varying
            ),
        ),
        panel="delay.kind",
    )
    return at_size(c, SIZES, size)
