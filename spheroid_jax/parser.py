"""The parser of every program's command line; imports nothing that takes long."""

import argparse
from typing import NoReturn

from spheroid_jax.fields import ConfigError


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours, one line without the usage."""

    def error(self, message: str) -> NoReturn:
        """Raises a ConfigError in place of an exit."""
        raise ConfigError(f"{message} (--help explains)")
