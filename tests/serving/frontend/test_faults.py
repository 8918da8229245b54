"""What goes wrong between a front end and its stages, and what clients see of it."""

import asyncio
import base64
import dataclasses
import random
from typing import Any

import aiohttp
import pytest

from spheroid_jax.serving.frontend.asked import generate
from spheroid_jax.serving.frontend.fields import GenerateRequest
from spheroid_jax.serving.frontend.jobs import Piece
from spheroid_jax.serving.frontend.link import StageLink
from spheroid_jax.serving.frontend.requests import Emit
from spheroid_jax.serving.methods import Method
from spheroid_jax.serving.wire.messages import FailureKind
from tests.serving.frontend.fakes import QUICK, House, house, written


def body(seed: int, length: int = 24, **more: Any) -> dict[str, Any]:
    return {"prompt": f"p{seed}", "seed": seed, "length": length, **more}


async def ask(
    session: aiohttp.ClientSession, it: House, given: dict[str, Any]
) -> tuple[int, Any]:
    async with session.post(f"{it.url}/v1/generate", json=given) as answer:
        return answer.status, await answer.json()


async def ask_all(it: House, texts: list[dict[str, Any]]) -> list[tuple[int, Any]]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        return await asyncio.gather(*(ask(session, it, given) for given in texts))


def right(given: dict[str, Any], answer: Any) -> bool:
    expected = written(given["seed"], given["prompt"].encode(), given["length"])
    return base64.b64decode(answer["bytes"]) == expected


def retries(it: House, why: str) -> float:
    return it.frontend.metrics.retries.labels(why)._value.get()


@pytest.mark.parametrize("how", ["dies", "hangs"])
@pytest.mark.parametrize("block", [0, 1, 2])
def test_with_a_replica_a_lost_stage_costs_no_text(how: str, block: int) -> None:
    """Under load: all texts end, with the bytes that they have without the loss."""

    async def main() -> None:
        async with house((2, 2, 2)) as it:
            for stage in it.stages:
                stage.slow = 0.003
            texts = [body(seed, method="speculative=4") for seed in range(8)]
            asked = asyncio.create_task(ask_all(it, texts))
            victim = it.stages[2 * block]
            await it.until(lambda: len(victim.texts) >= 2 and victim.sweeps >= 5)
            if how == "dies":
                await victim.stop()
            else:
                victim.hang = True
            answers = await asyncio.wait_for(asked, 8.0)
            assert [status for status, _ in answers] == [200] * 8
            assert all(
                right(given, answer)
                for given, (_, answer) in zip(texts, answers, strict=True)
            )
            assert sum(answer["retries"] for _, answer in answers) >= 2
            victim.texts.clear()  # nobody can tell one that hangs
            await it.until(it.idle)

    asyncio.run(main())


def test_trouble_of_all_kinds_at_once() -> None:
    """Stages die, hang, lie and come back while texts are written: all come out."""

    async def main() -> None:
        chance = random.Random(1)
        settings = dataclasses.replace(QUICK, request=30.0, patience=20.0)
        async with house((2, 2, 2), settings=settings) as it:
            for stage in it.stages:
                stage.slow = 0.005
            methods = ("token", "speculative=4", "sweeps=64")
            texts = [body(s, 30, method=methods[s % 3]) for s in range(24)]
            asked = asyncio.create_task(ask_all(it, texts))
            did = broke = 0
            while not asked.done() or did < 12:
                await asyncio.sleep(0.05)
                stage = chance.choice(it.stages)
                what = chance.choice(("die", "hang", "garble", "fail", "mend", "mend"))
                did += 1
                if what == "mend":
                    for one in it.stages:
                        one.hang = False
                        if not one.up:
                            await one.start()
                elif what == "die":
                    await stage.stop()
                elif what == "hang":
                    stage.hang = True
                elif stage.up and what == "garble":
                    stage.garble()
                elif what == "fail":
                    # Three that break are a text's end, and all might meet one text.
                    kinds: list[FailureKind] = ["busy", "lost", "broken"]
                    kind = chance.choice(kinds[: 3 if broke < 2 else 2])
                    broke += kind == "broken"
                    stage.fail.append(kind)
            answers = await asked
            assert [status for status, _ in answers] == [200] * 24
            assert all(right(g, a) for g, (_, a) in zip(texts, answers, strict=True))
            assert sum(answer["retries"] for _, answer in answers) > 12
            for stage in it.stages:
                stage.hang = False
                stage.texts.clear()  # of sweeps that came while it hung
            await it.until(it.idle)

    asyncio.run(main())


