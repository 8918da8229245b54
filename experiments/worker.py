"""Trains for a coordinator, which says what.

python -m experiments.worker --coordinator=https://host:8470 --token-file=NAME.token
    [--ca=PEM] [--corpus=file:PATH] [--workdir=DIR]

Any number of workers and runs may share DIR: each worker has a folder a run in it.
"""

import sys

from spheroid_jax.runs.exchange.frame import program
from spheroid_jax.runs.exchange.work import parse, work

if __name__ == "__main__":
    again = "its slot is free; the same command joins again"
    sys.exit(program(sys.argv[1:], parse, work, again))
