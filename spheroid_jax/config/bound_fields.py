"""Fields of the delay bound on functions whose gradient is known."""

from ml_collections import ConfigDict

from spheroid_jax.config import sections

BOUND_METHODS = ("sgd", "heavy_ball", "nesterov", "adam", "adam_decay", "cgad")
BOUND_FUNCTIONS = ("ripples", "saddle", "network")


def bound() -> ConfigDict:
    """Returns the configuration of the delay bound on known functions, at defaults."""
    c = sections.start("bound", "bound")
    c.seeds = 8  # runs of every method, from seed, seed + 1, ...; vmapped
    c.methods = BOUND_METHODS  # age-blind Adam is always one of them
    c.functions = BOUND_FUNCTIONS  # see spheroid_jax/runs/bound/functions.py

    c.train = ConfigDict()
    c.train.replicas = 1  # M, workers; each sends one gradient a round
    c.train.rounds = 1000  # outer rounds, one outer update each
    c.train.noise = 0.3  # of a gradient; 1 = a typical coordinate of it at the start

    c.delay = ConfigDict()
    c.delay.tau_max = (1, 2, 4, 8, 16, 32)  # rounds; 0 is always run as well
    c.delay.kinds = ("fixed", "uniform")  # ages: all tau_max | uniform on {0..tau_max}

    c.outer = ConfigDict()
    # Each method takes the one with the lowest error without delay.
    c.outer.learning_rates = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
    c.outer.momentum = 0.9  # heavy ball and Nesterov
    c.outer.b1 = 0.9  # the Adam family
    c.outer.b2 = 0.999  # the Adam family
    c.outer.eps = 1e-8  # the Adam family
    c.outer.alpha = 0.2  # decay per round of age
    c.outer.tau_cut = 32.0  # age at which the gate is shut, rounds

    c.eval = ConfigDict()
    c.eval.last = 0.25  # share of a run, at its end, that the error is the mean of
    return c
