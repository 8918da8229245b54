"""What one worker has to hold, against the full stack, as the model grows wider.

Source: BlockTrain (arXiv 2606.24722), the memory profile: a worker's active AdamW state
is 0.198 GiB at B = 3, L = 4, d = 512. Each width from there to 18,432 gets a row: the
arithmetic (16 bytes a parameter), and beside it the memory that XLA assigned to the
compiled local phase of a worker and of the end-to-end model of the same depth. Programs
are compiled from shapes, and neither allocated nor run, so that a laptop will do for a
model of 49 G parameters. Expect the state of a worker to be a B-th of the full stack's
and a bit more, and a whole step to save less than that, most of all where the model is
narrow: activations are the batch's and not the parameters'.

    python -m experiments.run --config=configs/memory.py:quick  # a minute, 2 cores
    python -m experiments.run --config=configs/memory.py:small  # minutes
    python -m experiments.run --config=configs/memory.py:paper  # minutes

``quick`` compiles the narrow ones only; ``small`` every width; ``paper`` has more of
them. All have the paper's model and our batch of 64 windows of 256 bytes, of which the
paper says nothing.
"""

from ml_collections import ConfigDict

from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

SIZES: Sizes = {
    "quick": {"compile.up_to": 2048},
    "small": {},
    "paper": {
        "model.widths": (
            *(512, 768, 1024, 1536, 2048, 3072, 4096),
            *(6144, 8192, 12288, 18432),
        )
    },
}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the configuration at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    return at_size(config.memory(), SIZES, size)
