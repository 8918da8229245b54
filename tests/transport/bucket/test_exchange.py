"""Whole rounds through a bucket, and what goes wrong on the way."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from spheroid_jax.transport.bucket import layout
from spheroid_jax.transport.bucket.layout import Announced
from spheroid_jax.transport.bucket.store import BlobStore
from spheroid_jax.transport.http.retry import Pace
from spheroid_jax.transport.link import Link, LinkError
from spheroid_jax.transport.protocol import (
    VERSION,
    Heartbeat,
    Leave,
    Pulse,
    Register,
    Upload,
    Verdict,
    Work,
    WorkRequest,
)
from tests.transport.bucket.whole_runs import Spoiling

IMPATIENT = Pace(0.3, 0.3, 0.01, 0.05)
LIMIT = 30.0  # seconds of a test's work


def run(work: Any) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(LIMIT):
            return await work

    return asyncio.run(limited())


def fresh(number: int) -> str:
    """A session."""
    return f"{number:032x}"


def update(directory: Path, work: Work, who: str, by: str) -> tuple[Upload, Path]:
    """An update's file and its announcement; the content tells whose it is."""
    content = f"{who} in round {work.round}".encode() * 10
    path = directory / f"{who}-{work.round}"
    path.write_bytes(content)
    digest = blake3(content).hexdigest()
    upload = Upload(by, work.round, 0, 0, 0, len(content), digest, ticket=work.ticket)
    return upload, path


async def train(link: Link, who: str, by: str, folder: Path) -> list[Verdict]:
    """What a worker does, from the beginning to the end of a run."""
    registered = await link.register(Register(VERSION, by))
    assert registered.worker == who
    folder.mkdir()
    verdicts: list[Verdict] = []
    after = -1
    while True:
        work = await link.work(WorkRequest(by, after, wait=5.0))
        if work.do == "stop":
            return verdicts
        if work.do == "wait":
            continue
        for kind, item in work.items.items():
            await link.fetch(item, folder / kind / str(work.round))
        await link.heartbeat(Heartbeat(by, "training", work.round))
        upload, path = update(folder, work, who, by)
        verdicts.append(await link.submit(upload, path))
        after = work.round


@pytest.mark.parametrize("kind", ["memory", "file", "s3"])
@pytest.mark.parametrize("signed", [True, False])
def test_two_workers_train_three_rounds(
    kind: str, signed: bool, tmp_path: Path, request: pytest.FixtureRequest, bench: Any
) -> None:
    if kind == "file":
        bench.store = BlobStore(f"file://{tmp_path}/bucket")
    if kind == "s3":
        bench.store = BlobStore(request.getfixturevalue("s3")("run"))
    bench.signed = signed

    async def work() -> None:
        async with bench.serving():
            both = await asyncio.gather(
                train(bench.link("ada"), "ada", fresh(1), tmp_path / "ada"),
                train(bench.link("bob"), "bob", fresh(2), tmp_path / "bob"),
            )
        for verdicts in both:
            assert [v.verdict for v in verdicts] == ["accepted"] * 3

    run(work())
    taken = bench.coordinator
    assert sorted(taken.commits) == sorted(
        f"{r}-0-{who}-0" for r in range(3) for who in ("ada", "bob")
    )
    assert taken.accepted["2-0-bob-0"] == b"bob in round 2" * 10
    for who in ("ada", "bob"):  # updates, and messages, which are small
        assert 3 * 140 < taken.up[who] < 3 * 140 + 100_000
    for who in ("ada", "bob"):  # the items arrived whole
        for r in range(3):
            for part in ("block", "interface"):
                there = bench.root / who / part / str(r) / "data.0"
                sent = bench.root / "coordinator" / f"{r}-{part}" / "data.0"
                assert there.read_bytes() == sent.read_bytes()


def test_a_repeated_submission_has_the_same_verdict(bench: Any, tmp_path: Path) -> None:
    async def work() -> None:
        async with bench.serving():
            link = bench.link("ada")
            await link.register(Register(VERSION, fresh(1)))
            upload, path = update(tmp_path, Work("train"), "ada", fresh(1))
            first = await link.submit(upload, path)
            assert await link.submit(upload, path) == first
            # A new process that knows nothing of it sends it all again.
            again = bench.link("ada")
            await again.register(Register(VERSION, fresh(2)))
            await bench.store.delete(layout.verdict("0-0-ada-0"))
            moved = Upload(
                fresh(2), 0, 0, 0, 0, upload.bytes, upload.blake3, ticket="t"
            )
            assert (await again.submit(moved, path)).verdict == "accepted"

    run(work())
    assert bench.coordinator.commits == ["0-0-ada-0"]


