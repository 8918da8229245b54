"""How a program ends that Ctrl-C may find while it compiles."""

import os
import sys
from typing import NoReturn

STOPPED = 130  # the status after Ctrl-C


def leave(status: int) -> NoReturn:
    """Ends the process with ``status``.

    After Ctrl-C it ends where it stands: JAX's compiler goes on in its threads, and
    they crash while Python takes itself apart, so that a stop would look like a fault.

    Args:
      status: for the shell.
    """
    if status == STOPPED:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                continue  # nobody reads on
        os._exit(status)
    sys.exit(status)
