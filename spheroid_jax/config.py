"""Every field of an experiment, once, with its unit and its default.

A file under ``configs/`` starts from one of ``KINDS``, changes what its experiment is
about, and returns the result: :func:`default` for block training beside its references,
:func:`delayed` for outer optimizers under delay, :func:`bound` for the delay bound on
functions whose gradient is known, :func:`network` for block training over a virtual
network, :func:`memory` for what a worker has to hold, :func:`fleet` for a day of
many workers without training.
Whether the whole makes sense is decided by :func:`spheroid_jax.validation.validate`,
before anything is compiled.

Fields avoid ``None`` and lists, because ml_collections cannot override either from
the command line; "not set" is an empty string or zero, and says so in its comment.
"""

from collections.abc import Callable, Mapping, Sequence

from ml_collections import ConfigDict

METHODS = ("blocktrain", "end_to_end", "block_sized")
BOUND_METHODS = ("sgd", "heavy_ball", "nesterov", "adam", "adam_decay", "cgad")
BOUND_FUNCTIONS = ("ripples", "saddle", "network")

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

# The same for blocks over a network: "mean" is BlockTrain's. Rates are the best of
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


def _start(kind: str, name: str) -> ConfigDict:
    c = ConfigDict()
    c.kind = kind  # of experiment, one of KINDS; set by the file
    c.name = name  # experiment; names the run directory and the report
    c.size = "quick"  # quick | small | paper; informative, set by the config file
    c.seed = 0  # parameters, data order, noise and evaluation all derive from it
    return c


def _data() -> ConfigDict:
    d = ConfigDict()
    d.corpus = "auto"  # auto | embedded | wikitext-2-raw | wikitext-103-raw | file:PATH
    d.mirror = ""  # URL or folder to take WikiText from; empty: the hub
    d.seq_len = 128  # T, bytes predicted per window
    d.stride = 0  # bytes between window starts; 0 = seq_len
    d.batch = 16  # windows per worker per local step
    d.sharding = "replica"  # replica | worker | shared: who sees which windows
    return d


def _block_model() -> ConfigDict:
    m = ConfigDict()
    m.blocks = 3  # B, blocks of the residual stack
    m.layers = 4  # L, transformer layers per block
    m.width = 64  # d, residual stream
    m.heads = 4  # attention heads; width must be a multiple
    m.mlp_ratio = 4  # hidden width of the MLP / width
    m.layout = "aligned"  # aligned | concat: how clean and noisy bytes meet
    m.head = "tied"  # tied (to the target embeddings, learnt scale) | untied
    m.rotary = True  # rotate queries and keys by position, beside the learnt ones
    m.target_radius = 0.45  # R, norm of a target embedding
    m.noisy_input_std = 0.0  # initial W_z std, in units of 1/sqrt(d); 0 = zero
    m.compute_dtype = "float32"  # float32 | bfloat16; master weights stay f32
    m.remat = "dots"  # none | dots | full: what is kept for the backward pass
    m.attention = "auto"  # auto | xla | cudnn (fused; GPU and bfloat16 only)
    return m


def _diffusion() -> ConfigDict:
    d = ConfigDict()
    d.sigma_min = 1.0  # lowest noise level, in units of the embedding
    d.sigma_max = 10.0  # highest noise level
    d.p_mean = -1.2  # mean of ln sigma
    d.p_std = 1.2  # standard deviation of ln sigma
    d.sigma_data = 0.5  # EDM's data scale
    d.overlap = 0.1  # gamma, by which a block's range is widened
    d.grid = "upper_edges"  # upper_edges | official: the chain's levels
    return d


