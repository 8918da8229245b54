"""The certificate that a command line names, for programs that listen."""

import argparse
import ssl
from pathlib import Path

from spheroid_jax.fields import ConfigError
from spheroid_jax.transport.http.server import tls_context


def server_context(options: argparse.Namespace) -> ssl.SSLContext | None:
    """TLS with what ``--certificate`` and ``--key`` name; None where neither does.

    Raises:
      ConfigError: one of them is missing, or can't be used.
    """
    if bool(options.certificate) != bool(options.key):
        raise ConfigError("--certificate and --key go together: give both")
    if not options.certificate:
        return None
    try:
        return tls_context(Path(options.certificate), Path(options.key))
    except ValueError as error:
        raise ConfigError(str(error)) from error
