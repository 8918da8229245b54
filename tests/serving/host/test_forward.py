"""The way to the next stages: dialled once, given up in time, tried again."""

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from spheroid_jax.serving.host.forward import Forwarder, NoWay
from spheroid_jax.serving.wire.messages import Message, Ping

from .toys import looped


class _Link:
    def __init__(self) -> None:
        self.facts: dict[str, Any] = {"index": 1}
        self.closed = False
        self.got: list[Message] = []
        self.fails: Exception | None = None

    async def send(
        self, message: Message, arrays: Mapping[str, np.ndarray] | None = None
    ) -> None:
        if self.fails is not None:
            raise self.fails
        self.got.append(message)

    async def close(self) -> None:
        self.closed = True


class _Net:
    """Where dialling leads."""

    def __init__(self) -> None:
        self.links: list[_Link] = []
        self.dialled: list[str] = []
        self.slow = 0.0
        self.fails: Exception | None = None

    async def dial(self, address: str) -> _Link:
        self.dialled.append(address)
        await asyncio.sleep(self.slow)
        if self.fails is not None:
            raise self.fails
        self.links.append(_Link())
        return self.links[-1]

    def forwarder(self, connect: float = 1.0, backoff: float = 0.05) -> Forwarder:
        return Forwarder(self.dial, {"index": 1}, connect=connect, backoff=backoff)


@looped
async def test_many_share_one_connection() -> None:
    net = _Net()
    net.slow = 0.02
    way = net.forwarder()
    await asyncio.gather(*(way.send("a:1", Ping(n), {}) for n in range(20)))
    assert net.dialled == ["a:1"]
    assert {m.number for m in net.links[0].got if isinstance(m, Ping)} == set(range(20))
    await way.close()
    assert net.links[0].closed


@looped
async def test_a_dial_that_hangs_is_given_up_in_time() -> None:
    net = _Net()
    net.slow = 30.0
    with pytest.raises(NoWay, match="a:1, can't be reached: no answer") as caught:
        await net.forwarder(connect=0.05).send("a:1", Ping(0), {})
    assert caught.value.kind == "peer"


@looped
async def test_one_that_cannot_be_reached_is_left_alone_for_a_while() -> None:
    net = _Net()
    net.fails = ConnectionRefusedError("refused")
    way = net.forwarder(backoff=0.1)
    for _ in range(5):
        with pytest.raises(NoWay, match="refused"):
            await way.send("a:1", Ping(0), {})
    assert net.dialled == ["a:1"]
    await asyncio.sleep(0.11)
    net.fails = None
    await way.send("a:1", Ping(0), {})
    assert len(net.dialled) == 2


@looped
async def test_who_is_cancelled_leaves_the_connection_to_the_others() -> None:
    net = _Net()
    net.slow = 0.05
    way = net.forwarder()
    first = asyncio.create_task(way.send("a:1", Ping(1), {}))
    second = asyncio.create_task(way.send("a:1", Ping(2), {}))
    await asyncio.sleep(0.01)
    first.cancel()
    await second
    assert net.dialled == ["a:1"]
    assert net.links[0].got == [Ping(2)]


@looped
async def test_a_new_connection_that_fails_is_not_tried_for_ever() -> None:
    net = _Net()
    way = net.forwarder()
    await way.send("a:1", Ping(0), {})
    net.links[0].fails = ConnectionResetError("reset")
    net.links[0].closed = True
    net.fails = ConnectionRefusedError("refused")
    with pytest.raises(NoWay, match="refused"):
        await way.send("a:1", Ping(1), {})
    assert len(net.dialled) == 2


@looped
async def test_a_message_that_cannot_be_sent_is_refused() -> None:
    net = _Net()
    way = net.forwarder()
    await way.send("a:1", Ping(0), {})
    net.links[0].fails = ValueError("too large")
    with pytest.raises(NoWay, match="too large") as caught:
        await way.send("a:1", Ping(1), {})
    assert caught.value.kind == "refused"
    assert not net.links[0].closed


@looped
async def test_addresses_are_not_remembered_without_end() -> None:
    net = _Net()
    way = net.forwarder()
    for n in range(200):
        await way.send(f"a:{n}", Ping(0), {})
    assert sum(not link.closed for link in net.links) <= 65
    await way.close()
    assert all(link.closed for link in net.links)


@looped
async def test_who_isnt_allowed_isnt_dialled() -> None:
    net = _Net()
    way = Forwarder(
        net.dial, {"index": 1}, connect=1.0, backoff=0.05, allow={"a:1"}.__contains__
    )
    await way.send("a:1", Ping(1), {})
    with pytest.raises(NoWay, match="b:22, isn't among the --peers") as failure:
        await way.send("b:22", Ping(2), {})
    assert failure.value.kind == "refused"
    assert net.dialled == ["a:1"]
    await way.close()
