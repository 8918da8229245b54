"""Serves a model: one stage of it, the front end, or all on this machine.

python -m experiments.serve --stage=N --checkpoint=DIR --listen=HOST:PORT
    --token-file=FILE [--of=STAGES] [--certificate=PEM --key=PEM --ca=PEM]
    [--peers=HOST:PORT,...]
python -m experiments.serve --frontend --stages=HOST:PORT,HOST:PORT,...
    --listen=HOST:PORT --token-file=FILE [--clients=DIR]
python -m experiments.serve --local --checkpoint=DIR [--listen=HOST:PORT]

``--frontend --help`` and ``--local --help`` explain the options of those two.

Ctrl-C, or SIGTERM, ends it within seconds; a second one ends it at once.
"""

import sys

from spheroid_jax.runs.exchange.frame import program
from spheroid_jax.runs.serving import frontend, local, options, stage


def main(argv: list[str]) -> int:
    """Serves what ``argv`` asks for; returns the exit status."""
    again = "the same command serves it again"
    if "--frontend" in argv:
        return program(argv, frontend.parse, frontend.serve_frontend, again)
    if "--local" in argv:
        return program(argv, local.parse, local.serve_local, again)
    return program(argv, options.parse, stage.serve_stage, again)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