def _outer() -> ConfigDict:
    o = ConfigDict()  # what a recipe doesn't set
    o.learning_rate = 3e-3  # the Adam family; see configs/outer_grid.py
    o.momentum = 0.9  # the Nesterov family
    o.b1 = 0.9  # the Adam family
    o.b2 = 0.999  # the Adam family
    o.eps = 1e-8  # the Adam family
    o.alpha = 0.2  # decay per round of age
    o.tau_cut = 32.0  # age at which the gate is shut, rounds
    o.exponent = 0.5  # of polynomial weights
    o.period = 4  # arrivals between two momentum steps of delayed Nesterov
    o.tau_c = 1.0  # age up to which FADAS keeps its rate, rounds
    return o


def default() -> ConfigDict:
    """Returns the configuration of block training, every field at its default."""
    c = _start("blocks", "b3_l4")
    c.methods = METHODS  # which models to train; the first is BlockTrain itself

    c.model = _block_model()
    c.diffusion = _diffusion()
    c.data = _data()

    c.train = ConfigDict()
    c.train.replicas = 1  # K, workers per block
    c.train.rounds = 20  # rounds of BlockTrain and of both references
    c.train.local_steps = 20  # H, AdamW steps a worker takes per round
    c.train.learning_rate = 2e-3  # peak, BlockTrain
    c.train.learning_rate_end_to_end = 2e-3  # peak, end-to-end reference
    c.train.learning_rate_block_sized = 2e-3  # peak, block-sized reference
    c.train.warmup_steps = 20  # local steps of linear warm-up
    c.train.final_lr_fraction = 0.1  # of the peak, at the end of the cosine
    c.train.b1 = 0.9  # AdamW
    c.train.b2 = 0.95  # AdamW
    c.train.weight_decay = 0.1  # AdamW, matrices of the layers only
    c.train.clip = 1.0  # global gradient norm; 0 = off

    c.outer = ConfigDict()
    c.outer.name = "sgd"  # sgd (with 1.0: the paper's mean) | nesterov
    c.outer.learning_rate = 1.0  # on the mean pseudo-gradient
    c.outer.momentum = 0.9  # nesterov only

    c.eval = ConfigDict()
    c.eval.every = 1  # rounds between points of the curves
    c.eval.curve_windows = 32  # validation windows per point of the curves
    c.eval.windows = 256  # validation windows of the final table
    c.eval.batch = 16  # windows per compiled evaluation step
    c.eval.mix_draws = 8  # noise draws averaged in CE_mix

    c.checkpoint = ConfigDict()
    c.checkpoint.every = 1  # rounds between checkpoints; the last round always saves
    c.checkpoint.keep = 2  # newest checkpoints kept per method
    c.checkpoint.keep_best = 0  # besides, those of the lowest CE on validation
    c.checkpoint.timeout = 1800.0  # seconds after which a save has failed

    c.mesh = ConfigDict()
    c.mesh.block = 1  # devices along the block axis; divides B; 0 = choose
    c.mesh.replica = 1  # devices along the replica axis; divides K; 0 = choose
    c.mesh.fsdp = 1  # devices that share a worker; divides data.batch; 0 = choose
    return c


def delayed() -> ConfigDict:
    """Returns the configuration of outer optimizers under delay, at its defaults."""
    c = _start("delays", "delayed")
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

    c.data = _data()

    c.train = ConfigDict()
    c.train.replicas = 4  # M, workers
    c.train.rounds = 100  # outer rounds, one outer update each at most
    c.train.local_steps = 8  # H, AdamW steps a worker takes per round
    c.train.learning_rate = 1e-3  # peak of AdamW
    c.train.warmup_steps = 40  # local steps of linear warm-up
    c.train.final_lr_fraction = 1.0  # of the peak, at the end of the cosine; 1 = flat
    c.train.b1 = 0.9  # AdamW
    c.train.b2 = 0.95  # AdamW
    c.train.weight_decay = 0.1  # AdamW, matrices of the layers only
    c.train.clip = 1.0  # global gradient norm; 0 = off
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

    c.outer = _outer()

    c.eval = ConfigDict()
    c.eval.every = 5  # rounds between points of the curves
    c.eval.windows = 64  # validation windows of a point
    c.eval.batch = 32  # windows per compiled evaluation step
    c.eval.last = 2  # points at the end whose mean is the final loss
    return c


