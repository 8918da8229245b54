"""Twelve layers in all, cut into ever fewer and deeper blocks: B * L = 12.

Source: BlockTrain (arXiv 2606.24722), the ablation at fixed depth. The paper's
CE_chain falls with every deepening of a block, from 2.728 at B = 12, L = 1 to 2.196 at
B = 3, L = 4 (short runs): a block is an L-layer language model of its own, so how much
one block can express decides the quality of the chain. Expect the same order here, and
the block-sized reference to fall in the same way. What we measured is in the README.

    python -m experiments.sweep --config=configs/depth_sweep.py:quick  # half an hour
    python -m experiments.sweep --config=configs/depth_sweep.py:small  # hours

Times are for 2 cores. All cells have the same parameters and training FLOPs; the
end-to-end reference is the same model in each.
"""

from ml_collections import ConfigDict

from configs import b3_l4
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

SIZES: Sizes = {
    "quick": b3_l4.SIZES["quick"],
    "small": b3_l4.SIZES["small"],
}

DEPTH = 12  # B * L


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the sweep at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.default()
    c.name = "depth_sweep"
    c.sweep = ConfigDict()
    c.sweep.axis = "model.layers"
    c.sweep.cells = tuple(
        f"model.blocks={DEPTH // layers} model.layers={layers}"
        for layers in range(1, DEPTH + 1)
        if DEPTH % layers == 0
    )
    c.sweep.log_x = True
    c.sweep.series = ("ce_chain", "ce_ensemble", "block_sized", "end_to_end")
    return at_size(c, SIZES, size)
