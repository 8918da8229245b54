"""Lets workers into a run, and out: makes, revokes and lists their tokens.

python -m experiments.tokens --workdir=DIR --add=NAME [--replace] > NAME.token
python -m experiments.tokens --workdir=DIR --revoke=NAME
python -m experiments.tokens --workdir=DIR --list

Works before a coordinator ever ran in DIR, and while one does. A token is shown once,
alone on stdout; the run keeps its SHA-256 only.
"""

import argparse
import datetime
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from spheroid_jax.fields import ConfigError
from spheroid_jax.parser import Parser, mistake
from spheroid_jax.transport.ledger import Ledger, LedgerError
from spheroid_jax.transport.protocol import NAME
from spheroid_jax.transport.tokens import LEDGER, mint


def main(argv: Sequence[str]) -> int:
    """Does what the arguments say; returns the exit status, 2 after a mistake."""
    try:
        _run(_options(argv))
        sys.stdout.flush()
    except (ConfigError, LedgerError) as error:
        return mistake(error)
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m experiments.tokens",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s --workdir=DIR "
        "(--add=NAME [--replace] | --revoke=NAME | --list)",
        allow_abbrev=False,
    )
    parser.add_argument("--workdir", metavar="DIR", help="run directory")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--add", metavar="NAME", help="make a token for a worker")
    what.add_argument("--revoke", metavar="NAME", help="shut its token out")
    what.add_argument("--list", action="store_true", help="who has a token")
    parser.add_argument(
        "--replace", action="store_true", help="with --add: shut its old token out"
    )
    options = parser.parse_args(argv)
    if not options.workdir:
        raise ConfigError("--workdir=DIR is missing: name the run directory")
    if options.add is None and options.revoke is None and not options.list:
        raise ConfigError("nothing to do: add --add=NAME, --revoke=NAME or --list")
    if options.replace and options.add is None:
        raise ConfigError("--replace goes with --add=NAME only: leave it out")
    for flag in ("add", "revoke"):
        name = getattr(options, flag)
        if name is not None and not re.match(NAME, name):
            raise ConfigError(
                f"--{flag}={name!r} is no name: 1 to 64 letters, digits, and _.- "
                "after the first"
            )
    return options


def _run(options: argparse.Namespace) -> None:
    path = Path(options.workdir) / LEDGER
    if options.add is None and not path.exists():
        raise ConfigError(
            f"{options.workdir} has no tokens: check --workdir, or use --add=NAME"
        )
    new = not path.exists()
    with Ledger.open(path) as ledger:
        if new:
            print(f"{path} is new", file=sys.stderr)
        if options.add is not None:
            _add(ledger, options.add, options.replace)
        elif options.revoke is not None:
            _revoke(ledger, options.revoke)
        else:
            _list(ledger)


def _add(ledger: Ledger, name: str, replace: bool) -> None:
    row = ledger.tokens().get(name)
    if row is not None and row.revoked is None and not replace:
        raise ConfigError(
            f"{name} has a token: --revoke={name} first, or add --replace to shut the "
            "old one out"
        )
    token, sha256 = mint()
    ledger.add_token(name, sha256, replace=replace)
    try:
        print(token, flush=True)
    except OSError as error:
        raise ConfigError(
            f"the token of {name} couldn't be written out ({error.strerror}): make "
            "another with --replace"
        ) from error
    print(f"{name} may work now; this token is shown once", file=sys.stderr)


def _revoke(ledger: Ledger, name: str) -> None:
    if name not in ledger.tokens():
        raise ConfigError(f"{name} has no token to revoke: --list shows who has")
    changed = ledger.revoke(name)
    said = "is shut out within a second" if changed else "was shut out before"
    print(f"{name} {said}", file=sys.stderr)


def _list(ledger: Ledger) -> None:
    rows = [("name", "added", "revoked")]
    for name, row in ledger.tokens().items():
        rows.append((name, _time(row.added), _time(row.revoked)))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for cells in rows:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print("  ".join(padded).rstrip())


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%SZ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
