"""The parser of every program's command line; imports nothing that takes long."""

import argparse
import sys
from typing import NoReturn

from spheroid_jax.fields import ConfigError


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours, one line without the usage."""

    def error(self, message: str) -> NoReturn:
        """Raises a ConfigError in place of an exit."""
        raise ConfigError(f"{message} (--help explains)")


def mistake(error: Exception, status: int = 2) -> int:
    """Says on stderr what is wrong, in one line; returns the exit status."""
    # A value may hold line ends; the message is one line all the same.
    print("error:", *str(error).split(), file=sys.stderr)
    return status