def test_a_second_update_of_the_round_is_a_duplicate(
    bench: Any, tmp_path: Path
) -> None:
    async def work() -> None:
        async with bench.serving():
            link = bench.link("ada")
            await link.register(Register(VERSION, fresh(1)))
            upload, path = update(tmp_path, Work("train"), "ada", fresh(1))
            await link.submit(upload, path)
            other = Upload(
                fresh(1), 0, 0, 0, 1, upload.bytes, upload.blake3, ticket="t"
            )
            assert (await link.submit(other, path)).verdict == "duplicate"

    run(work())


def test_a_corrupted_piece_is_sent_again(bench: Any, tmp_path: Path) -> None:
    flipped: list[str] = []

    def change(key: str, content: bytes) -> bytes:
        if key.startswith("updates/0-0-ada-0/data-00") and not flipped:
            flipped.append(key)
            return content[:-1] + bytes([content[-1] ^ 1])
        return content

    async def work() -> None:
        async with bench.serving():
            link = bench.link("ada", store=Spoiling(bench.store, change))
            await link.register(Register(VERSION, fresh(1)))
            upload, path = update(tmp_path, Work("train"), "ada", fresh(1))
            assert (await link.submit(upload, path)).verdict == "accepted"

    run(work())
    assert flipped
    assert bench.coordinator.accepted["0-0-ada-0"] == b"ada in round 0" * 10


@pytest.mark.parametrize("what", ["flip", "cut", "long"])
def test_what_stays_corrupted_is_given_up(
    bench: Any, tmp_path: Path, what: str
) -> None:
    def change(key: str, content: bytes) -> bytes:
        if not key.startswith("updates/") or key.endswith("update.json"):
            return content
        return {"flip": b"x" * len(content), "cut": content[:-1], "long": b"y" * 999}[
            what
        ]

    async def work() -> None:
        async with bench.serving():
            link = bench.link("ada", store=Spoiling(bench.store, change))
            await link.register(Register(VERSION, fresh(1)))
            upload, path = update(tmp_path, Work("train"), "ada", fresh(1))
            with pytest.raises(LinkError, match="arrived corrupted 4 times") as caught:
                await link.submit(upload, path)
            assert caught.value.code == "corrupted"

    run(work())
    assert bench.coordinator.commits == []
    assert list((tmp_path / "incoming").iterdir()) == []


def test_half_an_update_is_not_taken(bench: Any, tmp_path: Path) -> None:
    """Data without ``update.json``: a worker that was killed before the mark."""

    async def work() -> None:
        async with bench.serving():
            link = bench.link("ada")
            await link.register(Register(VERSION, fresh(1)))
            await bench.store.put(layout.update_data("0-0-ada-0", 0, 0), b"half")
            # Another update goes through meanwhile: the front has looked, and passed.
            bob = bench.link("bob")
            await bob.register(Register(VERSION, fresh(2)))
            upload, path = update(tmp_path, Work("train"), "bob", fresh(2))
            await bob.submit(upload, path)
            assert bench.coordinator.commits == ["0-0-bob-0"]
            # And it is no obstacle to the whole one.
            upload, path = update(tmp_path, Work("train"), "ada", fresh(1))
            assert (await link.submit(upload, path)).verdict == "accepted"

    run(work())


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.01)


def sealed_update(upload: Upload, who: str, key: bytes | None, content: bytes) -> bytes:
    digest = blake3(content).hexdigest()
    return layout.seal(
        Announced(upload, 0, layout.PIECE, [digest]),
        "update",
        who,
        upload.session,
        9,
        run="run",
        subject=f"{upload.round}-0-{who}-0",
        key=key,
    )


@pytest.mark.parametrize("key", [None, b"x" * 32, layout.key_of("spheroid_b")])
def test_a_forged_update_is_ignored(
    bench: Any, tmp_path: Path, key: bytes | None
) -> None:
    async def work() -> None:
        async with bench.serving():
            link = bench.link("ada")
            await link.register(Register(VERSION, fresh(1)))
            upload, path = update(tmp_path, Work("train"), "ada", fresh(1))
            content = path.read_bytes()
            await bench.store.put(layout.update_data("0-0-ada-0", 0, 0), content)
            forged = sealed_update(upload, "ada", key, content)
            await bench.store.put(layout.update("0-0-ada-0"), forged)
            await until(lambda: any("wrong signature" in s for s in bench.said))
            assert await bench.store.read(layout.verdict("0-0-ada-0")) is None

    run(work())
    assert bench.coordinator.commits == []


