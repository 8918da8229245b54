"""The rights that ``docs/bucket.md`` gives are enough, and no more than that."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.errors import BucketError
from spheroid_jax.transport.bucket.store import BlobStore

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[3] / "docs" / "bucket.md"
WHO = ("coordinator", "ann")
OWN = {layout.hello("ann"), layout.pulse("ann"), layout.update("3-0-ann-1")}
OWN |= {layout.update_data("3-0-ann-1", 0, 0)}
OTHERS = {layout.hello("bob"), layout.update_data("3-0-bob-1", 0, 0)}
TOLD = {layout.RUN, layout.answer("ann"), layout.verdict("3-0-ann-1")}
TOLD |= {layout.item_index("ab"), layout.item_data("ab", 0), layout.item_step("ab", 0)}
HIDDEN = {layout.answer("bob")}


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[str, dict[str, tuple[str, str]]]]:
    """A store that checks signatures and policies, and the keys of two users."""
    pytest.importorskip("moto.server", reason="pip install 'moto[s3,server]'")
    boto3 = pytest.importorskip("boto3")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    setting_up = 1 + 3 * len(WHO)  # requests before any are refused
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)],
        env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": str(setting_up)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _until_there(f"{url}/moto-api/")
        given: dict[str, Any] = {
            "endpoint_url": url,
            "region_name": "us-east-1",
            "aws_access_key_id": "x",
            "aws_secret_access_key": "x",
        }
        boto3.client("s3", **given).create_bucket(Bucket="models")
        iam = boto3.client("iam", **given)
        policies = re.findall(r"^```json\n(.*?)^```", PAGE.read_text(), re.S | re.M)
        keys = {}
        for who, policy in zip(WHO, policies, strict=True):
            json.loads(policy)
            iam.create_user(UserName=who)
            iam.put_user_policy(UserName=who, PolicyName="p", PolicyDocument=policy)
            key = iam.create_access_key(UserName=who)["AccessKey"]
            keys[who] = key["AccessKeyId"], key["SecretAccessKey"]
        yield url, keys
    finally:
        server.kill()
        server.wait()


def _until_there(url: str) -> None:
    ends = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.2)


def _may(what: Any) -> bool:
    try:
        asyncio.run(asyncio.wait_for(what, 60))
    except BucketError as error:
        if error.code != "forbidden":
            raise
        return False
    return True


def test_each_may_do_its_own(
    guarded: tuple[str, dict[str, tuple[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, keys = guarded

    def store(who: str, prefix: str = "first-run") -> BlobStore:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys[who][0])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys[who][1])
        return BlobStore(f"s3://models/{prefix}?endpoint={url}")

    everything = sorted(OWN | OTHERS | TOLD | HIDDEN)
    front = store("coordinator")
    assert _may(front.check())
    for key in everything:
        assert _may(front.put(key, b"x"))
        assert _may(front.read(key))
    assert _may(front.delete(everything[0]))
    assert _may(front.read(everything[0]))  # of what isn't there
    assert not _may(store("coordinator", "second-run").put("run.json", b"x"))

    ann = store("ann")
    assert _may(ann.check())
    assert {key for key in everything if _may(ann.put(key, b"x"))} == OWN
    assert {key for key in everything if _may(ann.get(key, 0, 1))} == TOLD
    assert not any(_may(ann.delete(key)) for key in everything)