def network() -> ConfigDict:
    """Returns the configuration of block training over a virtual network."""
    c = _start("network", "network")
    c.seeds = 1  # runs of every method, from seed, seed + 1, ...; vmapped
    c.methods = ("mean", "nesterov", "adam")  # of the recipes
    c.recipes = ConfigDict(NETWORK_RECIPES)  # outer optimizers by name

    c.model = _block_model()
    c.model.layers = 2
    c.model.remat = "none"
    c.diffusion = _diffusion()
    c.data = _data()

    c.train = ConfigDict()
    c.train.replicas = 4  # K, workers per block
    c.train.rounds = 60  # outer rounds
    c.train.local_steps = 8  # H, AdamW steps a worker takes per round
    c.train.learning_rate = 4e-3  # peak of AdamW
    c.train.warmup_steps = 40  # local steps of linear warm-up
    c.train.final_lr_fraction = 1.0  # of the peak, at the end of the cosine; 1 = flat
    c.train.b1 = 0.9  # AdamW
    c.train.b2 = 0.95  # AdamW
    c.train.weight_decay = 0.1  # AdamW, matrices of the layers only
    c.train.clip = 1.0  # global gradient norm; 0 = off

    c.network = ConfigDict()
    c.network.preset = "wan"  # lockstep | mild | wan | bad_edge: what workers there are
    c.network.profiles = ""  # CSV of kinds of workers, in place of the preset
    c.network.trace = ""  # CSV of measured seconds, in place of drawn ones
    c.network.deadline = 2.0  # seconds after which a round closes; 0 = none
    c.network.late = "drop"  # drop | gate: late updates are lost | arrive later
    c.network.max_age = 8  # rounds after which a late worker gives up; gate only
    c.network.quorum = 0  # updates of each block that close a round; 0 = all
    c.network.grace = 0.0  # seconds that a round stays open beyond its quorum

    c.outer = _outer()
    c.outer.learning_rate = 1e-2  # the Adam family

    c.eval = ConfigDict()
    c.eval.every = 5  # rounds between points of the curves
    c.eval.windows = 64  # validation windows of a point
    c.eval.batch = 32  # windows per compiled evaluation step
    c.eval.last = 2  # points at the end whose mean is the final loss
    return c


def bound() -> ConfigDict:
    """Returns the configuration of the delay bound on known functions, at defaults."""
    c = _start("bound", "bound")
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


def memory() -> ConfigDict:
    """Returns the configuration of the table of active states, at its defaults."""
    c = _start("memory", "memory")

    c.model = ConfigDict()
    c.model.blocks = 3  # B, blocks of the residual stack
    c.model.layers = 4  # L, transformer layers per block
    c.model.widths = (512, 1024, 2048, 4096, 8192, 12288, 18432)  # d, one row each
    c.model.head_width = 64  # channels of an attention head; divides every width
    c.model.mlp_ratio = 4  # hidden width of the MLP / width
    c.model.head = "tied"  # tied | untied, as of block training
    c.model.compute_dtype = "float32"  # float32 | bfloat16; master weights stay f32
    c.model.remat = "dots"  # none | dots | full: what is kept for the backward pass

    c.data = ConfigDict()
    c.data.seq_len = 256  # T, bytes predicted per window
    c.data.batch = 64  # windows per local step, of the worker and of the full stack

    c.train = ConfigDict()
    c.train.local_steps = 200  # H, AdamW steps of the compiled local phase

    c.compile = ConfigDict()
    c.compile.up_to = 18432  # largest width whose steps are compiled; 0 = none
    return c


def fleet() -> ConfigDict:
    """Returns the configuration of a fleet over a day, at its defaults."""
    c = _start("fleet", "fleet")
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


KINDS: Mapping[str, Callable[[], ConfigDict]] = {
    "blocks": default,
    "delays": delayed,
    "network": network,
    "bound": bound,
    "memory": memory,
    "fleet": fleet,
}
