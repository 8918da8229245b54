"""Fields of a day of many workers, without training."""

from ml_collections import ConfigDict

from spheroid_jax.config import sections

FLEET_POLICIES = ("drop", "gate", "quorum")
# Kinds of workers, as delivery.profiles.Profile has them: seconds, and bytes a second.
FLEET_KINDS = {
    "datacentre": "share=5 step_seconds=0.25 step_spread=0.05 speed_spread=0.1 "
    "latency_seconds=0.05 jitter_seconds=0.1 down=125e6 up=125e6 dropout=0.002 "
    "session_seconds=604800 away_seconds=3600",
    "workstation": "share=15 step_seconds=0.6 step_spread=0.15 speed_spread=0.25 "
    "latency_seconds=0.1 jitter_seconds=0.5 down=25e6 up=5e6 link_spread=0.4 "
    "dropout=0.01 session_seconds=36000 away_seconds=36000",
    "home": "share=40 step_seconds=1.1 step_spread=0.3 speed_spread=0.4 "
    "latency_seconds=0.15 jitter_seconds=1 down=12.5e6 up=2.5e6 link_spread=0.5 "
    "dropout=0.03 session_seconds=10800 away_seconds=21600",
    "laptop": "share=30 step_seconds=2.5 step_spread=0.4 speed_spread=0.4 "
    "latency_seconds=0.2 jitter_seconds=3 down=6.25e6 up=1.25e6 link_spread=0.5 "
    "dropout=0.08 session_seconds=5400 away_seconds=16200",
    "edge": "share=10 step_seconds=6 step_spread=0.4 speed_spread=0.5 "
    "latency_seconds=0.5 jitter_seconds=10 down=2.5e6 up=0.5e6 link_spread=0.5 "
    "dropout=0.15 session_seconds=3600 away_seconds=14400",
}


def fleet() -> ConfigDict:
    """Returns the configuration of a fleet over a day, at its defaults."""
    c = sections.start("fleet", "fleet")
    c.policies = FLEET_POLICIES  # what becomes of late updates, and when rounds close
    c.kinds = ConfigDict(FLEET_KINDS)  # of workers by name, if there is no CSV

    c.fleet = ConfigDict()
    c.fleet.blocks = 8  # B
    c.fleet.replicas = 12_500  # K, workers registered per block
    c.fleet.hours = 24.0  # simulated time
    c.fleet.part_bytes = 53_654_532  # to and from a worker; B3-L4 at d = 512, float32
    c.fleet.needed = 1  # updates that make a block timely in a round
    c.fleet.timely = 0.85  # share of timely rounds for which replicas are counted
    c.fleet.largest_group = 64  # G: groups of 1 ... G replicas are tried

    c.train = ConfigDict()
    c.train.local_steps = 200  # H, steps of an update

    c.network = ConfigDict()
    c.network.profiles = ""  # CSV of kinds of workers, in place of kinds
    c.network.deadline = 300.0  # seconds after which a round closes
    c.network.max_age = 8  # rounds after which a late worker gives up; not for drop
    c.network.quorum_share = 0.2  # of a block's workers, whose updates close a round
    c.network.grace = 30.0  # seconds that a round stays open beyond its quorum
    return c
