"""Trains what a configuration describes, beside its references, and reports it.

python -m experiments.run --config=configs/b3_l4.py:quick
    [--config.FIELD=VALUE ...] [--workdir=DIR] [--resume]
"""

import sys

from spheroid_jax.runs.dispatch import run
from spheroid_jax.runs.session import session

if __name__ == "__main__":
    sys.exit(session("experiments.run", sys.argv[1:], run))
