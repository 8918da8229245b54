"""Fields of block training over a virtual network."""

from ml_collections import ConfigDict

from spheroid_jax.config import sections

# Outer optimizers by name: "mean" is BlockTrain's. Rates are the best of
# configs/async_outer_grid.py:quick, where nothing is late.
NETWORK_RECIPES = {
    "mean": "sgd learning_rate=1.0",
    "mean_weighted": "weighted_sgd learning_rate=1.0",
    "nesterov": "nesterov learning_rate=0.3 momentum=0.9",
    "nesterov_weighted": "staleness_nesterov learning_rate=0.3 momentum=0.9 mode=input",
    "adam": "adam",
    "cgad": "cgad gate=pre",
    "cgad_both": "cgad gate=both",
}


def network() -> ConfigDict:
    """Returns the configuration of block training over a virtual network."""
    c = sections.start("network", "network")
    c.seeds = 1  # runs of every method, from seed, seed + 1, ...; vmapped
    c.methods = ("mean", "nesterov", "adam")  # of the recipes
    c.recipes = ConfigDict(NETWORK_RECIPES)  # outer optimizers by name

    c.model = sections.block_model()
    c.model.layers = 2
    c.model.remat = "none"
    c.diffusion = sections.diffusion()
    c.data = sections.data()

    c.train = sections.late_train(4e-3, rounds=60)
    sections.unknown_context(c.train)

    c.network = ConfigDict()
    c.network.preset = "wan"  # lockstep | mild | wan | bad_edge: what workers there are
    c.network.profiles = ""  # CSV of kinds of workers, in place of the preset
    c.network.trace = ""  # CSV of measured seconds, in place of drawn ones
    c.network.deadline = 2.0  # seconds after which a round closes; 0 = none
    c.network.late = "drop"  # drop | gate: late updates are lost | arrive later
    c.network.max_age = 8  # rounds after which a late worker gives up; gate only
    c.network.quorum = 0  # updates of each block that close a round; 0 = all
    c.network.grace = 0.0  # seconds that a round stays open beyond its quorum

    c.outer = sections.outer()
    c.outer.learning_rate = 1e-2  # the Adam family

    c.eval = sections.late_eval()
    return c
