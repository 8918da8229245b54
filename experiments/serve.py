"""Serves a model: one stage of it, the front end, or all on this machine.

python -m experiments.serve --local --checkpoint=DIR [--listen=HOST:PORT]
python -m experiments.serve --stage=N --checkpoint=DIR --listen=HOST:PORT
    --token-file=FILE [--of=STAGES] [--certificate=PEM --key=PEM --ca=PEM]
    [--peers=HOST:PORT,...]
python -m experiments.serve --frontend --stages=HOST:PORT,HOST:PORT,...
    --listen=HOST:PORT --token-file=FILE [--clients=DIR]

``--local --help``, ``--stage --help`` and ``--frontend --help`` explain the options.

Ctrl-C, or SIGTERM, ends it within seconds, or after the program that it compiles just
then; a second one ends it at once.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from spheroid_jax.fields import ConfigError
from spheroid_jax.parser import mistake
from spheroid_jax.ports import check_free
from spheroid_jax.serving.options import frontend, local, stage
from spheroid_jax.transport.ledger import LedgerError


def main(argv: Sequence[str]) -> int:
    """Serves what ``argv`` asks for; returns the exit status."""
    what = _what(argv)
    try:
        if what == "help":
            print((__doc__ or "").strip())
            return 0
        options, host, port = _parsed(what, argv)
    except ConfigError as error:
        return mistake(error)
    except LedgerError as error:
        return mistake(error, 1)
    try:
        check_free(host, port)
    except ConfigError as error:
        return mistake(error, 1)
    try:
        return _run(what, options, argv)
    except KeyboardInterrupt:  # while it imports
        print("stopped; the same command serves it again", file=sys.stderr)
        return 130


def _what(argv: Sequence[str]) -> str:
    """What is to be served, or ``help``; empty if nothing says it."""
    flags = {argument.partition("=")[0] for argument in argv}
    for what in ("frontend", "local", "stage"):
        if f"--{what}" in flags:
            return what
    return "help" if flags & {"-h", "--help"} else ""


def _parsed(what: str, argv: Sequence[str]) -> tuple[Any, str, int]:
    """The options, and where to listen."""
    if what == "frontend":
        whole = frontend.parse(argv)
        return whole, whole.http.host, whole.http.port
    if what == "local":
        here = local.parse(argv)
        return here, here.http.host, here.http.port
    if what == "stage":
        one = stage.parse([a for a in argv if a != "--stage" or not _helps(argv)])
        return one, one.host, one.port
    raise ConfigError(
        "say what to serve: --local (everything here), --stage=N (one block) or "
        "--frontend --stages=A,B,C"
    )


def _helps(argv: Sequence[str]) -> bool:
    return bool({"-h", "--help"} & set(argv))


def _run(what: str, options: Any, argv: Sequence[str]) -> int:
    # JAX takes seconds to import: only now, when the command line is right.
    from spheroid_jax.runs.exchange.frame import program
    from spheroid_jax.runs.serving.frontend import serve_frontend
    from spheroid_jax.runs.serving.local import serve_local
    from spheroid_jax.runs.serving.stage import serve_stage

    actions: dict[str, Callable[[Any], str]] = {
        "frontend": serve_frontend,
        "local": serve_local,
        "stage": serve_stage,
    }
    again = "the same command serves it again"
    return program(lambda: options, actions[what], again)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
