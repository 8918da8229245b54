"""Low noise against high noise: what target leakage looks like.

Source: BlockTrain (arXiv 2606.24722), the ablation of the noise range. The paper's
CE_chain is 14.295 over [0.1, 2] and 2.755 over [1, 10] (short runs). At low noise a
block reads its target out of the noisy input: its local CE is near 0, it doesn't miss
its context, and the chain, which begins at pure noise, collapses far above
ln 256 = 5.545. Over [1, 10] there is little to read, and the chain works. Expect local
CE and CE_chain to change places. What we measured is in the README.

    python -m experiments.sweep --config=configs/sigma_ablation.py:quick  # minutes
    python -m experiments.sweep --config=configs/sigma_ablation.py:small  # two hours

Times are for 2 cores.
"""

from ml_collections import ConfigDict

from configs import b3_l4
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

# At the small radius of b3_l4 there is less to leak; 0.45 is the paper's scale.
SIZES: Sizes = {
    size: b3_l4.SIZES[size] | {"model.target_radius": 0.45}
    for size in ("quick", "small")
}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the ablation at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.default()
    c.name = "sigma_ablation"
    c.sweep = ConfigDict()
    c.sweep.axis = "diffusion.sigma_max"
    c.sweep.cells = (
        "diffusion.sigma_min=0.1 diffusion.sigma_max=2.0",
        "diffusion.sigma_min=1.0 diffusion.sigma_max=10.0",
    )
    c.sweep.log_x = True
    c.sweep.series = ("ce_chain", "ce_first", "local_ce", "end_to_end")
    return at_size(c, SIZES, size)
