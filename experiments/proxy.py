"""A slow or lossy link between two programs, on any machine and without any rights.

python -m experiments.proxy --listen=127.0.0.1:9000 --to=127.0.0.1:8470
    [--delay=0.04] [--jitter=0.005] [--rate=20Mbit] [--loss=0.01] [--seed=0]

Who connects to the first address reaches the second. Both directions are shaped alike;
spheroid_jax/transport/shaping/link.py says what is modelled.
"""

import argparse
import asyncio
import contextlib
import math
import re
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from spheroid_jax.transport.shaping import Proxy, Shape, shaped

_UNITS = {"": 1.0, "bit": 1 / 8, "B": 1.0}
_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_RATE = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kMG]?)(bit|B|)(?:/s)?", re.ASCII)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        print("error:", *message.split(), file=sys.stderr)
        raise SystemExit(2)


def rate(text: str) -> float:
    """Bytes per second of a rate such as ``20Mbit``, ``2.5MB`` or ``inf``.

    >>> rate("20Mbit"), rate("64kB/s"), rate("inf")
    (2500000.0, 64000.0, inf)
    """
    if text == "inf":
        return math.inf
    found = _RATE.fullmatch(text)
    try:
        if found:
            number, scale, unit = found.groups()
            return float(number) * _SCALES[scale] * _UNITS[unit]
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is no rate; write 20Mbit or 2.5MB")


def address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``; IPv6 hosts stand in brackets.

    >>> address("[::1]:80")
    ('::1', 80)
    """
    host, _, port = text.rpartition(":")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no address; write HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _options(argv: Sequence[str]) -> tuple[argparse.Namespace, Shape]:
    first, _, rest = (__doc__ or "").partition("\n")
    parser = _Parser(
        "experiments.proxy",
        description=first + rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--listen", type=address, required=True, help="HOST:PORT; port 0: a free one")
    add("--to", type=address, required=True, help="HOST:PORT to connect to")
    add("--delay", type=float, default=0.0, help="seconds, each way")
    add("--jitter", type=float, default=0.0, help="seconds that may be added")
    add("--rate", type=rate, default=math.inf, help="each way, of all connections")
    add("--loss", type=float, default=0.0, help="share of segments, 0 to below 1")
    add("--seed", type=int, default=0, help="of losses and jitter")
    options = parser.parse_args(argv)
    try:
        return options, Shape(options.delay, options.rate, options.loss, options.jitter)
    except ValueError as error:
        parser.error(str(error))


def _totals(proxy: Proxy) -> str:
    counts = proxy.counts
    return (
        f"{counts.connections} connections, {counts.refused} refused, "
        f"{counts.bytes_up} bytes up, {counts.bytes_down} bytes down, "
        f"{counts.lost_segments} segments lost"
    )


async def _serve(options: argparse.Namespace, shape: Shape) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    (host, port), (to, to_port) = options.listen, options.to
    async with shaped(host, port, to, to_port, shape, seed=options.seed) as proxy:
        print(f"listening on {proxy.host}:{proxy.port}", flush=True)
        await ended.wait()
        said = _totals(proxy)
    print(said, flush=True)


def main(argv: Sequence[str]) -> int:
    """Runs the proxy until SIGTERM or Ctrl-C; returns the exit status."""
    options, shape = _options(argv)
    try:
        asyncio.run(_serve(options, shape))
    except OSError as error:
        host, port = options.listen
        why = error.strerror or str(error)
        print(f"error: can't listen on {host}:{port}: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main(sys.argv[1:]))
