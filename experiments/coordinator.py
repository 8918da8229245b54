"""Holds the model of a run, and works with whoever has a token.

python -m experiments.coordinator --config=configs/wan.py --workdir=runs/wan
    [--listen=0.0.0.0:8470 --certificate=PEM --key=PEM] [--config.FIELD=VALUE ...]

Stopped or killed, the same command goes on with the run. As it ends, finished or
stopped, it leaves a report; --workdir=DIR --report=only draws it at any time.
"""

import sys

from spheroid_jax.runs.exchange.coordinate import coordinate
from spheroid_jax.runs.exchange.frame import program
from spheroid_jax.runs.exchange.options import parse

if __name__ == "__main__":
    again = "what was accepted is kept; the same command goes on with the run"
    sys.exit(program(sys.argv[1:], parse, coordinate, again))
