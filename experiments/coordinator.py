"""Holds the model of a run, and works with whoever has a token.

python -m experiments.coordinator --config=configs/wan.py --workdir=runs/wan
    [--listen=0.0.0.0:8470 --certificate=PEM --key=PEM] [--config.FIELD=VALUE ...]

Stopped or killed, the same command goes on with the run.
"""

import sys

from spheroid_jax.runs.exchange.coordinate import coordinate, parse
from spheroid_jax.runs.exchange.frame import program

if __name__ == "__main__":
    again = "what was accepted is kept; the same command goes on with the run"
    sys.exit(program(sys.argv[1:], parse, coordinate, again))
