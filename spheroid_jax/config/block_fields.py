"""Fields of block training beside its references."""

from ml_collections import ConfigDict

from spheroid_jax.config import sections

METHODS = ("blocktrain", "end_to_end", "block_sized")


def default() -> ConfigDict:
    """Returns the configuration of block training, every field at its default."""
    c = sections.start("blocks", "b3_l4")
    c.methods = METHODS  # which models to train; the first is BlockTrain itself

    c.model = sections.block_model()
    c.diffusion = sections.diffusion()
    c.data = sections.data()

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
    sections.unknown_context(c.train)

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
    c.checkpoint.wait = True  # for the disk before the next round; else beside it
    c.checkpoint.digest = "xxh3"  # of data: xxh3 | blake3, sha256 (against forgers)

    c.mesh = ConfigDict()
    c.mesh.block = 1  # devices along the block axis; divides B; 0 = choose
    c.mesh.replica = 1  # devices along the replica axis; divides K; 0 = choose
    c.mesh.fsdp = 1  # devices that share a worker; divides data.batch; 0 = choose
    return c
