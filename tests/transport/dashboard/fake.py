"""A coordinator that only has a status, and one like that of a run in the middle."""

import asyncio
import contextlib
import copy
import ssl
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from spheroid_jax.transport.dashboard import Viewing, add_dashboard

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><b>A100</b>" + "W" * 200

_USUAL = Viewing()


class FakeCoordinator:
    def __init__(self, status: dict[str, Any]):
        self.facts, self.version = status, 1
        self.asked = 0  # how often status() was called
        self._changed = asyncio.Event()

    def status(self) -> dict[str, Any]:
        self.asked += 1
        return {**copy.deepcopy(self.facts), "version": self.version}

    def change(self, **facts: Any) -> None:
        self.facts.update(facts)
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self, seen: int, wait: float) -> int:
        if self.version <= seen:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()
        return self.version


@contextlib.asynccontextmanager
async def served(
    coordinator: Any,
    viewing: Viewing = _USUAL,
    port: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """The address of a dashboard."""
    app = web.Application()
    add_dashboard(app, coordinator, viewing)
    runner = web.AppRunner(app, shutdown_timeout=5)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
    await site.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await asyncio.wait_for(runner.cleanup(), 10)


def worker(name: str, block: int | None, state: str, **facts: Any) -> dict[str, Any]:
    usual = {
        "replica": 0,
        "seen_seconds": 1.0,
        "accepted": 11,
        "late": 0,
        "rejected": 0,
        "age": 0.0,
        "down": 148_000_000,
        "up": 37_000_000,
        "device": "cpu",
    }
    return {**usual, "name": name, "block": block, "state": state, **facts}


def status() -> dict[str, Any]:
    """Three blocks, two replicas each, twelve rounds of sixteen done."""
    chain = [5.5452, 3.4107, 2.9318, 2.6644, 2.4871, 2.3719, 2.3146]
    ensemble = [5.5452, 3.2981, 2.8405, 2.5712, 2.4013, 2.2894, 2.2367]
    shares = [0.975, 0.85, 0.6]
    return {
        "run": "4f1c9a7712ab4d5e8c00b7d1e2f3a4b5",
        "name": "wan",
        "size": "small",
        "state": "open",
        "why": "waiting for 2 of 6 updates",
        "round": 12,
        "rounds": 16,
        "opened_seconds": 18.0,
        "deadline": 60.0,
        "time": 754.0,
        "version": 1,
        "blocks": [
            {
                "block": block,
                "workers": 2,
                "heard": (2, 1, 1)[block],
                "participation": share,
                "last_trained": (11, 11, 9)[block],
            }
            for block, share in enumerate(shares)
        ],
        "workers": [
            worker("amsterdam-1", 0, "waiting"),
            worker("amsterdam-2", 0, "waiting", replica=1),
            worker("osaka-1", 1, "waiting", device="NVIDIA GeForce RTX 4090"),
            worker("osaka-2", 1, "training", replica=1, accepted=9, late=2, age=0.6),
            worker("quito-1", 2, "sending", accepted=10, rejected=1, seen_seconds=2.5),
            worker(
                "quito-2",
                2,
                "late",
                replica=1,
                accepted=5,
                late=6,
                age=1.4,
                seen_seconds=41.0,
                up=21_500_000,
                device="AMD Ryzen 7 5800X",
                seconds={"fetch": 210.0, "train": 600.0, "send": 90.0, "wait": 100.0},
            ),
        ],
        "ce": [
            {"round": 2 * i, "ce_chain": a, "ce_ensemble": b}
            for i, (a, b) in enumerate(zip(chain, ensemble, strict=True))
        ],
        "staleness": [48, 7, 2],
        "bytes": {"down": 888_000_000, "up": 206_500_000},
        "rounds_log": [
            {
                "round": r + 1,  # done by then
                "seconds": 58.0 + r / 4,
                "heard": 6 - r % 3 % 2,
                "timely": 6 - r % 3 % 2 - (r == 10),
                "expected": 6,
                "bytes_up": 17_200_000,
                "bytes_down": 74_000_000,
                "age": 0.1 * (r % 3),
            }
            for r in range(12)
        ],
        "problems": [
            {"time": 311.0, "text": "quito-1: rejected: a norm of 412.7, above 38.1"},
            {"time": 742.0, "text": "quito-2: no heartbeat for 30 s"},
        ],
    }
