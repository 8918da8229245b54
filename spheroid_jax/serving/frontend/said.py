"""What is said of a connection that failed: in words, to operators and to clients."""

import os

from spheroid_jax.serving.wire.limits import WireError

# What clients are told of a connection's end, or that there is none.
_TOLD = {
    "unreachable": "it can't be reached",
    "untrusted": "no TLS with a certificate that is trusted",
    "unauthorized": "it doesn't take the token, or hasn't the same",
    "revoked": "the token was revoked",
    "version": "it is of another version",
    "slow": "it is too slow",
    "closed": "it closed the connection",
    "lost": "its connection was lost",
}


def told(error: Exception) -> str:
    """For clients: no addresses."""
    code = error.code if isinstance(error, WireError) else ""
    return _TOLD.get(code, "its connection failed")


def why(error: Exception, address: str) -> str:
    """For operators, after the stage's address, which isn't repeated."""
    if is_rejection(error):
        return f"our token isn't the one of {address}: give both the same --token-file"
    cause = error.__context__
    # Otherwise its text is Python's own, as of a failed call.
    if isinstance(cause, OSError) and cause.errno and _code(error) == "unreachable":
        reason = os.strerror(cause.errno).lower()
        return (
            f"it can't be reached: {reason}; is it running, and is the address right?"
        )
    text = str(error)
    if text.startswith(f"{address} "):
        return f"it {text.removeprefix(address).strip()}"
    if text.startswith(f"the certificate of {address} "):
        return text.replace(f"the certificate of {address}", "its certificate", 1)
    return text.removeprefix(f"{address}: ")


def is_rejection(error: Exception) -> bool:
    """Whether the stage doesn't know our token, or shows that it hasn't the same."""
    return _code(error) == "unauthorized"


def _code(error: Exception) -> str:
    return error.code if isinstance(error, WireError) else ""
