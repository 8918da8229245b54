"""Whom a stage may dial."""

import pytest

from spheroid_jax.serving.wire.peers import Peers


@pytest.mark.parametrize(
    ("allowed", "address", "may"),
    [
        ("b:8480", "b:8480", True),
        ("b:8480", "B.:8480", True),  # the same name
        ("b:8480", "b:22", False),
        ("b", "b:22", True),
        ("b", "bb:22", False),
        ("b", "a.b:22", False),
        ("10.0.0.2", "10.0.0.2:1", True),
        ("10.0.0.2", "10.0.0.20:1", False),
        ("127.0.0.1", "localhost:1", False),  # names aren't looked up
        ("[2001:db8::1]:8480", "[2001:0db8:0::1]:8480", True),
        ("[2001:db8::1]", "[2001:db8::1]:9", True),
        ("[2001:db8::1]:8480", "[2001:db8::2]:8480", False),
        ("b", "b", False),  # no address
        ("b", "", False),
    ],
)
def test_who_is_allowed(allowed: str, address: str, may: bool) -> None:
    assert Peers(["other:1", allowed]).allow(address) is may


def test_nobody_is_allowed_where_nobody_is_named() -> None:
    assert not Peers([]).allow("b:8480")


@pytest.mark.parametrize("wrong", ["", "b:", "b:x", "b:70000", "http://b", "[b", "::1"])
def test_what_is_no_host_is_one_line(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"HOST") as said:
        Peers([wrong])
    assert "\n" not in str(said.value)