def test_an_update_under_the_name_of_another_is_ignored(
    bench: Any, tmp_path: Path
) -> None:
    """Bob signs well, with his own token, what lies under Ada's name."""

    async def work() -> None:
        async with bench.serving():
            bob = bench.link("bob")
            await bob.register(Register(VERSION, fresh(2)))
            upload, path = update(tmp_path, Work("train"), "bob", fresh(2))
            content = path.read_bytes()
            own = sealed_update(upload, "bob", layout.key_of("spheroid_b"), content)
            await bench.store.put(layout.update("0-0-ada-0"), own)
            await until(lambda: any("ignored, as" in s for s in bench.said))

    run(work())
    assert bench.coordinator.commits == []


def test_a_forged_greeting_takes_nobodys_place(bench: Any) -> None:
    async def work() -> None:
        async with bench.serving():
            ada = bench.link("ada")
            await ada.register(Register(VERSION, fresh(1)))
            liar = bench.link("ada", token="guessed", grace=0.1, pace=IMPATIENT)
            with pytest.raises(LinkError, match="gives no answer"):
                await liar.register(Register(VERSION, fresh(7)))
            assert bench.coordinator.sessions == {"ada": fresh(1)}
            pulse = await ada.heartbeat(Heartbeat(fresh(1), round=0))
            assert pulse == Pulse(0, True)

    run(work())
    assert any("wrong signature" in line for line in bench.said)


def test_a_replayed_greeting_is_ignored(bench: Any) -> None:
    """An old process's greeting, put back, doesn't supersede its successor."""

    async def work() -> None:
        async with bench.serving():
            await bench.link("ada").register(Register(VERSION, fresh(1)))
            old = await bench.store.read(layout.hello("ada"))
            new = bench.link("ada")
            await new.register(Register(VERSION, fresh(2)))
            await bench.store.put(layout.hello("ada"), old.content)
            await until(lambda: any("said before" in s for s in bench.said))
            assert bench.coordinator.sessions == {"ada": fresh(2)}

    run(work())


def test_a_replayed_sign_of_life_is_none(bench: Any) -> None:
    async def work() -> None:
        async with bench.serving():
            link = bench.link("ada")
            await link.register(Register(VERSION, fresh(1)))
            await link.heartbeat(Heartbeat(fresh(1), "training"))
            old = await bench.store.read(layout.pulse("ada"))
            await link.heartbeat(Heartbeat(fresh(1), "sending"))
            heard = len(bench.coordinator.beats)
            await bench.store.put(layout.pulse("ada"), old.content)
            await until(lambda: any("said before" in s for s in bench.said))
            assert len(bench.coordinator.beats) == heard

    run(work())


def test_greetings_of_before_a_restart_are_not_those_of_now(bench: Any) -> None:
    async def work() -> None:
        async with bench.serving():
            await bench.link("ada").register(Register(VERSION, fresh(1)))
        bench.coordinator.restart()
        async with bench.serving():
            bob = bench.link("bob")
            await bob.register(Register(VERSION, fresh(2)))  # so that it has looked
            assert bench.coordinator.sessions == {"bob": fresh(2)}

    run(work())


def test_forged_work_is_not_done(bench: Any) -> None:
    """With a token, only the coordinator's word counts."""
    notices: list[str] = []

    async def work() -> None:
        async with bench.serving():
            link = bench.link("ada", notice=notices.append)
            await link.register(Register(VERSION, fresh(1)))
            found = await bench.store.read(layout.answer("ada"))
        epoch = layout.unseal(found.content, "answer", "run", None).subject
        forged = layout.seal(
            layout.Answer(999, work=Work("stop"), asked=1),
            "answer",
            "ada",
            fresh(1),
            999,
            run="run",
            subject=epoch,
            key=layout.key_of("spheroid_b"),
        )
        asking = asyncio.create_task(link.work(WorkRequest(fresh(1), wait=5.0)))
        await bench.store.put(layout.answer("ada"), forged)
        await until(lambda: any("wrong signature" in n for n in notices))
        assert not asking.done()
        asking.cancel()

    run(work())


