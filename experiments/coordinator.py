"""Holds the model of a run, and works with whoever has a token.

python -m experiments.coordinator --config=configs/wan.py --workdir=runs/wan
    [--listen=0.0.0.0:8470 --certificate=PEM --key=PEM] [--config.FIELD=VALUE ...]

Stopped or killed, the same command goes on with the run. As it ends, finished or
stopped, it leaves a report; --workdir=DIR --report=only draws it at any time.
"""

import sys
from collections.abc import Sequence

from spheroid_jax.fields import ConfigError
from spheroid_jax.logs import show_logs
from spheroid_jax.parser import mistake
from spheroid_jax.ports import check_free
from spheroid_jax.transport.options.coordinator import parse_flags


def main(argv: Sequence[str]) -> int:
    """Coordinates as ``argv`` says; returns the exit status."""
    show_logs()
    status = 2
    try:
        flags = parse_flags(argv)
        status = 1
        if flags.config is not None:
            check_free(flags.host, flags.port)
    except ConfigError as error:
        return mistake(error, status)
    try:
        # JAX takes seconds to import: only now, when the command line is right.
        from spheroid_jax.runs.exchange.coordinate import AGAIN, coordinate
        from spheroid_jax.runs.exchange.frame import program
        from spheroid_jax.runs.exchange.options import complete
    except KeyboardInterrupt:
        print("stopped; the same command starts it", file=sys.stderr)
        return 130
    return program(lambda: complete(flags, argv), coordinate, AGAIN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
