"""What the command line of a coordinator asks for."""

import shlex
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from spheroid_jax.commandline import configured
from spheroid_jax.fields import ConfigError
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.options.coordinator import (
    PROGRAM,
    CoordinatorFlags,
    parse_flags,
)


class CoordinatorOptions(NamedTuple):
    """What the command line asks for.

    Attributes:
      config: of kind ``exchange``; None where the report alone is wanted.
      host: to listen at.
      port: to listen at; 0: any.
      workdir: the run directory.
      context: for https; None: plain http.
      bucket: to work through as well, if any.
      report: when it is drawn: ``end`` (of the run, or when it is stopped), ``only``
        (now, and nothing else is done), ``never``.
      command: what was typed.
    """

    config: ConfigDict | None
    host: str
    port: int
    workdir: Path
    context: ssl.SSLContext | None
    bucket: BlobStore | None
    report: str = "end"
    command: str = ""


def parse(argv: Sequence[str]) -> CoordinatorOptions:
    """Parses the arguments of ``experiments.coordinator``.

    Raises:
      ConfigError: one line that says what is wrong.
    """
    return complete(parse_flags(argv), argv)


def complete(flags: CoordinatorFlags, argv: Sequence[str]) -> CoordinatorOptions:
    """Reads the configuration that the flags name.

    Args:
      flags: what ``argv`` says.
      argv: the arguments.

    Raises:
      ConfigError: one line that says what is wrong.
    """
    config = None
    if flags.config is not None:
        config = configured(flags.config, flags.overrides)
        if config.kind != "exchange":
            raise ConfigError(
                f"{config.name} is of kind {config.kind}, which needs no coordinator: "
                "use python -m experiments.run, or --config=configs/wan.py here"
            )
    return CoordinatorOptions(
        config,
        flags.host,
        flags.port,
        flags.workdir,
        flags.context,
        flags.bucket,
        flags.report,
        shlex.join([*PROGRAM.split(), *argv]),
    )