def test_no_signatures_where_they_are_wanted(bench: Any) -> None:
    async def work() -> None:
        async with bench.serving():
            with pytest.raises(LinkError, match="give this worker its token"):
                await bench.link("ada", token=None).register(
                    Register(VERSION, fresh(1))
                )
        bench.signed = False
        async with bench.serving():
            with pytest.raises(LinkError, match="aren't signed"):
                await bench.link("ada", token="t").register(Register(VERSION, fresh(1)))

    run(work())


def test_a_newer_process_supersedes_the_older(bench: Any) -> None:
    async def work() -> None:
        async with bench.serving():
            old = bench.link("ada")
            await old.register(Register(VERSION, fresh(1)))
            asking = asyncio.create_task(old.work(WorkRequest(fresh(1), 5, wait=20.0)))
            new = bench.link("ada")
            await new.register(Register(VERSION, fresh(2)))
            await new.heartbeat(Heartbeat(fresh(2)))
            await asyncio.sleep(0.2)
            assert not asking.done()  # who only starts ousts nobody
            assert (await new.work(WorkRequest(fresh(2), wait=20.0))).do == "train"
            with pytest.raises(LinkError) as caught:
                await asking
            assert (caught.value.code, caught.value.status) == ("superseded", 409)

    run(work())


def test_a_refusal_is_told(bench: Any) -> None:
    async def work() -> None:
        async with bench.serving():
            with pytest.raises(LinkError, match="another version") as caught:
                await bench.link("ada").register(Register(3, fresh(1)))
            assert (caught.value.code, caught.value.status) == ("version", 409)

    run(work())


def test_an_update_that_is_too_large_is_not_read(bench: Any, tmp_path: Path) -> None:
    async def work() -> None:
        async with bench.serving():
            link = bench.link("ada")
            await link.register(Register(VERSION, fresh(1)))
            huge = Upload(fresh(1), 0, 0, 0, 0, layout.PIECE * 7, "0" * 64, ticket="t")
            key = layout.key_of("spheroid_a")
            announced = Announced(huge, 0, layout.PIECE, ["0" * 64] * 7)
            content = layout.seal(
                announced,
                "update",
                "ada",
                fresh(1),
                99,
                run="run",
                subject="0-0-ada-0",
                key=key,
            )
            # Its data aren't even there.
            await bench.store.put(layout.update("0-0-ada-0"), content)
            found = None
            while found is None:
                await asyncio.sleep(0.01)
                found = await bench.store.read(layout.verdict("0-0-ada-0"))
            envelope = layout.unseal(found.content, "verdict", "run", key)
            outcome = layout.opened(envelope, layout.Outcome)
            assert outcome.refusal is not None
            assert outcome.refusal.code == "too_large"

    run(work())


def test_a_full_disk_is_waited_for(bench: Any, tmp_path: Path) -> None:
    bench.coordinator.busy = 3

    async def work() -> None:
        async with bench.serving():
            link = bench.link("ada")
            await link.register(Register(VERSION, fresh(1)))
            upload, path = update(tmp_path, Work("train"), "ada", fresh(1))
            assert (await link.submit(upload, path)).verdict == "accepted"

    run(work())
    assert bench.coordinator.busy == 0


def test_a_restarted_coordinator_is_met_again(bench: Any, tmp_path: Path) -> None:
    """In the middle of a question, of a heartbeat, and of an update on its way."""

    async def work() -> None:
        ada, bob = bench.link("ada"), bench.link("bob")
        async with bench.serving():
            await ada.register(Register(VERSION, fresh(1)))
            await bob.register(Register(VERSION, fresh(2)))
            asking = asyncio.create_task(ada.work(WorkRequest(fresh(1), 0, wait=20.0)))
            upload, path = update(tmp_path, Work("train"), "ada", fresh(1))
            await ada.submit(upload, path)
        bench.coordinator.restart()
        # It is gone while Bob's update goes into the bucket.
        upload, path = update(tmp_path, Work("train"), "bob", fresh(2))
        sending = asyncio.create_task(bob.submit(upload, path))
        beating = asyncio.create_task(bob.heartbeat(Heartbeat(fresh(2), "sending")))
        await asyncio.sleep(0.1)
        assert not sending.done()
        async with bench.serving():
            assert (await sending).verdict == "accepted"
            assert (await asking).round == 1
            assert (await beating).round in (0, 1)
        assert bench.coordinator.sessions == {"ada": fresh(1), "bob": fresh(2)}

    run(work())
    assert sorted(bench.coordinator.commits) == ["0-0-ada-0", "0-0-bob-0"]


