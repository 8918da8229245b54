"""Two workers a block: do averaged replicas train one assembled model?

Source: BlockTrain (arXiv 2606.24722), the run with six workers, B = 3 and K = 2: CE
1.385 (PPL 3.99) on one node of 8xA100, against 1.359 of the long run with B = 3, L = 4
on one device. What of data and rounds was equal between the two isn't published, so
both comparisons are made here. K = 2 stands against K = 1

- at equal rounds: the second replica brings as many bytes again;
- at equal data: K = 1 takes twice the rounds. A local step is the same then, its batch
  and its learning rate too, and what differs is whether a step sees the other half of
  the bytes before it (in sequence) or beside it (averaged). K = 1 takes twice as long.

The cell of K = 2 with half the batch has the bytes and the rounds of K = 1, so that
only the averaging of smaller batches tells them apart. The references are averaged in
the same way, as DiLoCo would. All cells share the learning rates, which were chosen at
K = 1. Expect K = 2 between both K = 1 cells.

    python -m experiments.sweep --config=configs/six_workers.py:quick  # 15 minutes
    python -m experiments.sweep --config=configs/six_workers.py:small  # 90 minutes

Times are for 2 cores.
"""

from ml_collections import ConfigDict

from configs import b3_l4
from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

# K = 1 at equal data is the run of b3_l4 itself.
SIZES: Sizes = {
    "quick": b3_l4.SIZES["quick"],
    "small": b3_l4.SIZES["small"],
}


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the sweep at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = at_size(config.default(), SIZES, size)
    c.name = "six_workers"
    rounds, batch = c.train.rounds, c.data.batch
    c.sweep = ConfigDict()
    c.sweep.axis = "train.replicas"
    c.sweep.cells = tuple(
        f"train.replicas={k} train.rounds={r} data.batch={n}"
        for k, r, n in (
            (2, rounds // 2, batch),
            (1, rounds // 2, batch),
            (1, rounds, batch),
            (2, rounds // 2, batch // 2),
        )
    )
    c.sweep.log_x = False
    c.sweep.series = ("ce_chain", "ce_ensemble", "block_sized", "end_to_end")
    return c
