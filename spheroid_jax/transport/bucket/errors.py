"""What goes wrong with a bucket, in one line each."""

import re

from spheroid_jax.transport.bucket.address import Address


class BucketError(RuntimeError):
    """An operation on a bucket that failed; one line with the cure.

    Attributes:
      code: ``unreachable`` (worth another try), ``forbidden``, ``missing`` (the
        bucket, or it is elsewhere), ``credentials``, ``short`` (an object ends early),
        ``too_large``, ``taken`` (the prefix is another run's), ``failed``
        (anything else; worth another try).
    """

    def __init__(self, message: str, *, code: str):
        super().__init__(message)
        self.code = code

    @property
    def passing(self) -> bool:
        """Whether the same may work later."""
        return self.code in ("unreachable", "failed")


class TooLarge(BucketError):
    """An object is larger than it may be."""

    def __init__(self, message: str):
        super().__init__(message, code="too_large")


_CAUSES = (  # in TensorStore's words; what to say; code
    (r"OUT_OF_RANGE", "it ends early", "short"),
    (
        r"NoSuchBucket",
        "there is no such bucket at {endpoint}; create it, or correct the address",
        "missing",
    ),
    (
        r"get credentials|create credentials|AWS_AUTH_CREDENTIALS",
        "no credentials are found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
        "or AWS_PROFILE",
        "credentials",
    ),
    (
        r"ExpiredToken|TokenRefreshRequired",
        "the credentials have expired; renew them",
        "credentials",
    ),
    (
        r"RequestTimeTooSkewed",
        "{endpoint} has another time than this machine; set the clock, or have NTP do "
        "it",
        "forbidden",
    ),
    (
        r"PermanentRedirect|AuthorizationHeaderMalformed",
        "the bucket is in another region ({said}); add ?region=NAME to its address",
        "missing",
    ),
    (
        r"http_response_code='507'|QuotaExceeded|StorageFull|os_error_code='(28|122)'",
        "there is no room left; delete something there",
        "failed",
    ),
    (
        r"os_error_code='30'",
        "that file system is read-only; mount it to be written to",
        "forbidden",
    ),
    (
        r"PERMISSION_DENIED|UNAUTHENTICATED|http_response_code='40[13]'|os_error_code="
        r"'13'",
        "{endpoint} refuses it; check the credentials and what they may do under this "
        "prefix",
        "forbidden",
    ),
    (
        r"Could not connect|Could not resolve|Timeout was reached|Empty reply|SSL|"
        r"certificate|Failure when receiving|Failed sending",
        "{endpoint} can't be reached ({said})",
        "unreachable",
    ),
    (
        r"Malformed List response|etag not found",
        "what answers at {endpoint} is no object store; correct the endpoint",
        "missing",
    ),
    (
        r"http_response_code='(5\d\d|429)'|RequestTimeout:",
        "{endpoint} is busy ({said})",
        "unreachable",
    ),
)


def explain(what: str, key: str, address: Address, said: str) -> BucketError:
    """The error for TensorStore's message ``said``."""
    where = f"can't {what} {address.url}{key}"
    plain = re.sub(r"\s*\[(?:[\w-]+=.*)", "", " ".join(said.split()))
    plain = re.sub(r"^\w+: (All \d+ retry attempts failed: )?", "", plain)[:160]
    for pattern, text, code in _CAUSES:
        if re.search(pattern, said):
            cause = text.format(endpoint=address.endpoint, said=plain)
            return BucketError(f"{where}: {cause}", code=code)
    return BucketError(f"{where}: {plain}", code="failed")