def test_without_a_replica_there_is_a_clear_error_in_time() -> None:
    async def main() -> None:
        async with house() as it:
            it.stages[1].slow = 0.02
            asked = asyncio.create_task(ask_all(it, [body(s) for s in range(4)]))
            await it.until(lambda: it.stages[1].sweeps >= 4)
            time = asyncio.get_running_loop().time
            began = time()
            await it.stages[1].stop()
            answers = await asked
            assert time() - began < QUICK.patience + 1.0
            for status, answer in answers:
                assert status == 503
                assert "block 1 has no stage" in answer["error"]["message"]
                assert "replica 0: it" in answer["error"]["message"]
                assert "127.0.0.1" not in answer["error"]["message"]
            await it.until(it.idle)
            status, _ = (await ask_all(it, [body(0)]))[0]
            assert status == 503

    asyncio.run(main())


def test_a_stage_that_comes_back_in_time_is_waited_for() -> None:
    async def main() -> None:
        async with house() as it:
            it.stages[1].slow = 0.01
            texts = [body(s) for s in range(4)]
            asked = asyncio.create_task(ask_all(it, texts))
            await it.until(lambda: it.stages[1].sweeps >= 4)
            await it.stages[1].stop()
            await asyncio.sleep(0.3)
            await it.stages[1].start()
            answers = await asked
            assert [status for status, _ in answers] == [200] * 4
            assert all(
                right(g, a) and a["retries"] >= 1
                for g, (_, a) in zip(texts, answers, strict=True)
            )
            await it.until(it.idle)

    asyncio.run(main())


def test_a_hung_stage_without_a_replica_times_out_and_may_recover() -> None:
    async def main() -> None:
        settings = dataclasses.replace(QUICK, request=1.0, patience=5.0)
        async with house(settings=settings) as it:
            it.stages[2].hang = True
            time = asyncio.get_running_loop().time
            began = time()
            ((status, answer),) = await ask_all(it, [body(1)])
            assert status == 503
            assert "block 2 has no stage" in answer["error"]["message"]
            assert "silent" in answer["error"]["message"]
            assert 0.9 < time() - began < 2.0
            await it.until(lambda: it.frontend.stages.missing == [2])
            it.stages[2].hang = False
            await it.until(lambda: not it.frontend.stages.missing)
            ((status, answer),) = await ask_all(it, [body(1, 8)])
            assert status == 200
            await it.until(it.idle)

    asyncio.run(main())


def test_a_text_that_takes_too_long_times_out() -> None:
    async def main() -> None:
        settings = dataclasses.replace(QUICK, request=0.5)
        async with house(settings=settings) as it:
            it.stages[0].slow = 0.05
            time = asyncio.get_running_loop().time
            began = time()
            ((status, answer),) = await ask_all(it, [body(1, 40)])
            assert (status, answer["error"]["code"]) == (504, "timeout")
            assert 0.4 < time() - began < 1.5
            await it.until(it.idle)

    asyncio.run(main())


def test_a_stage_that_computes_for_too_long_is_routed_around() -> None:
    async def main() -> None:
        settings = dataclasses.replace(QUICK, sweep=8.0)
        async with house((1, 2), settings=settings) as it:
            slow = it.stages[1]
            slow.slow = 8.0
            asked = asyncio.create_task(ask_all(it, [body(s, 4) for s in range(4)]))
            await it.until(lambda: it.stages[2].sweeps > 0)
            slow.oldest = 5.0  # it answers pings all the while
            answers = await asyncio.wait_for(asked, 4.0)
            assert [status for status, _ in answers] == [200] * 4
            assert retries(it, "silent") >= 1

    asyncio.run(main())


