"""Sections that several kinds of experiments have."""

from ml_collections import ConfigDict


def start(kind: str, name: str) -> ConfigDict:
    """What every kind has."""
    c = ConfigDict()
    c.kind = kind  # of experiment, one of KINDS; set by the file
    c.name = name  # experiment; names the run directory and the report
    c.size = "quick"  # quick | small | paper; informative, set by the config file
    c.seed = 0  # parameters, data order, noise and evaluation all derive from it
    return c


def data() -> ConfigDict:
    """The section ``data``."""
    d = ConfigDict()
    d.corpus = "auto"  # auto | embedded | wikitext-2-raw | wikitext-103-raw | file:PATH
    d.mirror = ""  # URL or folder to take WikiText from; empty: the hub
    d.seq_len = 128  # T, bytes predicted per window
    d.stride = 0  # bytes between window starts; 0 = seq_len
    d.batch = 16  # windows per worker per local step
    d.sharding = "replica"  # replica | worker | shared: who sees which windows
    return d


def block_model() -> ConfigDict:
    """The section ``model`` of block training."""
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


def diffusion() -> ConfigDict:
    """The section ``diffusion``."""
    d = ConfigDict()
    d.sigma_min = 1.0  # lowest noise level, in units of the embedding
    d.sigma_max = 10.0  # highest noise level
    d.p_mean = -1.2  # mean of ln sigma
    d.p_std = 1.2  # standard deviation of ln sigma
    d.sigma_data = 0.5  # EDM's data scale
    d.overlap = 0.1  # gamma, by which a block's range is widened
    d.grid = "upper_edges"  # upper_edges | official: the chain's levels
    return d


def unknown_context(train: ConfigDict) -> None:
    """Adds to ``train`` how blocks learn to do without bytes that aren't known yet."""
    train.context_mask = 0.0  # share of a batch's windows cut at a random place; 0: off
    # Block 0 does without the bytes after the cut. Later blocks see them | do, too |
    # see the mean embedding by their own first guess | bytes drawn from that guess.
    train.context_fill = "true"  # true | zero | expected | drawn


def outer() -> ConfigDict:
    """The section ``outer``: what a recipe doesn't set."""
    o = ConfigDict()
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


def late_train(learning_rate: float, rounds: int) -> ConfigDict:
    """The section ``train`` where updates may be late.

    Rates are flat: a worker that misses rounds is behind in any schedule.
    """
    t = ConfigDict()
    t.replicas = 4  # workers; per block, where there are blocks
    t.rounds = rounds  # outer rounds, one outer update each at most
    t.local_steps = 8  # H, AdamW steps a worker takes per round
    t.learning_rate = learning_rate  # peak of AdamW
    t.warmup_steps = 40  # local steps of linear warm-up
    t.final_lr_fraction = 1.0  # of the peak, at the end of the cosine; 1 = flat
    t.b1 = 0.9  # AdamW
    t.b2 = 0.95  # AdamW
    t.weight_decay = 0.1  # AdamW, matrices of the layers only
    t.clip = 1.0  # global gradient norm; 0 = off
    return t


def late_eval() -> ConfigDict:
    """The section ``eval`` where runs are compiled whole."""
    e = ConfigDict()
    e.every = 5  # rounds between points of the curves
    e.windows = 64  # validation windows of a point
    e.batch = 32  # windows per compiled evaluation step
    e.last = 2  # points at the end whose mean is the final loss
    return e
