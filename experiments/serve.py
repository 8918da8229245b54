"""Serves a model: one stage of it, the front end, or all on this machine.

python -m experiments.serve --stage=N --checkpoint=DIR --listen=HOST:PORT
    --token-file=FILE [--of=STAGES] [--certificate=PEM --key=PEM --ca=PEM]
python -m experiments.serve --frontend --stages=HOST:PORT,HOST:PORT,...
    --listen=HOST:PORT --token-file=FILE
python -m experiments.serve --local --checkpoint=DIR

Ctrl-C, or SIGTERM, ends it within seconds; a second one ends it at once.
"""

import sys

from spheroid_jax.runs.exchange.frame import program
from spheroid_jax.runs.serving import options, stage


def main(argv: list[str]) -> int:
    """Serves what ``argv`` asks for; returns the exit status."""
    again = "the same command serves it again"
    return program(argv, options.parse, stage.serve_stage, again)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