def test_a_corrupted_frame_costs_a_connection_and_no_text() -> None:
    async def main() -> None:
        async with house() as it:
            it.stages[2].slow = 0.01
            texts = [body(s) for s in range(3)]
            asked = asyncio.create_task(ask_all(it, texts))
            await it.until(lambda: it.stages[2].sweeps >= 3)
            it.stages[2].garble()
            answers = await asked
            assert [status for status, _ in answers] == [200] * 3
            assert all(right(g, a) for g, (_, a) in zip(texts, answers, strict=True))
            assert any("corrupted" in line for line in it.lines)
            await it.until(it.idle)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["busy", "lost", "peer", "late", "refused", "broken"])
def test_failures_that_pass_are_not_seen(kind: Any) -> None:
    async def main() -> None:
        async with house((1, 1, 1)) as it:
            it.stages[1].fail = [kind, kind]
            ((status, answer),) = await ask_all(it, [body(3)])
            assert status == 200
            assert right(body(3), answer)
            assert retries(it, kind) == 2
            await it.until(it.idle)

    asyncio.run(main())


def test_a_sweep_that_vanishes_is_sent_again_after_its_time() -> None:
    async def main() -> None:
        async with house() as it:
            it.stages[1].swallow = 1
            time = asyncio.get_running_loop().time
            began = time()
            ((status, answer),) = await ask_all(it, [body(3)])
            assert status == 200
            assert right(body(3), answer)
            assert QUICK.sweep < time() - began < QUICK.sweep + 1.0
            assert retries(it, "late") == 1
            await it.until(it.idle)

    asyncio.run(main())


async def write(it: House, emit: Emit) -> None:
    """The text of ``body(3)``, straight from the writer."""
    asked = GenerateRequest(prompt="p3", seed=3, length=24)
    (job,) = generate(asked, QUICK, Method()).jobs
    front, now = it.frontend, asyncio.get_running_loop().time()
    (ticket,) = front.admission.enter(1)
    assert front.stages.model is not None
    await front.writer.write(job, front.stages.model, ticket, now + 10.0, emit)


async def lose(it: House, link: StageLink) -> None:
    """Loses a connection, and returns before there is another."""
    assert link._wire is not None
    link._wire._stream.cut()
    await it.until(lambda: link.state == "down")


def test_a_connection_that_is_lost_between_two_sweeps_costs_no_time() -> None:
    """No result would come on it: the sweep isn't sent and waited for in vain."""

    async def main() -> None:
        async with house((1, 1)) as it:
            pieces: list[bytes] = []

            async def emit(piece: Piece) -> None:
                pieces.append(piece.data)
                if len(pieces) == 2:
                    await lose(it, it.frontend.stages.links[1])

            time = asyncio.get_running_loop().time
            began = time()
            await write(it, emit)
            assert time() - began < QUICK.sweep
            assert b"".join(pieces) == written(3, b"p3", 24)
            assert retries(it, "late") == 0
            assert retries(it, "gone") == 1
            await it.until(it.idle)

    asyncio.run(main())


def test_a_stage_hears_of_the_end_of_a_text_once_it_is_there_again() -> None:
    """It may not have noticed that it was gone, and would keep the slot."""

    async def main() -> None:
        async with house((1, 1)) as it:
            lost, stage = asyncio.Event(), it.stages[1]

            async def emit(piece: Piece) -> None:
                await lose(it, it.frontend.stages.links[1])
                lost.set()
                await asyncio.sleep(60)

            text = asyncio.create_task(write(it, emit))
            await lost.wait()
            text.cancel()
            await asyncio.wait([text])
            assert not stage.closed
            await it.until(lambda: len(stage.closed) == 1)
            await it.until(it.idle)

    asyncio.run(main())


def test_a_text_is_begun_anew_so_often_and_no_more() -> None:
    async def main() -> None:
        settings = dataclasses.replace(QUICK, attempts=4)
        async with house(settings=settings) as it:
            it.stages[2].fail = ["lost"] * 20
            ((status, answer),) = await ask_all(it, [body(3)])
            assert status == 503
            assert "given up after 4 tries" in answer["error"]["message"]
            assert len(it.stages[2].fail) == 16
            await it.until(it.idle)

    asyncio.run(main())


