"""Who is trusted, and who one is: addresses, certificates, tokens; the worker's side.

A token opens the coordinator, so it goes to nobody else: not over plain HTTP to
another machine, not after a redirect, not into messages.
"""

import ipaddress
import logging
import re
import ssl
import stat
from pathlib import Path

from yarl import URL

_log = logging.getLogger(__name__)
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,512}=*", re.ASCII)  # RFC 6750, section 2.1
_FILE_LIMIT = 4096  # bytes
_OTHER_NAME = (62, 64)  # OpenSSL: X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH


class Token:
    """A bearer token that doesn't show: ``reveal`` gives it.

    Attributes:
      told: what it is called in messages: where it is from.
    """

    __slots__ = ("_secret", "told")

    def __init__(self, secret: str, told: str = "the token of this worker") -> None:
        """Raises ValueError, without the token, if it can't be one."""
        if not _TOKEN.fullmatch(secret):
            raise ValueError(
                "a token is 16 to 512 letters, digits and -._~+/ with = at the end, "
                "this one isn't; ask who runs the coordinator for another"
            )
        self._secret, self.told = secret, told

    def reveal(self) -> str:
        """The token itself."""
        return self._secret

    def redacted(self, text: str) -> str:
        """A text without the token."""
        return text.replace(self._secret, "(token)")

    def __repr__(self) -> str:
        return "Token(...)"

    def __reduce__(self) -> str:
        raise TypeError("a token isn't pickled")


def read_token(path: Path) -> Token:
    """Reads the token in a file: its only line.

    Raises:
      ValueError: The file can't be read, is empty, or holds something else.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            content = file.read(_FILE_LIMIT + 1)
    except OSError as error:
        raise ValueError(
            f"token file {path} can't be read ({error.strerror}); give the file that "
            "holds the token"
        ) from None
    lines = content.decode("ascii", "replace").split("\n")
    lines = [line.strip() for line in lines if line.strip()]
    if not lines:
        raise ValueError(f"token file {path} is empty; put the token into it")
    if len(lines) > 1 or len(content) > _FILE_LIMIT:
        raise ValueError(
            f"token file {path} has more than one line; leave the token alone in it"
        )
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        _log.warning("token file %s can be read by others; chmod 600 %s", path, path)
    try:
        return Token(lines[0], f"the token in {path}")
    except ValueError as error:
        raise ValueError(f"token file {path}: {error}") from None


def address(url: str, *, insecure: bool = False) -> URL:
    """The address of a coordinator, checked; without a slash at its end.

    Args:
      url: Such as ``https://host:8470``; a path before ours is fine.
      insecure: Allow ``http://`` to other machines.

    Raises:
      ValueError: It isn't an address, or the token would go over the net in clear.
    """
    try:
        parsed = URL(url)
        host, port = parsed.host, parsed.port
    except ValueError:
        parsed, host, port = URL(), None, None
    scheme = parsed.scheme
    if not host or not port or scheme not in ("http", "https"):
        raise ValueError(
            f"coordinator's address must be like https://host:8470, not {_shown(url)}"
        )
    if parsed.user or parsed.password or parsed.query_string or parsed.fragment:
        raise ValueError(
            "coordinator's address must have no user, password, query or fragment; "
            f"give {parsed.origin()} and the token in a file"
        )
    if scheme == "http" and not insecure and not is_loopback(host):
        raise ValueError(
            f"http://{parsed.host_port_subcomponent} would send token and model over "
            "the net in clear; use https://, or --insecure in a net you trust"
        )
    return parsed.with_path(parsed.raw_path.rstrip("/"), encoded=True)


def client_context(ca: Path | None) -> ssl.SSLContext:
    """A context that trusts the certificates in ``ca``; without one, the system's.

    Raises:
      ValueError: The file can't be read, or holds no certificate.
    """
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except ssl.SSLError:
        why = "holds no certificate in PEM form"
    except OSError as error:
        why = f"can't be read ({error.strerror})"
    raise ValueError(
        f"--ca={ca} {why}; give the certificate of the coordinator, or of who signed it"
    )


def is_for_another_name(error: Exception | None) -> bool:
    """Whether a certificate is trusted, but is one of another name or address."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return False
    return error.verify_code in _OTHER_NAME


def another_name(where: str) -> str:
    """What to say of such a certificate: the cause and the cure.

    Args:
      where: it was shown, as ``HOST:PORT``.
    """
    return (
        f"the certificate of {where} isn't for that name: call it by a name that is "
        "in the certificate, or make one for this name"
    )


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own, by its looks."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _shown(url: str) -> str:
    """An address in a message: no password, one short line."""
    return repr(re.sub(r"//[^/@]*@", "//...@", url)[:100])
