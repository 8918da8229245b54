"""What may come in, from whom, and what must not touch the model."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spheroid_jax.transport.assignment import Slot
from spheroid_jax.transport.coordinator import Rules
from spheroid_jax.transport.protocol import ProtocolError, Upload
from spheroid_jax.transport.tokens import REFRESH_SECONDS
from tests.transport.coordinator.puppets import Puppet, ones, opened, running, zeros
from tests.transport.tiny import TinyRun, same


def tiny_run(path: Path, **given: Any) -> TinyRun:
    defaults = {"workers": 2, "recipe": "sgd learning_rate=1.0"}
    return TinyRun(path, **{**defaults, **given})


def test_only_with_the_ticket_of_the_work(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)

    async def refused(puppet: Puppet, upload: Upload, path: Path) -> None:
        for call in (
            lambda: run.coordinator.begin(puppet.name, upload),
            lambda: run.coordinator.commit(puppet.name, upload, path),
        ):
            with pytest.raises(ProtocolError) as told:
                await call()
            assert (told.value.status, told.value.code) == (403, "forbidden")
            assert "\n" not in str(told.value)

    async def scenario() -> None:
        async with running(run):
            a, b = [await Puppet(run, name).join() for name in "ab"]
            await opened(run, 0)
            mine, other = await a.ask(), await b.ask()
            forged: list[dict[str, Any]] = [
                {"ticket": ""},
                {"ticket": "0" * 64},
                {"ticket": "\u2028\ud83d\ude00" * 9},
                {"ticket": mine.ticket[:-1]},
                {"ticket": other.ticket},  # another worker's
                {"block": other.block},  # another worker's slot
                {"block": other.block, "ticket": other.ticket},
                {"replica": 1},
                {"round": 1},
                {"block": 2**53},
            ]
            for changes in forged:
                await refused(a, *a.upload(mine, zeros(run), **changes))
            assert not run.ledger.accepted()
            assert not list(run.updates.iterdir())
            assert (await a.send(mine, zeros(run))).verdict == "accepted"

    asyncio.run(scenario())
    run.close()


def test_a_ticket_is_good_after_a_restart(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    before = run.coordinator.intake.ticket("a", 0, Slot(0, 0))
    again = run.reopen()
    assert again.intake.ticket("a", 0, Slot(0, 0)) == before
    assert again.intake.ticket("b", 0, Slot(0, 0)) != before
    run.close()


def test_size_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)

    async def scenario() -> None:
        async with running(run):
            a, _ = [await Puppet(run, name).join() for name in "ab"]
            await opened(run, 0)
            work = await a.ask()
            upload, _ = a.upload(work, zeros(run), bytes=2**40)
            with pytest.raises(ProtocolError) as told:
                await run.coordinator.begin("a", upload)
            assert (told.value.status, told.value.code) == (413, "too_large")
            # The largest true one, 32 bits a number, isn't.
            assert (
                await run.coordinator.begin("a", a.upload(work, zeros(run))[0]) is None
            )

    asyncio.run(scenario())
    run.close()


def test_one_update_a_slot_and_one_a_worker(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, blocks=2, replicas=2, workers=2)

    async def scenario() -> None:
        async with running(run):
            a, b = [await Puppet(run, name).join() for name in "ab"]
            await opened(run, 0)
            work = await a.ask()
            assert (await a.send(work, zeros(run))).verdict == "accepted"
            again = await a.send(work, ones(run, 0.01), attempt=1)
            assert again.verdict == "duplicate"
            # Under the same name it is the same update, whatever it says.
            assert (await a.send(work, ones(run, 0.01))).why == "it was accepted before"
            assert len(run.ledger.accepted()) == 1
            assert run.coordinator.board.members.get("a").accepted == 1
            del b

    asyncio.run(scenario())
    run.close()


def test_two_at_once_and_one_is_accepted(tmp_path: Path) -> None:
    """Commits of one update, and of two for one slot, at the same moment."""
    run = tiny_run(tmp_path)

    async def scenario() -> None:
        async with running(run):
            a, _ = [await Puppet(run, name).join() for name in "ab"]
            await opened(run, 0)
            work = await a.ask()
            pairs = [a.upload(work, zeros(run), attempt=n // 2) for n in range(6)]
            verdicts = await asyncio.gather(
                *(run.coordinator.commit("a", *pair) for pair in pairs)
            )
            told = sorted(v.verdict for v in verdicts)
            assert told == ["accepted"] * 2 + ["duplicate"] * 4
            assert len(run.ledger.accepted()) == 1
            assert run.coordinator.board.members.get("a").accepted == 1
            assert len(list(run.updates.iterdir())) == 1
            assert not any(path.exists() for _, path in pairs)

    asyncio.run(scenario())
    run.close()


def _other(change: Callable[[dict[str, Any], str], None]) -> Callable[[TinyRun], Any]:
    def make(run: TinyRun) -> dict[str, np.ndarray]:
        delta = zeros(run)
        change(delta, next(iter(delta)))
        return delta

    return make


def _infinite(delta: dict[str, Any], name: str) -> None:
    delta[name].reshape(-1)[-1] = np.inf


BAD: dict[str, tuple[Callable[[TinyRun], Any], str]] = {
    "missing": (_other(lambda d, n: d.pop(n)), "missing"),
    "besides": (_other(lambda d, n: d.update(evil=np.zeros(3, np.float32))), "evil"),
    "shape": (_other(lambda d, n: d.update({n: d[n][..., :-1]})), "shape"),
    "flat": (_other(lambda d, n: d.update({n: d[n].reshape(1, -1)})), "shape"),
    "NaN": (lambda run: ones(run, float("nan")), "NaN"),
    "infinite": (_other(_infinite), "infinite"),
    "huge": (lambda run: ones(run, 1e6), "bound"),
    "overflow": (lambda run: ones(run, 3e38), "bound"),
}


@pytest.mark.parametrize("what", [*BAD, "garbage", "cut", "empty"])
def test_what_is_bad_never_touches_the_model(tmp_path: Path, what: str) -> None:
    run = tiny_run(tmp_path)
    bounds = run.coordinator._bounds

    async def scenario() -> None:
        async with running(run):
            a, b = [await Puppet(run, name).join() for name in "ab"]
            await opened(run, 0)
            before = run.state()
            if what in BAD:
                make, why = BAD[what]
                upload, path = a.upload(await a.ask(), make(run))
            else:
                why = ""
                upload, path = a.upload(await a.ask(), zeros(run))
                data = path.read_bytes()
                path.write_bytes(
                    {"garbage": b"P" * len(data), "empty": b""}.get(what, data[:-9])
                )
            known = bounds.state()
            verdict = await run.coordinator.commit("a", upload, path)
            assert verdict.verdict == "rejected"
            assert verdict.why
            assert "\n" not in verdict.why
            assert why in verdict.why
            assert bounds.state() == known
            assert not path.exists()
            assert not run.ledger.accepted()
            status = run.coordinator.status()
            assert status["workers"][0]["rejected"] == 1
            (problem,) = status["problems"]
            assert verdict.why in problem["text"]
            await a.ask(after=0)
            assert (await b.send(await b.ask(), zeros(run))).verdict == "accepted"
            await opened(run, 1)
            after = run.state()
            assert same(before, after)  # b's are zeros

    asyncio.run(scenario())
    run.close()


@pytest.mark.parametrize("rule", ["mean", "median", "trimmed_mean"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_poisoned_of_five(tmp_path: Path, rule: str, sign: float) -> None:
    """It passes the norm's bound, and can't move the model out of the honest range."""
    run = tiny_run(
        tmp_path, blocks=1, replicas=5, workers=5, rounds=1,
        rules=Rules(None, rule, 0.2),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    honest = [
        {
            name: rng.normal(0.02, 0.01, shape).astype(np.float32)
            for name, shape in run.model.expected.items()
        }
        for _ in range(4)
    ]

    async def scenario() -> None:
        async with running(run) as task:
            puppets = [await Puppet(run, name).join() for name in "abcde"]
            await opened(run, 0)
            deltas = [ones(run, sign * 0.5), *honest]
            for puppet, delta in zip(puppets, deltas, strict=True):
                verdict = await puppet.send(await puppet.ask(), delta)
                assert verdict.verdict == "accepted", verdict
            await task

    before = run.state()
    asyncio.run(scenario())
    moved = before["['params']['blocks']['kernel']"][0].astype(float)
    moved -= run.state()["['params']['blocks']['kernel']"][0]
    said = np.stack([delta["block.kernel"] for delta in honest])
    inside = (said.min(0) - 1e-6 <= moved) & (moved <= said.max(0) + 1e-6)
    assert inside.all() == (rule != "mean")
    run.close()


def test_tokens(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    token = run.token("a")
    other = run.token("b")
    who = run.coordinator.worker_of
    assert (who(token), who(other)) == ("a", "b")
    for text in ("", "a", token[:-1], token + "x", token.upper(), "\x00", "\udc80"):
        assert who(text) is None
    run.ledger.revoke("a")
    time.sleep(2 * REFRESH_SECONDS)
    assert (who(token), who(other)) == (None, "b")
    assert token not in (tmp_path / "exchange" / "ledger.db").read_bytes().decode(
        "latin1"
    )
    run.close()
