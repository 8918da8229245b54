"""Every field of an experiment, once, with its unit and its default.

A file under ``configs/`` starts from :func:`default`, changes what its experiment
is about, and returns the result. Whether the whole makes sense is decided by
:func:`spheroid_jax.validation.validate`, before anything is compiled.

Fields avoid ``None`` and lists, because ml_collections cannot override either from
the command line; "not set" is an empty string or zero, and says so in its comment.
"""

from ml_collections import ConfigDict

METHODS = ("blocktrain", "end_to_end", "block_sized")


def default() -> ConfigDict:
    """Returns the configuration with every field at its default value."""
    c = ConfigDict()
    c.name = "b3_l4"  # experiment; names the run directory and the report
    c.size = "quick"  # quick | small | paper; informative, set by the config file
    c.seed = 0  # parameters, data order, noise and evaluation all derive from it
    c.methods = METHODS  # which models to train; the first is BlockTrain itself

    c.model = ConfigDict()
    c.model.blocks = 3  # B, blocks of the residual stack
    c.model.layers = 4  # L, transformer layers per block
    c.model.width = 64  # d, residual stream
    c.model.heads = 4  # attention heads; width must be a multiple
    c.model.mlp_ratio = 4  # hidden width of the MLP / width
    c.model.layout = "aligned"  # aligned | concat: how clean and noisy bytes meet
    c.model.head = "tied"  # tied (to the target embeddings, learnt scale) | untied
    c.model.rotary = True  # rotate queries and keys by position, beside the learnt ones
    c.model.target_radius = 0.45  # R, norm of a target embedding
    c.model.noisy_input_std = 0.0  # initial W_z std, in units of 1/sqrt(d); 0 = zero
    c.model.compute_dtype = "float32"  # float32 | bfloat16; master weights stay f32
    c.model.remat = "dots"  # none | dots | full: what is kept for the backward pass

    c.diffusion = ConfigDict()
    c.diffusion.sigma_min = 1.0  # lowest noise level, in units of the embedding
    c.diffusion.sigma_max = 10.0  # highest noise level
    c.diffusion.p_mean = -1.2  # mean of ln sigma
    c.diffusion.p_std = 1.2  # standard deviation of ln sigma
    c.diffusion.sigma_data = 0.5  # EDM's data scale
    c.diffusion.overlap = 0.1  # gamma, by which a block's range is widened
    c.diffusion.grid = "upper_edges"  # upper_edges | official: the chain's levels

    c.data = ConfigDict()
    c.data.corpus = (
        "auto"  # auto | embedded | wikitext-2-raw | wikitext-103-raw | file:PATH
    )
    c.data.mirror = ""  # URL or folder to take WikiText from; empty: the hub
    c.data.seq_len = 128  # T, bytes predicted per window
    c.data.stride = 0  # bytes between window starts; 0 = seq_len
    c.data.batch = 16  # windows per worker per local step
    c.data.sharding = "replica"  # replica | worker | shared: who sees which windows

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

    c.mesh = ConfigDict()
    c.mesh.block = 1  # devices along the block axis; divides B
    c.mesh.replica = 1  # devices along the replica axis; divides K
    return c
