"""docs/serving.md knows what crosses."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np

from spheroid_jax.serving.wire import Limits
from spheroid_jax.serving.wire.frames import HEAD_BYTES, MAGIC, VERSION
from spheroid_jax.serving.wire.messages import (
    FailureKind,
    Message,
    Pong,
    Result,
    StageSeconds,
    Sweep,
)
from tests.serving.wire.hosts import framed

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
SECTION = PAGE.split("## Between hosts")[1].split("\n## ")[0]


def test_every_message_and_every_failure_is_named():
    tags = {kind.__struct_config__.tag for kind in get_args(Message)}
    assert {tag for tag in tags if f"`{tag}`" not in SECTION} == set()
    kinds = set(get_args(FailureKind))
    assert set(re.findall(r"^\| `(\w+)` \| [^|]+ \|$", SECTION, re.M)) == kinds


def test_every_field_of_a_sweep_and_of_a_pong_is_named():
    for kind in (Sweep, Pong):
        fields = msgspec.structs.fields(kind)
        assert {f.name for f in fields if f"`{f.name}`" not in SECTION} == set()


def test_the_numbers_are_right():
    limits = Limits()
    for text in (
        f"magic, {MAGIC.hex(' ')}",
        f"version, {VERSION}",
        f"head of {HEAD_BYTES} bytes",
        f"1 to {limits.sizes.header}",
        f"at most {limits.sizes.payload >> 20} MiB",
        f"{limits.handshake_seconds:g} s for the handshake; {limits.strangers} at once",
        f"at once, {limits.strangers_each} from one address",
        f"within {limits.frame_seconds:g} s, or go on at {limits.rate / 1024:g} KiB/s",
        f"cut after {limits.send_seconds:g} s",
        f"{limits.connections} at once",
    ):
        assert text in SECTION, text
    seconds = (StageSeconds(0.1, 0.2),) * 3
    result = framed(
        Result(b"r" * 16, 1, 0, 2, seconds), {"bytes": np.zeros(64, np.uint8)}
    )
    assert f"is {len(result)} bytes" in SECTION
