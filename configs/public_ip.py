"""The paper's run over the internet: three hosts, full participation, 12 rounds.

Source: BlockTrain (arXiv 2606.24722), its public-IP run: CE 5.580 to 1.811, 15.22 GB
moved. The hosts here are network namespaces of this machine (or, where those need
rights that we don't have, addresses of its loopback); a worker's link has 40 ms each
way, 20 Mbit/s and 1 % loss, which are ours: the paper's aren't published. They are
modelled by a proxy beside each worker; spheroid_jax/transport/shaping/link.py says how.
At the size ``paper`` the model is as large as the one whose updates make the published
bytes (d = 1024, derived from them), and the link alone takes some six hours.

    python -m experiments.run --config=configs/public_ip.py:quick    # minutes, 2 cores
    python -m experiments.run --config=configs/public_ip.py:small    # an hour, 2 cores
    python -m experiments.run --config=configs/public_ip.py:paper    # a GPU, a day
"""

from ml_collections import ConfigDict

from configs.same_node import SIZES as ONE_NODE
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

SIZES: Sizes = {
    "quick": ONE_NODE["quick"],
    "small": ONE_NODE["small"] | {"train.local_steps": 100},
    "paper": ONE_NODE["paper"] | {"model.width": 1024, "model.heads": 16},
}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the configuration at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.exchange()
    c.name = "public_ip"
    c.train.replicas = 1
    c.train.rounds = 12
    c.exchange.workers = 3
    c.exchange.encoding = "float32"
    c.exchange.lease = 120.0
    c.hosts.kind = "namespaces"
    c.hosts.delay_seconds = 0.04
    c.hosts.rate_bits = 20e6
    c.hosts.loss = 0.01
    return at_size(c, SIZES, size)
