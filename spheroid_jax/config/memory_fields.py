"""Fields of what a worker has to hold."""

from ml_collections import ConfigDict

from spheroid_jax.config import sections


def memory() -> ConfigDict:
    """Returns the configuration of the table of active states, at its defaults."""
    c = sections.start("memory", "memory")

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
