"""A day of a fleet that nobody owns: 10^5 workers, and no training.

Source: BlockTrain (arXiv 2606.24722), whose virtual network this is at the scale of the
internet. Kinds of workers, from a datacentre to a phone at the edge, come, work and go;
the clock of rounds says whose updates arrive in time, whose late and whose never, for
the policies drop (the paper's), gate (late updates arrive in a later round) and quorum
(a round closes soon after so many updates of every block). From the same simulation:
how many replicas a block needs to be timely, and what the coordinator's line carries.

    python -m experiments.run --config=configs/fleet.py:quick  # 10^4 workers, 6 hours
    python -m experiments.run --config=configs/fleet.py:small  # 10^5, a day: a minute
    python -m experiments.run --config=configs/fleet.py:paper  # 10^6, a day: minutes

The kinds are ours, and no measurement: put your own into ``kinds``, or name a CSV by
``--config.network.profiles=FILE``. No paper prints such a table, so that ``paper`` is a
fleet ten times as large and nobody's row.
"""

from ml_collections import ConfigDict

from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

SIZES: Sizes = {
    "quick": {"fleet.replicas": 1250, "fleet.hours": 6.0},
    "small": {},
    "paper": {"fleet.replicas": 125_000},
}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the configuration at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    return at_size(config.fleet(), SIZES, size)
