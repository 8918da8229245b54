"""The address of a bucket: ``s3://bucket/prefix``, ``gs://bucket/prefix``, a folder.

Credentials come from where the store's own tools look for them, never from the
address: addresses end up in logs, shell histories and process lists.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

ATTEMPTS = 4  # of one request, seconds apart
AT_ONCE = 8  # requests of one store
_OPTIONS = {"s3": ("endpoint", "region"), "gs": (), "file": (), "memory": ()}


class Address(NamedTuple):
    """Where a store is, and how TensorStore is told."""

    url: str  # without options; safe to print
    endpoint: str  # what a reader of an error needs: which server it is
    spec: dict[str, Any]


def parse(url: str, environment: Mapping[str, str] = os.environ) -> Address:
    """Reads an address.

    Args:
      url: ``s3://bucket/prefix?endpoint=http://host:9000&region=eu-central-1``, both
        options optional; ``gs://bucket/prefix``; ``file:///folder``;
        ``memory://name``, which is of one process and ends with it.
      environment: gives endpoint (``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``) and
        region (``AWS_REGION``, ``AWS_DEFAULT_REGION``) where the address doesn't.

    Raises:
      ValueError: it is no such address, or it holds credentials; one line.
    """
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)
    except ValueError:
        raise _bad(url, "it can't be taken apart, see what follows its ?") from None
    kind = parts.scheme
    if kind not in _OPTIONS:
        raise _bad(url, "it must begin with s3://, gs:// or file:///")
    if "@" in parts.netloc:
        raise ValueError(
            f"credentials don't belong in the address of a bucket ({kind}://...@...); "
            + _CURE[kind]
        )
    for name, _ in options:
        if name not in _OPTIONS[kind]:
            known = " and ".join(_OPTIONS[kind]) or "no options"
            raise ValueError(
                f"{kind}:// addresses know {known}, not {name!r:.40}; if that is a "
                f"credential, it doesn't belong there; {_CURE[kind]}"
            )
    if parts.fragment:
        raise _bad(url, "what follows # means nothing")
    path = unquote(parts.path).strip("/")
    prefix = f"{path}/" if path else ""
    if any(part in ("", ".", "..") for part in path.split("/") if path):
        raise _bad(url, "its path has an empty or a dotted part")
    if kind in ("file", "memory"):
        return _local(url, kind, parts.netloc, prefix)
    if not parts.netloc:
        raise _bad(url, "it names no bucket")
    plain = f"{kind}://{parts.netloc}/{prefix}"
    place = {"bucket": parts.netloc, "path": prefix}
    if kind == "gs":
        endpoint = environment.get("TENSORSTORE_GCS_HTTP_URL", "storage.googleapis.com")
        return Address(plain, endpoint, {"driver": "gcs", **place, **_requests("gcs")})
    return _s3(plain, place, dict(options), environment)


def _s3(
    plain: str,
    place: dict[str, str],
    options: Mapping[str, str],
    environment: Mapping[str, str],
) -> Address:
    def first(*names: str) -> str:
        return next((environment[n] for n in names if environment.get(n)), "")

    endpoint = options.get("endpoint") or first(
        "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"
    )
    region = options.get("region") or first("AWS_REGION", "AWS_DEFAULT_REGION")
    # The default chain asks the metadata service of a cloud's machine as well, which
    # takes seconds elsewhere.
    source = "environment" if environment.get("AWS_ACCESS_KEY_ID") else "default"
    spec: dict[str, Any] = {
        "driver": "s3",
        **place,
        **_requests("s3"),
        "aws_credentials": {"type": source},
    }
    if endpoint:
        there = urlsplit(endpoint)
        if there.scheme not in ("http", "https") or not there.hostname:
            raise ValueError("the endpoint of a bucket must be http(s)://host:port")
        if "@" in there.netloc:
            raise ValueError("credentials don't belong in the endpoint; " + _CURE["s3"])
        spec["endpoint"] = endpoint.rstrip("/")
        spec["aws_region"] = region or "us-east-1"
    elif region:
        spec["aws_region"] = region
    return Address(plain, endpoint or "amazonaws.com", spec)


def _local(url: str, kind: str, host: str, prefix: str) -> Address:
    if kind == "memory":
        path = f"{host}/{prefix}" if host else prefix
        return Address(f"memory://{path}", "memory", {"driver": kind, "path": path})
    if host not in ("", "localhost") or not prefix:
        raise _bad(url, "a folder is file:///its/absolute/path")
    # A temporary file beside the object, of a name of its own, then a rename. With
    # locks, TensorStore's default, a killed writer's file is taken up by the next one
    # and not cut, so the object may end in the old one's bytes; and NFS needn't lock.
    spec = {
        "driver": "file",
        "path": f"/{prefix}",
        "file_io_sync": True,
        "file_io_locking": {"mode": "none"},
    }
    return Address(f"file:///{prefix}", "this machine", spec)


def _requests(driver: str) -> dict[str, Any]:
    """Few attempts, soon: by default TensorStore tries for a quarter of an hour."""
    return {
        f"{driver}_request_retries": {
            "max_retries": ATTEMPTS - 1,
            "initial_delay": "200ms",
            "max_delay": "2s",
        },
        f"{driver}_request_concurrency": {"limit": AT_ONCE},
    }


def _bad(url: str, why: str) -> ValueError:
    shown = url.partition("?")[0].rpartition("@")[2]
    return ValueError(f"{shown!r:.200} isn't the address of a bucket: {why}")


_CURE = {
    "s3": "use AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "use GOOGLE_APPLICATION_CREDENTIALS=FILE, or gcloud's own login",
    "file": "a folder needs none",
    "memory": "memory needs none",
}