def test_a_text_that_breaks_stages_is_given_up() -> None:
    async def main() -> None:
        async with house((2, 2)) as it:
            for stage in it.stages[2:]:
                stage.fail = ["broken"] * 20
            ((status, answer),) = await ask_all(it, [body(3)])
            assert (status, answer["error"]["code"]) == (500, "internal")
            assert sum(20 - len(stage.fail) for stage in it.stages[2:]) == 3
            await it.until(it.idle)

    asyncio.run(main())


def test_a_client_that_goes_away_frees_its_slots() -> None:
    async def main() -> None:
        async with house() as it:
            it.stages[1].slow = 0.02
            for stream in (True, False):
                session = aiohttp.ClientSession()
                given = {"prompt": "a", "max_tokens": 200, "stream": stream, "n": 2}
                call = session.post(f"{it.url}/v1/completions", json=given)
                task = asyncio.ensure_future(call.__aenter__())
                await it.until(lambda: it.held == 6)
                if stream:
                    answer = await task
                    await answer.content.readany()
                    answer.close()
                else:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                await session.close()
                await it.until(it.idle)
            counted = it.frontend.metrics.requests.labels("cancelled")
            await it.until(lambda: counted._value.get() == 2)

    asyncio.run(main())


def test_a_client_that_hangs_up_within_its_request_leaves_nothing() -> None:
    async def main() -> None:
        async with house() as it:
            server = it.running._runner.server
            assert server is not None
            head = (
                b"POST /v1/generate HTTP/1.1\r\nHost: x\r\n"
                b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
            )
            for sent in (head, head[:40]):
                _, writer = await asyncio.open_connection("127.0.0.1", it.running.port)
                writer.write(sent)
                await it.until(lambda: len(server.connections) == 1)
                await asyncio.sleep(0.05)
                writer.transport.abort()
                await it.until(lambda: not server.connections)
            assert it.idle()
            assert all(stage.sweeps == 0 for stage in it.stages)
            ((status, answer),) = await ask_all(it, [body(3)])
            assert (status, right(body(3), answer)) == (200, True)

    asyncio.run(main())


def test_a_client_that_reads_nothing_is_cut() -> None:
    async def main() -> None:
        settings = dataclasses.replace(
            QUICK, stall=0.3, length=1 << 20, choices=64, prompt=1 << 20
        )
        async with house((1,), settings=settings, slots=64) as it:
            # Echoes of large prompts fill every buffer on the way.
            text = "x" * (500 << 10)
            given = {"prompt": text, "n": 64, "echo": True, "stream": True}
            request = aiohttp.ClientSession(read_bufsize=1024)
            async with request as session:
                answer = await session.post(f"{it.url}/v1/completions", json=given)
                await it.until(it.idle, 8.0)
                answer.close()

    asyncio.run(main())


def test_many_requests_at_once_get_429_beyond_the_queue() -> None:
    async def main() -> None:
        settings = dataclasses.replace(QUICK, queue=10)
        async with house((1, 2), settings=settings, slots=4) as it:
            it.stages[0].slow = 0.005
            texts = [body(seed, 12) for seed in range(200)]
            answers = await asyncio.wait_for(ask_all(it, texts), 10.0)
            good = [
                (given, answer)
                for given, (status, answer) in zip(texts, answers, strict=True)
                if status == 200
            ]
            assert all(right(given, answer) for given, answer in good)
            assert len(good) >= 14  # four slots and a queue of ten
            assert {status for status, _ in answers} == {200, 429}
            assert max(stage.most_held for stage in it.stages) <= 4
            assert retries(it, "busy") == 0
            await it.until(it.idle)

    asyncio.run(main())


def test_429_says_when_to_come_again_and_large_requests_wait_their_turn() -> None:
    async def main() -> None:
        settings = dataclasses.replace(QUICK, queue=3, retry_after=7.0)
        async with house((1,), settings=settings, slots=2) as it:
            async with aiohttp.ClientSession() as session:
                url = f"{it.url}/v1/completions"
                many = {"prompt": "a", "n": 6}
                async with session.post(url, json=many) as answer:
                    assert answer.status == 429
                    assert answer.headers["Retry-After"] == "7"
                    said = (await answer.json())["error"]
                    assert said["type"] == "rate_limit_error"
                async with session.post(url, json={**many, "n": 5}) as answer:
                    assert answer.status == 200  # two write, three wait
            assert it.stages[0].most_held == 2
            await it.until(it.idle)

    asyncio.run(main())


