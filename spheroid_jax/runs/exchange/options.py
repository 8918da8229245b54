"""What the command line of a coordinator asks for."""

import argparse
import shlex
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from spheroid_jax.commandline import Parser, configured
from spheroid_jax.fields import ConfigError
from spheroid_jax.runs.certificate import server_context
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.http.tls import is_loopback

PROGRAM = "python -m experiments.coordinator"
REPORT = ("end", "only", "never")


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
    parser = Parser(
        prog=PROGRAM,
        usage="%(prog)s --config=FILE[:SIZE] --workdir=DIR [--listen=HOST:PORT] "
        "[--certificate=PEM --key=PEM | --insecure] [--bucket=URL] "
        "[--report=WHEN] [--config.FIELD=VALUE ...]",
        description="Holds the model of a run and works with whoever has a token. "
        "The same command goes on with a run that was stopped or killed. At the end "
        "report.md, a picture and summary.json are in its run directory.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE[:SIZE]", help="of kind exchange")
    parser.add_argument("--workdir", metavar="DIR", help="run directory")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:8470",
        help="where to listen (%(default)s)",
    )
    parser.add_argument("--certificate", metavar="PEM", help="chain, for https")
    parser.add_argument("--key", metavar="PEM", help="of the certificate")
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="plain http to other machines: behind a proxy that does TLS, or in a net "
        "you trust",
    )
    parser.add_argument(
        "--bucket",
        metavar="URL",
        help="work through a bucket as well: s3://bucket/run (docs/bucket.md)",
    )
    parser.add_argument(
        "--report",
        metavar="WHEN",
        choices=REPORT,
        default="end",
        help="end: as the run ends or is stopped; only: now, from what --workdir "
        "holds, and nothing else is done; never (%(default)s)",
    )
    options, rest = parser.parse_known_args(argv)
    workdir = Path(options.workdir or "")
    if not options.workdir:
        raise ConfigError("--workdir=DIR is missing: name the run directory")
    if options.report == "only":
        if options.config or rest:
            raise ConfigError(
                f"--report=only takes the configuration from {workdir}: leave "
                f"{rest[0] if rest else '--config'} out"
            )
        return CoordinatorOptions(None, "", 0, workdir, None, None, options.report)
    config = configured(options.config, rest)
    if config.kind != "exchange":
        raise ConfigError(
            f"{config.name} is of kind {config.kind}, which needs no coordinator: use "
            "python -m experiments.run, or --config=configs/wan.py here"
        )
    host, port = _address(options.listen)
    context = _context(options, host)
    bucket = open_bucket(options.bucket) if options.bucket else None
    return CoordinatorOptions(
        config,
        host,
        port,
        workdir,
        context,
        bucket,
        options.report,
        shlex.join([*PROGRAM.split(), *argv]),
    )


def open_bucket(url: str) -> BlobStore:
    """The bucket at an address.

    Raises:
      ConfigError: it can't be one.
    """
    try:
        return BlobStore(url)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--listen={text} is no HOST:PORT: write 127.0.0.1:8470")
    return host.strip("[]"), int(port)


def _context(options: argparse.Namespace, host: str) -> ssl.SSLContext | None:
    context = server_context(options)
    if context is None and not options.insecure and not is_loopback(host):
        raise ConfigError(
            f"--listen={options.listen} is open to other machines, and tokens would "
            "go over the net in clear: add --certificate=PEM --key=PEM, or --insecure "
            "behind a proxy that does TLS"
        )
    return context
