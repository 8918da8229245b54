"""Runs every cell of a sweep and reports them in one table and one plot.

python -m experiments.sweep --config=configs/depth_sweep.py:quick
    [--config.FIELD=VALUE ...] [--workdir=DIR] [--resume]
"""

import sys

from spheroid_jax.runs.dispatch import sweep
from spheroid_jax.runs.session import session

if __name__ == "__main__":
    sys.exit(session("experiments.sweep", sys.argv[1:], sweep))
