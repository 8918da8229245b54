"""Cross-entropy against participation, from none to all updates in time.

Source: BlockTrain (arXiv 2606.24722), a table of CE by participation: 2.151 at 90 %,
2.595 at 42 %, 5.638 at 0 %, with late updates dropped. Here the workers stay those of
the preset ``wan`` and the deadline moves, from too short for anyone to long enough for
all who don't drop out (about 0, 5, 20, 40, 64, 81 and 93 % in time); lockstep is the
100 %. Each deadline runs with ``drop`` and with ``gate``, where late updates are kept
and weighed by their age. Rounds are equal, so a longer deadline costs simulated time.

    python -m experiments.sweep --config=configs/participation_sweep.py:quick  # minutes
    python -m experiments.sweep --config=configs/participation_sweep.py:small  # an hour
"""

from ml_collections import ConfigDict

from configs import async_regimes
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

DEADLINES = (0.75, 1.25, 1.6, 2.0, 2.5, 3.0, 4.0)  # seconds
DROPPED = "network.late=drop methods=mean,adam"
GATED = "network.late=gate methods=mean_weighted,cgad"

SIZES: Sizes = {name: dict(async_regimes.SIZES[name]) for name in ("quick", "small")}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the sweep at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.network()
    c.name = "participation_sweep"
    c.methods = ("mean", "mean_weighted", "adam", "cgad")
    c.network.preset = "wan"
    longest = f"network.deadline={DEADLINES[-1]}"
    c.sweep = config.delay_cells(
        "network.deadline",
        (
            *(
                f"network.deadline={deadline} {policy}"
                for deadline in DEADLINES
                for policy in (DROPPED, GATED)
            ),
            f"{longest} network.preset=lockstep {DROPPED}",
        ),
        panel="network.late",
    )
    return at_size(c, SIZES, size)
