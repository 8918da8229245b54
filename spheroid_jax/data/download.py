"""Files over HTTPS: complete or not at all, and a quick look at who answers."""

import http.client
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from spheroid_jax.data.parquet import one_line

_STALL = 20.0  # seconds without a byte after which a mirror counts as gone
_BLOCK = 1 << 20
_REPORT_FROM = 32 * _BLOCK  # bytes from which a download reports its progress


class DownloadError(Exception):
    """A file did not arrive; the message is the reason, in a few words."""


def download(url: str, target: Path) -> None:
    """Writes the bytes behind ``url`` to ``target``.

    Raises:
      DownloadError: no answer, an HTTP error, or fewer bytes than announced.
    """
    try:
        with _open(url, _STALL) as response, target.open("wb") as file:
            announced = int(response.headers.get("Content-Length") or 0)
            received = 0
            while block := response.read(_BLOCK):
                file.write(block)
                _report(target.name, received, received + len(block), announced)
                received += len(block)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DownloadError(_reason(error)) from None
    # http.client returns a short body without complaint when read in blocks.
    if received < announced:
        raise DownloadError(f"cut off after {received} of {announced} bytes")


def unreachable(urls: Mapping[str, str], patience: float) -> dict[str, str]:
    """Asks for all ``urls`` at once and waits ``patience`` seconds at most.

    Args:
      urls: an address by name.
      patience: seconds for all of them together.

    Returns:
      The reason by name, for every address that did not answer with success in time.
    """
    failures = dict.fromkeys(urls, f"no answer within {patience:g} s")

    def ask(name: str, url: str) -> None:
        try:
            with _open(url, patience):
                failures.pop(name)
        except (OSError, http.client.HTTPException, ValueError) as error:
            failures[name] = _reason(error)

    # Daemons, because looking up a name can block for longer than any timeout.
    threads = [
        threading.Thread(target=ask, args=pair, daemon=True) for pair in urls.items()
    ]
    deadline = time.monotonic() + patience
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(failures)


def _open(url: str, timeout: float) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"User-Agent": "spheroid_jax"})
    return urllib.request.urlopen(request, timeout=timeout)


def _reason(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}"
    if isinstance(error, urllib.error.URLError) and isinstance(
        error.reason, BaseException
    ):
        return _reason(error.reason)
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return one_line(error)


def _report(name: str, before: int, after: int, total: int) -> None:
    """Prints a line at every tenth of a large file."""
    if total >= _REPORT_FROM and before * 10 // total < after * 10 // total:
        print(f"  {name}: {after * 100 // total} %", file=sys.stderr, flush=True)
