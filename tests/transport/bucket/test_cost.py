"""What a bucket is asked for, as its owner is billed for it.

``python -m pytest -s tests/transport/bucket/test_cost.py`` prints the figures of
``docs/bucket.md``.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.protocol import VERSION, Heartbeat, Register, WorkRequest
from spheroid_jax.transport.updates import Encoding
from tests.transport.bucket.whole_runs import Counting, link, small, train

ROUNDS = 8
SESSION = "ab" * 16
WHATS = {"read": "GET", "write": "PUT", "list": "LIST", "delete": "DELETE"}


def beyond(asked: dict[tuple[str, str], int], look: dict[str, int]) -> dict[str, float]:
    """Requests a round by kind, without those of looks."""
    counts = dict.fromkeys(WHATS, 0)
    for (what, _), count in asked.items():
        counts[what] += count
    return {
        name: (counts[what] - look.get(what, 0)) / ROUNDS
        for what, name in WHATS.items()
    }


@pytest.mark.parametrize("broadcast", [None, Encoding("int4", 3)], ids=["off", "int4"])
def test_what_a_round_costs(tmp_path: Path, broadcast: Encoding | None) -> None:
    bucket = BlobStore("memory://")
    front, ann, bob = (Counting(bucket) for _ in range(3))
    run = small(tmp_path, rounds=ROUNDS, broadcast=broadcast)
    train(run, {"ann": link("ann", ann), "bob": link("bob", bob)}, front)

    looks = front.asked["list", "workers"]
    # Two listings, and two objects of each worker.
    a_look = {"list": 2 * looks, "read": 4 * looks}
    coordinator = beyond(front.asked, a_look)
    looks = ann.asked["read", "run.json"]
    worker = beyond(ann.asked, {"read": 2 * looks})
    print(f"\nbroadcast {broadcast}; requests a round without looks")
    print("  coordinator, two workers:", coordinator)
    print("  a worker:", worker)
    for who, store, way in (("coordinator", front, "up"), ("worker", ann, "down")):
        kinds = ("data", "step", "index")
        moved = {kind: store.moved[way, kind] // ROUNDS for kind in kinds}
        print(f"  bytes of items {way} a round, {who}: {moved}")
    # Question, sign of life, update and its announcement; one sign more at times.
    assert worker["PUT"] < 7
    # Two indexes and two items, a few answers, a verdict.
    assert worker["GET"] < 20
    assert worker["LIST"] + worker["DELETE"] < 1
    # Three items of two objects, two verdicts, answers to each message.
    assert coordinator["PUT"] < 24
    assert coordinator["LIST"] < 4  # of the three folders that are cleaned up
    assert coordinator["GET"] < 24


def test_who_waits_for_two_things_looks_once_for_both(bench: Any) -> None:
    own = Counting(bench.store)

    async def work() -> None:
        async with bench.serving():
            link_ = bench.link("ada", store=own)
            await link_.register(Register(VERSION, SESSION))
            asking = asyncio.create_task(link_.work(WorkRequest(SESSION, 5, wait=20.0)))
            await asyncio.sleep(0.05)
            own.asked.clear()
            began = asyncio.get_running_loop().time()
            for _ in range(5):
                await link_.heartbeat(Heartbeat(SESSION, "training"))
            seconds = asyncio.get_running_loop().time() - began
            asking.cancel()
            await link_.close()
        looks = seconds / 0.01  # at most; two waits would look twice as often
        assert own.asked["read", "run.json"] <= looks + 2
        # An answer that is new costs two, the same run costs one.
        new = own.asked["write", "workers"] + 1
        assert own.asked["read", "work"] <= own.asked["read", "run.json"] + new + 1

    asyncio.run(asyncio.wait_for(work(), 30))
