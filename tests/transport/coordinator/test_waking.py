"""Who waits for work is woken by what may be work, and by nothing else."""

import asyncio
from pathlib import Path

import pytest

from tests.transport.coordinator.puppets import Puppet, opened, running
from tests.transport.tiny import TinyRun


def test_others_steps_dont_wake_a_spare_but_a_free_slot_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TinyRun(tmp_path, blocks=1, replicas=2, workers=3)
    offers: list[str] = []
    offer = run.coordinator._offer

    def counted(member, after):  # type: ignore[no-untyped-def]
        offers.append(member.name)
        return offer(member, after)

    monkeypatch.setattr(run.coordinator, "_offer", counted)

    async def test() -> None:
        async with running(run):
            ada, bob, spare = [await Puppet(run, n).join() for n in ("a", "b", "c")]
            await opened(run, 0)
            first = await ada.ask()
            second = await bob.ask()
            assert {first.do, second.do} == {"train"}
            waiting = asyncio.create_task(spare.ask(wait=30.0))
            await asyncio.sleep(0.05)
            seen = offers.count("c")
            for doing in ("fetching", "training", "sending"):
                await ada.beat(doing)
                await asyncio.sleep(0.01)
            await ada.send(first, ada.train(first))
            await asyncio.sleep(0.05)
            assert offers.count("c") == seen
            await bob.leave()
            work = await asyncio.wait_for(waiting, 10)
            assert (work.do, work.replica) == ("train", second.replica)

    asyncio.run(test())
    run.close()
