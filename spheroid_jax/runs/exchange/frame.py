"""The frame of both programs: one line for a failure, the way back after a stop."""

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from spheroid_jax.fields import ConfigError
from spheroid_jax.runs.session import explained
from spheroid_jax.transport.ledger import LedgerError
from spheroid_jax.transport.link import LinkError

Options = TypeVar("Options")


def program(
    argv: Sequence[str],
    parse: Callable[[Sequence[str]], Options],
    action: Callable[[Options], str],
    again: str,
) -> int:
    """Runs ``action`` on what ``argv`` says; returns the exit status.

    Zero at the end of the run, 2 for a wrong command line, 1 for a failure that is
    explained in one line, 130 for a stop: ``again`` is said then.
    """
    try:
        options = parse(argv)
    except ConfigError as error:
        print("error:", *str(error).split(), file=sys.stderr)
        return 2
    try:
        ended = action(options)
    except (LinkError, LedgerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        ended = "interrupted"
    except Exception as error:
        line = explained(error)
        if not line:
            raise
        print(f"error: {line}", file=sys.stderr)
        return 1
    if ended == "finished":
        return 0
    print(f"stopped; {again}", file=sys.stderr)
    return 130