def test_slots_that_others_take_are_waited_for() -> None:
    async def main() -> None:
        async with house((1, 1), slots=2) as it:
            it.stages[1].texts = {b"0" * 16: bytearray(), b"1" * 16: bytearray()}
            asked = asyncio.create_task(ask_all(it, [body(4, 8)]))
            await it.until(lambda: retries(it, "busy") >= 2)
            it.stages[1].texts.clear()
            ((status, answer),) = await asked
            assert status == 200
            assert right(body(4, 8), answer)

    asyncio.run(main())


def test_stages_of_another_model_are_left_out() -> None:
    async def main() -> None:
        async with house((2, 2), fingerprints={1: "f1"}) as it:
            await it.until(lambda: all(link.part for link in it.frontend.stages.links))
            assert it.frontend.stages.model is not None
            assert it.frontend.stages.model.fingerprint == "f0"
            answers = await ask_all(it, [body(s, 6) for s in range(6)])
            assert [status for status, _ in answers] == [200] * 6
            assert it.stages[1].sweeps == 0
            assert any("not what is served" in line for line in it.lines)

    asyncio.run(main())


def test_a_newer_model_takes_over_once_it_is_whole() -> None:
    async def main() -> None:
        async with house((1, 1)) as it:
            for stage in it.stages:
                await stage.stop()
                stage.facts["fingerprint"] = "f1"
            await it.stages[0].start()
            await it.until(lambda: it.frontend.stages.links[0].state == "up")
            ((status, _),) = await ask_all(it, [body(0)])
            assert status == 503
            await it.stages[1].start()
            await it.until(lambda: not it.frontend.stages.missing)
            ((status, answer),) = await ask_all(it, [body(0)])
            assert status == 200
            assert answer["fingerprint"] == "f1"

    asyncio.run(main())


def test_a_text_is_not_continued_by_another_model() -> None:
    async def main() -> None:
        settings = dataclasses.replace(QUICK, patience=3.0)
        async with house((1,), settings=settings) as it:
            it.stages[0].slow = 0.05
            asked = asyncio.create_task(ask_all(it, [body(0)]))
            await it.until(lambda: it.stages[0].sweeps >= 2)
            await it.stages[0].stop()
            it.stages[0].facts["fingerprint"] = "f1"
            await it.stages[0].start()
            ((status, answer),) = await asked
            assert (status, answer["error"]["code"]) == (503, "model_replaced")

    asyncio.run(main())


def test_before_any_stage_is_there() -> None:
    async def main() -> None:
        async with house((1, 1), start=False) as it:
            status, answer = (await ask_all(it, [body(0)]))[0]
            assert status == 503
            assert "no stage was reached yet" in answer["error"]["message"]
            asked = asyncio.create_task(ask_all(it, [body(0)]))
            await asyncio.sleep(0.2)
            for stage in it.stages:
                await stage.start()
            ((status, answer),) = await asked
            assert status == 200
            assert right(body(0), answer)

    asyncio.run(main())


def test_load_is_spread_over_replicas() -> None:
    async def main() -> None:
        async with house((1, 3), slots=64) as it:
            it.stages[0].slow = 0.01
            await ask_all(it, [body(s, 8) for s in range(12)])
            assert [stage.most_held for stage in it.stages[1:]] == [4, 4, 4]

    asyncio.run(main())


def test_draining_takes_nothing_new_and_ends_what_runs() -> None:
    async def main() -> None:
        async with house() as it:
            it.stages[0].slow = 0.01
            asked = asyncio.create_task(ask_all(it, [body(1)]))
            await it.until(lambda: it.stages[0].sweeps >= 2)
            it.frontend.admission.closed = True
            ((status, answer),) = await ask_all(it, [body(2)])
            assert (status, answer["error"]["code"]) == (503, "draining")
            ((status, answer),) = await asked
            assert status == 200
            assert right(body(1), answer)

    asyncio.run(main())
