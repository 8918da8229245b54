"""Fields of outer optimizers under delay, and of sweeps of them."""

from collections.abc import Sequence

from ml_collections import ConfigDict

from spheroid_jax.config import sections

# Outer optimizers by the name they have in tables: an optimizer, and what it sets
# otherwise than ``outer`` does. Rates of the Nesterov family are DiLoCo's.
RECIPES = {
    "nesterov": "nesterov learning_rate=0.7 momentum=0.9",
    "nesterov_tenth": "nesterov learning_rate=0.07 momentum=0.9",
    "sgd": "sgd learning_rate=0.7",
    "delayed_nesterov": "delayed_nesterov learning_rate=0.7 momentum=0.9",
    "sdm_input": "staleness_nesterov learning_rate=0.7 momentum=0.9 mode=input",
    "sdm_momentum": "staleness_nesterov learning_rate=0.7 momentum=0.9 mode=momentum",
    "polynomial": "polynomial_nesterov learning_rate=0.7 momentum=0.9",
    "fadas": "fadas",
    "adam": "adam",
    "adam_decay": "adam_decay",
    "cgad": "cgad gate=pre",
    "cgad_post": "cgad gate=post",
    "cgad_both": "cgad gate=both",
    # With moments and a count for each fragment: the gate knows the fragment's age,
    # the delay alone, or nothing.
    "pa_cgad": "pa_cgad ages=fragment",
    "pa_delay": "pa_cgad ages=delay",
    "pa_adam": "pa_cgad ages=none",
}


def delayed() -> ConfigDict:
    """Returns the configuration of outer optimizers under delay, at its defaults."""
    c = sections.start("delays", "delayed")
    c.seeds = 1  # runs of every method, from seed, seed + 1, ...; vmapped
    c.methods = ("nesterov", "sgd", "adam", "adam_decay", "cgad")  # of the recipes
    c.recipes = ConfigDict(RECIPES)  # outer optimizers by name

    c.model = ConfigDict()  # a Llama-style decoder on bytes
    c.model.layers = 4  # L
    c.model.width = 128  # d, residual stream
    c.model.heads = 4  # attention heads; width must be a multiple
    c.model.kv_heads = 4  # key and value heads; divides heads
    c.model.mlp_width = 384  # hidden width of SwiGLU
    c.model.compute_dtype = "float32"  # float32 | bfloat16, activations
    c.model.remat = "none"  # none | dots | full: what is kept for the backward pass

    c.data = sections.data()

    c.train = sections.late_train(1e-3, rounds=100)
    c.train.precision = "float32"  # float32 | bf16_8bit: bf16 weights, 8-bit AdamW
    c.train.keep_inner = True  # whether AdamW's state outlives a round at its worker

    c.delay = ConfigDict()
    c.delay.protocol = "snapshot"  # snapshot: start from an old model | in_flight
    c.delay.start = "ramp"  # ramp: the first delays are shorter | skip: nothing arrives
    c.delay.kind = "fixed"  # fixed | uniform | per_worker | trace
    c.delay.tau = 0  # rounds; the largest where the kind is uniform
    c.delay.per_worker = (0, 1, 2, 4)  # rounds; per_worker only, one for each worker
    c.delay.trace = ""  # CSV of delays, a row a round, a column a worker; trace only

    c.sync = ConfigDict()
    c.sync.fragments = 1  # into how many the layers are dealt; 1 = synced as a whole
    c.sync.schedule = "round_robin"  # every | round_robin | periods: who and when
    c.sync.periods = (1, 2, 4, 8)  # rounds between syncs of each fragment; periods only
    c.sync.offsets = (0, 1, 2, 3)  # round of each fragment's first sync; periods only
    c.sync.drop = 0.0  # probability that a fragment's sync is lost
    c.sync.quorum = 0  # K: a round waits for so many workers; 0 = for all
    c.sync.grace = 0.0  # how long it waits beyond, in mean times of a worker
    c.sync.mixing = 0.0  # share of its own that a worker keeps of a synced fragment

    c.outer = sections.outer()

    c.eval = sections.late_eval()
    return c


def delay_cells(
    axis: str, cells: Sequence[str], *, panel: str = "", log_x: bool = False
) -> ConfigDict:
    """Returns the ``sweep`` section of a sweep of delayed runs."""
    s = ConfigDict()
    s.axis = axis  # field on the axis of the picture and in the head of the table
    s.panel = panel  # field that has a panel and a table for each value; empty: none
    s.cells = tuple(cells)  # overrides, one cell each; all methods run in each cell
    s.log_x = log_x  # whether the axis is logarithmic
    s.cells_at_once = 1  # cells of a method in one call, vmapped: for accelerators
    s.threads = 2  # calls at a time: for CPUs, whose cores one small model won't fill
    return s
