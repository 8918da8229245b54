"""What the page on the protocol says of limits is what they are."""

from pathlib import Path

from spheroid_jax.transport.http.limits import Limits

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
SECTION = PAGE.partition("\n## Limits\n")[2].partition("\n## ")[0]


def test_the_numbers_are_right() -> None:
    limits = Limits()
    assert limits.strangers * 4 == limits.connections
    for text in (
        f"connections | {limits.connections} at once",
        f"in all, {limits.connections_each} for each token",
        f"in all, {limits.strangers_each} from each address",
        f"has {limits.new_seconds:g} s to show a token",
        f"head of a request | {limits.stranger_seconds:g} s",
        f"{limits.message_seconds:g} s for TLS before the first",
        f"else {limits.keepalive:g} s",
        f"one token | {limits.asks.each_second:g} a second, {limits.asks.burst} at",
        f"valid one | {limits.stranger_asks.each_second:g} a second",
        f"each address, {limits.stranger_asks.burst} at once",
        f"{limits.requests} requests, of which {limits.transfers} uploads and "
        f"{limits.transfers} downloads",
        f"a JSON body | {limits.message >> 20} MiB, {limits.message_seconds:g} s",
        f"no {limits.idle:g} s",
        f"{limits.rate / 1024:g} KiB/s",
    ):
        assert text in SECTION, text
    assert limits.window == 60
    assert limits.hold == 1
