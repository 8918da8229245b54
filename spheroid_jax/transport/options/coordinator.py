"""What the command line of a coordinator asks for, but for its configuration."""

import argparse
import difflib
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from spheroid_jax.config_files import no_file
from spheroid_jax.fields import ConfigError
from spheroid_jax.parser import Parser
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.http.tls import is_loopback
from spheroid_jax.transport.options.certificate import server_context

PROGRAM = "python -m experiments.coordinator"
REPORT = ("end", "only", "never")
_FLAGS = (
    *("--workdir", "--listen", "--certificate", "--key", "--insecure"),
    *("--bucket", "--report"),
)


class CoordinatorFlags(NamedTuple):
    """What the flags say.

    Attributes:
      config: ``FILE[:SIZE]``; None where the report alone is wanted.
      overrides: arguments of the configuration.
      host: to listen at.
      port: to listen at; 0: any.
      workdir: the run directory.
      context: for https; None: plain http.
      bucket: to work through as well, if any.
      report: one of ``REPORT``.
    """

    config: str | None
    overrides: Sequence[str]
    host: str
    port: int
    workdir: Path
    context: ssl.SSLContext | None
    bucket: BlobStore | None
    report: str


def parse_flags(argv: Sequence[str]) -> CoordinatorFlags:
    """Parses the arguments of ``experiments.coordinator``; no configuration is read.

    Raises:
      ConfigError: one line that says what is wrong.
    """
    options, rest = _parser().parse_known_args(argv)
    workdir = Path(options.workdir or "")
    if not options.workdir:
        raise ConfigError("--workdir=DIR is missing: name the run directory")
    if options.report == "only":
        if options.config or rest:
            raise ConfigError(
                f"--report=only takes the configuration from {workdir}: leave "
                f"{rest[0] if rest else '--config'} out"
            )
        return CoordinatorFlags(None, (), "", 0, workdir, None, None, options.report)
    if not options.config:
        raise ConfigError("--config is missing: add --config=configs/wan.py")
    _check_config(options.config, rest)
    host, port = _address(options.listen)
    context = _context(options, host)
    bucket = open_bucket(options.bucket) if options.bucket else None
    return CoordinatorFlags(
        options.config, rest, host, port, workdir, context, bucket, options.report
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


def _check_config(spec: str, rest: Sequence[str]) -> None:
    """Whether they may be a configuration; what is in it is looked at later."""
    path = Path(spec.partition(":")[0])
    if not path.is_file():
        raise ConfigError(no_file(path))
    for argument in rest:
        flag = argument.partition("=")[0]
        near = difflib.get_close_matches(flag, _FLAGS, n=1, cutoff=0.8)
        if near:  # else it may be a field's name, which takes longer to tell
            raise ConfigError(f"there is no option {flag}: did you mean {near[0]}?")


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


def _parser() -> Parser:
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
    return parser
