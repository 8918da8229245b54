"""Trains for a coordinator, which says what.

python -m experiments.worker --coordinator=https://host:8470 --token-file=NAME.token
    [--ca=PEM] [--corpus=file:PATH] [--workdir=DIR]

Any number of workers and runs may share DIR: each worker has a folder a run in it.
"""

import sys
from collections.abc import Sequence

from spheroid_jax.fields import ConfigError
from spheroid_jax.logs import show_logs
from spheroid_jax.parser import mistake
from spheroid_jax.transport.options.worker import parse


def main(argv: Sequence[str]) -> int:
    """Works as ``argv`` says; returns the exit status."""
    show_logs()
    try:
        options = parse(argv)
    except ConfigError as error:
        return mistake(error)
    try:
        # JAX takes seconds to import: only now, when the command line is right.
        from spheroid_jax.runs.exchange.frame import program
        from spheroid_jax.runs.exchange.work import AGAIN, work
    except KeyboardInterrupt:
        print("stopped; the same command starts it", file=sys.stderr)
        return 130
    return program(lambda: options, work, AGAIN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
