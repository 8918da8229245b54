"""Float32 against bf16 weights with 8-bit AdamW: does the gate calm the seeds?

Source: CGAD (arXiv 2605.09126): at 7 B, with bf16 weights and 8-bit AdamW, the spread
over seeds of Adam-Decay was 27 times that at 25 M, and CGAD's was not; but at one delay
below the cut-off the two differ by a constant factor, which Adam divides out. Here the
same precisions train a small model, and every method runs with several seeds. What we
measured is in the README.

    python -m experiments.sweep --config=configs/seed_variance.py:quick  # minutes
    python -m experiments.sweep --config=configs/seed_variance.py:small  # half an hour
"""

from ml_collections import ConfigDict

from configs import delayed
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

SIZES: Sizes = {
    "quick": delayed.SIZES["quick"] | {"seeds": 5},
    "small": delayed.SIZES["small"] | {"seeds": 5},
}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the sweep at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.delayed()
    c.name = "seed_variance"
    c.methods = ("adam", "adam_decay", "cgad")
    c.sweep = config.delay_cells(
        "delay.tau",
        tuple(
            f"delay.tau=8 train.precision={precision}"
            for precision in ("float32", "bf16_8bit")
        ),
        panel="train.precision",
    )
    return at_size(c, SIZES, size)