def test_a_restart_between_acceptance_and_verdict(bench: Any, tmp_path: Path) -> None:
    """The update is in, the word of it isn't: it is not taken twice."""
    lost: list[str] = []

    def change(key: str, content: bytes) -> bytes | None:
        if key.startswith("verdicts/") and not lost:
            lost.append(key)
            raise asyncio.CancelledError  # as if killed at this point
        return content

    async def work() -> None:
        link = bench.link("ada")
        upload, path = update(tmp_path, Work("train"), "ada", fresh(1))
        async with bench.serving(Spoiling(bench.store, change)):
            await link.register(Register(VERSION, fresh(1)))
            sending = asyncio.create_task(link.submit(upload, path))
            await until(lambda: bool(lost))
        bench.coordinator.restart()
        async with bench.serving():
            assert (await sending).verdict == "accepted"

    run(work())
    assert bench.coordinator.commits == ["0-0-ada-0"]


def test_what_is_over_is_deleted(bench: Any, tmp_path: Path) -> None:
    bench.coordinator = type(bench.coordinator)(tmp_path / "long", 1, 6)

    async def work() -> None:
        await bench.store.put("updates/0-0-zoe-0/data-00-00000", b"half an update")
        async with bench.serving():
            await train(bench.link("ada"), "ada", fresh(1), tmp_path / "ada")
            newest = bench.coordinator.round
            assert newest == 6

            def old(keys: list[str]) -> list[str]:
                rounds = [int(key.split("/")[1].split("-")[0]) for key in keys]
                return [k for k, r in zip(keys, rounds, strict=True) if r < newest - 3]

            while True:
                keys = await bench.store.list("items/")
                digests = {key.split("/")[1] for key in keys}
                left = old(await bench.store.list("verdicts/"))
                left += old(await bench.store.list("updates/"))
                if not left and len(digests) <= 2 * 3:
                    break
                await asyncio.sleep(0.01)
            # Those of the newest rounds stay.
            for r in range(3, 6):
                assert bench.coordinator.items[r, "block"].digest in digests

    run(work())


def test_an_item_that_is_gone_says_so(bench: Any, tmp_path: Path) -> None:
    async def work() -> None:
        async with bench.serving():
            link = bench.link("ada")
            await link.register(Register(VERSION, fresh(1)))
            item = bench.coordinator.items[2, "block"]  # not published
            with pytest.raises(LinkError, match="its round is over") as caught:
                await link.fetch(item, tmp_path / "item")
            assert (caught.value.code, caught.value.status) == ("unknown", 404)

    run(work())


def test_an_item_is_complete_before_it_is_announced(bench: Any) -> None:
    order: list[str] = []

    def change(key: str, content: bytes) -> bytes:
        if key.startswith("items/"):
            order.append(key)
        if key.startswith("work/") and b'"do":"train"' in content:
            order.append("announced")
        return content

    async def work() -> None:
        async with bench.serving(Spoiling(bench.store, change)):
            link = bench.link("ada")
            await link.register(Register(VERSION, fresh(1)))
            await link.work(WorkRequest(fresh(1)))
            await link.work(WorkRequest(fresh(1)))  # again: nothing is put again

    run(work())
    assert order.count("announced") >= 1
    assert [key for key in order if key.endswith("/index")] == [order[1], order[3]]
    assert order[4] == "announced"
    assert sum(key.startswith("items/") for key in order) == 4


def test_who_leaves_is_heard(bench: Any) -> None:
    async def work() -> None:
        async with bench.serving():
            link = bench.link("ada")
            await link.register(Register(VERSION, fresh(1)))
            await link.leave(Leave(fresh(1)))

    run(work())
    assert bench.coordinator.left == ["ada"]


def test_a_revoked_token_is_heard_no_more(bench: Any) -> None:
    allowed, everybody = {"ada"}, bench.keys
    bench.keys = lambda name: everybody(name) if name in allowed else None

    async def work() -> None:
        async with bench.serving():
            link = bench.link("ada", grace=0.1)
            await link.register(Register(VERSION, fresh(1)))
            allowed.clear()
            heard = len(bench.coordinator.beats)
            with pytest.raises(LinkError, match="token of ada was revoked") as caught:
                await link.heartbeat(Heartbeat(fresh(1)))
            assert (caught.value.code, caught.value.status) == ("unauthorized", 401)
            assert len(bench.coordinator.beats) == heard

    run(work())
