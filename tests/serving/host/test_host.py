"""A stage under requests that come and go, late, twice, out of order, at once."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spheroid_jax.serving.host.engine import CacheLost
from spheroid_jax.serving.wire.messages import Failure, Ping, Pong, Result

from .toys import FakePeer, Pipeline, expected, looped, sweep


def _failed(answer: Any) -> tuple[str, str]:
    message, _ = answer
    assert isinstance(message, Failure)
    return message.kind, message.text


def _byte(answer: Any) -> int:
    message, arrays = answer
    assert isinstance(message, Result), message
    return int(arrays["bytes"][0])


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


@looped
async def test_a_text_goes_on_from_its_cache() -> None:
    async with Pipeline() as line:
        text = b"hello"
        first = _byte(await line.ask(1, text))
        assert first == expected(text, 1, 1)
        text += bytes([first])
        more = await line.ask(1, text[-1:], number=1, start=5, index=5)
        assert _byte(more) == expected(text, 1, 1)


@looped
async def test_many_at_once_get_the_bytes_of_one_at_a_time() -> None:
    texts = {n: bytes([65 + n]) * (1 + n % 4) for n in range(12)}
    async with Pipeline(slots=12) as line:
        line.engine.hold.clear()
        for n, text in texts.items():
            line.send(n, text)
        await asyncio.sleep(0.02)
        line.engine.hold.set()
        for n, text in texts.items():
            assert _byte(await line.front.answer(n)) == expected(text, n, 1)
        assert max(len(batch) for batch in line.engine.batches) > 1
        assert len(line.engine.batches) < len(texts)


@looped
async def test_a_whole_pipeline_answers_the_front_end_from_its_last_stage() -> None:
    async with Pipeline(3) as line:
        for n in range(4):
            line.send(n, b"text")
        for n in range(4):
            message, arrays = await line.front.answer(n)
            assert message.at == 2
            assert arrays["bytes"].tolist() == [expected(b"text", n, 3)]
            assert len(message.seconds) == 3
        assert line.dialled == ["s1", "s2"]  # once each


@looped
async def test_the_window_comes_back_and_what_was_wanted() -> None:
    async with Pipeline() as line:
        _, arrays = await line.ask(1, b"abcd", known=2, fill="given")
        wanted = [expected(b"abcd"[: 2 + i], 1, 1) for i in range(3)]
        assert arrays["bytes"].tolist() == wanted
        assert arrays.keys() == {"bytes"}
        _, arrays = await line.ask(2, b"abcd", known=2, fill="drafted")
        assert arrays["context"].tobytes() == b"abcd"
        _, arrays = await line.ask(3, b"abcd", known=3, want_logprobs=True)
        assert arrays["logprob"].shape == (2,)


@looped
async def test_no_slot_left_is_busy_until_one_is_closed() -> None:
    async with Pipeline(slots=2) as line:
        await line.ask(1)
        await line.ask(2)
        kind, text = _failed(await line.ask(3))
        assert (kind, "slots" in text) == ("busy", True)
        line.close(1)
        assert _byte(await line.ask(3, attempt=1)) == expected(b"ab", 3, 1)


@looped
async def test_a_slot_goes_with_its_front_end() -> None:
    async with Pipeline(slots=2) as line:
        await line.ask(1)
        await line.ask(2)
        other = FakePeer(id_=b"another one.....")
        line.host.joined(other)
        line.host.left(other)  # not the one whose slots they are
        assert line.host.pong().slots_free == 0
        line.host.left(line.front)
        assert line.host.pong().slots_free == 2


@looped
async def test_a_front_end_that_comes_again_keeps_its_slots() -> None:
    async with Pipeline() as line:
        await line.ask(1)
        before, line.front = line.front, FakePeer()
        line.host.joined(line.front)
        line.host.left(before)  # which was noticed later
        assert line.host.pong().slots_free == 3
        answer = await line.ask(1, b"c", number=1, start=2, index=2)
        assert _byte(answer) == expected(b"abc", 1, 1)


@looped
async def test_an_idle_slot_is_freed_and_one_in_use_is_not() -> None:
    async with Pipeline(idle=0.1, tick=0.01) as line:
        await line.ask(1)
        line.engine.hold.clear()
        line.send(2)
        await _until(lambda: line.host.pong().slots_free == 3)
        await asyncio.sleep(0.2)
        assert line.host.pong().slots_free == 3  # request 2 is computed
        line.engine.hold.set()
        assert _byte(await line.front.answer(2)) == expected(b"ab", 2, 1)
        answer = await line.ask(1, b"c", number=1, start=2, index=2)
        assert _failed(answer)[0] == "lost"


@looped
async def test_a_thousand_dropped_requests_leave_nothing() -> None:
    async with Pipeline(2) as line:
        for n in range(1000):
            line.send(n)
            if n % 3:
                await line.front.answer(n)
            line.close(n)
            line.front.got.clear()
        await _until(lambda: not any(len(host._outbox) for host in line.hosts))
        for host in line.hosts:
            pong = host.pong()
            assert (pong.slots_free, pong.queue) == (4, 0)
            assert len(host._outbox) == 0


@looped
async def test_a_sweep_that_comes_after_the_end_of_its_request_takes_no_slot() -> None:
    async with Pipeline() as line:
        line.close(1)
        line.send(1)  # by way of the stage before, which took longer
        assert line.host.pong().slots_free == 4
        assert _byte(await line.ask(1, attempt=1)) == expected(b"ab", 1, 1)


@looped
async def test_a_request_that_was_never_here_is_lost() -> None:
    async with Pipeline() as line:
        answer = await line.ask(9, number=3, start=4, index=4)
        assert _failed(answer)[0] == "lost"
        assert line.host.pong().slots_free == 4


@looped
async def test_sweeps_out_of_order_or_twice_are_refused_and_change_nothing() -> None:
    async with Pipeline() as line:
        await line.ask(1)
        await line.ask(1, b"c", number=1, start=2, index=2)
        line.front.got.clear()
        for bad in (
            {"number": 1, "start": 2, "index": 2},  # again
            {"number": 0, "start": 0},
            {"number": 3, "start": 3, "index": 3},  # 2 is missing
        ):
            answer = await line.ask(1, b"x", **bad)
            assert _failed(answer)[0] == "refused"
            line.front.got.clear()
        answer = await line.ask(1, b"d", number=2, start=3, index=3)
        assert _byte(answer) == expected(b"abcd", 1, 1)


@looped
async def test_a_hole_is_refused() -> None:
    async with Pipeline() as line:
        await line.ask(1)
        kind, text = _failed(await line.ask(1, b"d", number=1, start=3, index=3))
        assert (kind, "hole" in text) == ("refused", True)


@looped
async def test_a_new_attempt_takes_over_from_one_that_waits() -> None:
    async with Pipeline() as line:
        line.engine.hold.clear()
        line.send(7, b"q")  # so that the others wait
        await _until(lambda: line.host.pong().queue == 0)
        line.send(1, b"old")
        line.send(1, b"new", attempt=1)
        line.close(1, attempt=0)  # of the old one, and late
        line.engine.hold.set()
        assert _byte(await line.front.answer(1, 0, 1)) == expected(b"new", 1, 1)
        assert [m.attempt for m in line.front.answers() if m.request[-1] == 1] == [1]
        assert len(line.engine.batches) == 2  # the old one wasn't computed


@looped
async def test_a_result_that_nobody_waits_for_is_not_sent() -> None:
    async with Pipeline() as line:
        line.engine.hold.clear()
        line.send(1)
        await _until(lambda: line.host.pong().queue == 0)
        line.close(1)
        line.send(2, b"in its slot")
        line.engine.hold.set()
        answer = await line.front.answer(2)
        assert _byte(answer) == expected(b"in its slot", 2, 1)
        assert len(line.front.answers()) == 1


@looped
async def test_what_comes_late_is_told_so_also_while_a_step_hangs() -> None:
    async with Pipeline() as line:
        line.engine.hold.clear()
        line.send(1)
        await _until(lambda: line.host.pong().queue == 0)
        answer = await line.ask(2, deadline=0.05)
        assert _failed(answer)[0] == "late"
        assert len(line.engine.batches) == 0
        assert line.host.pong().queue == 0


@looped
async def test_what_is_late_is_not_computed_whenever_that_shows() -> None:
    async with Pipeline(tick=60.0) as line:
        line.engine.hold.clear()
        line.send(1)
        await _until(lambda: line.host.pong().queue == 0)
        line.send(2, deadline=0.02)
        await asyncio.sleep(0.04)
        line.engine.hold.set()
        assert _failed(await line.front.answer(2))[0] == "late"
        assert len(line.engine.batches) == 1


@looped
async def test_a_step_that_outlasts_the_deadline_is_not_passed_on() -> None:
    async with Pipeline(2) as line:
        line.engine.hold.clear()
        line.send(1, deadline=0.05)
        await asyncio.sleep(0.1)
        line.engine.hold.set()
        assert _failed(await line.front.answer(1))[0] == "late"
        assert line.engines[1].batches == []


@looped
async def test_a_full_queue_is_busy() -> None:
    async with Pipeline(slots=50, queue=5) as line:
        line.engine.hold.clear()
        line.send(0)
        await _until(lambda: line.host.pong().queue == 0)
        for n in range(1, 9):
            line.send(n)
        assert line.host.pong().queue == 5
        for n in (6, 7, 8):
            assert _failed(await line.front.answer(n))[0] == "busy"
        assert line.host.pong().slots_free == 50 - 6  # who is refused has no slot
        line.engine.hold.set()
        for n in range(6):
            assert _byte(await line.front.answer(n)) == expected(b"ab", n, 1)


@looped
async def test_pong_shows_a_hung_computation() -> None:
    async with Pipeline() as line:
        assert line.host.pong().oldest == 0
        line.engine.hold.clear()
        line.send(1)
        await asyncio.sleep(0.1)
        line.hear(Ping(5), {})
        pong = line.front.got[-1][0]
        assert isinstance(pong, Pong)
        assert (pong.number, pong.slots, pong.slots_free) == (5, 4, 3)
        assert 0.08 < pong.oldest < 5
        line.engine.hold.set()
        await line.front.answer(1)
        assert line.host.pong().oldest == 0
        assert line.host.pong().computed == 1


@looped
async def test_time_that_was_spent_is_gone_at_the_next_stage() -> None:
    async with Pipeline(2) as line:
        line.engine.hold.clear()
        line.engines[1].hold.clear()
        line.send(1, deadline=5.0)
        await asyncio.sleep(0.1)
        line.engine.hold.set()
        waiting = line.hosts[1]._waiting
        await _until(lambda: line.hosts[1]._began is not None)
        line.send(2, deadline=5.0)
        await _until(lambda: len(waiting) == 1)
        (item,) = waiting.remove(lambda item: True)
        sweep_2 = item.payload.sweep
        assert 0 < sweep_2.deadline < 5.0
        line.engines[1].hold.set()
        message, _ = await line.front.answer(1)
        assert message.seconds[0].compute >= 0.08
        assert message.seconds[1].compute > 0


@looped
async def test_an_unreachable_next_stage_is_named() -> None:
    async with Pipeline(2) as line:
        line.unreachable.add("s1")
        kind, text = _failed(await line.ask(1))
        assert kind == "peer"
        assert "s1" in text
        line.unreachable.clear()
        await asyncio.sleep(0.06)
        assert _byte(await line.ask(1, attempt=1)) == expected(b"ab", 1, 2)


@looped
async def test_a_next_stage_that_was_restarted_is_dialled_again() -> None:
    async with Pipeline(2) as line:
        await line.ask(1)
        line.links[0].closed = True
        answer = await line.ask(1, b"c", number=1, start=2, index=2)
        assert _byte(answer) == expected(b"abc", 1, 2)
        assert line.dialled == ["s1", "s1"]


@looped
async def test_a_next_stage_that_hangs_holds_up_nobody_else() -> None:
    async with Pipeline(2) as line:
        await line.ask(1)
        line.links[0].takes.clear()
        line.send(1, b"c", number=1, start=2, index=2, deadline=0.3)
        # Another route, of the same stage 0.
        answer = await line.ask(2, route=("x1",))
        assert _byte(answer) == expected(b"ab", 2, 2)
        kind, text = _failed(await line.front.answer(1, 1))
        assert (kind, "s1" in text) == ("late", True)


@looped
async def test_a_front_end_that_reads_nothing_holds_up_nobody_else() -> None:
    async with Pipeline() as line:
        stuck = FakePeer(id_=b"stuck..........!")
        stuck.takes.clear()
        line.host.joined(stuck)
        line.host.handle(stuck, *sweep(1, frontend=stuck.id))
        assert _byte(await line.ask(2)) == expected(b"ab", 2, 1)
        assert stuck.got == []


@looped
async def test_refusals_do_not_pile_up_for_a_front_end_that_reads_nothing() -> None:
    """What is returned is sent before more is read of that connection."""
    async with Pipeline(slots=1) as line:
        await line.ask(0)
        await _until(lambda: len(line.host._outbox) == 0)
        stuck = FakePeer(id_=b"stuck..........!")
        stuck.takes.clear()
        line.host.joined(stuck)
        for n, (changes, kind) in enumerate(
            [
                ({}, "busy"),
                ({"start": 2, "index": 2}, "lost"),
                ({"start": 31, "index": 31}, "refused"),
            ]
        ):
            asked = sweep(1 + n, frontend=stuck.id, **changes)
            answer = line.host.handle(stuck, *asked)
            assert isinstance(answer, Failure)
            assert (answer.kind, answer.request) == (kind, asked[0].request)
        assert len(line.host._outbox) == 0


@pytest.mark.parametrize("fact", ["fingerprint", "index"])
def test_a_next_stage_of_another_model_or_place_is_refused(fact: str) -> None:
    @looped
    async def test() -> None:
        async with Pipeline(2) as line:
            line.facts[1][fact] = "other"
            kind, text = _failed(await line.ask(1))
            assert kind == "refused"
            assert "s1" in text
            assert "other" in text
            assert line.links[0].closed

    test()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"route": ()}, "route names 0"),
        ({"route": ("s1", "s2")}, "route names 2"),
        ({"start": 31, "index": 31}, "31 to 32"),
        ({"frontend": b"somebody else..."}, "another front end"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(changes: dict, said: str) -> None:
    @looped
    async def test() -> None:
        async with Pipeline(2) as line:
            kind, text = _failed(await line.ask(1, **changes))
            assert (kind, said in text) == ("refused", True)
            assert line.host.pong().slots_free == 4

    test()


_ONE = np.zeros((1, 256), np.float32)


def _arrays(**changes: np.ndarray) -> dict[str, np.ndarray]:
    """Of a sweep of two known bytes, which decides one."""
    floats = {"state": np.zeros((2, 2), np.float32), "draft": _ONE}
    return {"bytes": np.zeros(2, np.uint8), **floats, **changes}


@pytest.mark.parametrize(
    ("changes", "arrays", "said"),
    [
        ({}, {"bytes": np.zeros(2, np.uint8)}, "takes draft and state"),
        ({}, _arrays(logs=_ONE), "logs"),
        ({}, _arrays(draft=np.zeros((2, 256), np.float32)), "draft must be (1, 256)"),
        ({}, _arrays(draft=np.full_like(_ONE, np.nan)), "draft of the stage before"),
        ({}, _arrays(draft=np.full_like(_ONE, np.inf)), "draft of the stage before"),
        ({"fill": "written"}, _arrays(), "draft"),
        ({"fill": "expected"}, _arrays(), "guess"),
        ({}, _arrays(state=np.zeros((2, 3), np.float32)), "3 wide"),
        ({}, _arrays(state=np.full((2, 2), np.nan, np.float32)), "finite"),
        ({}, _arrays(bytes=np.zeros(3, np.uint8)), "bytes"),
        ({}, _arrays(bytes=np.zeros(2, np.int32)), "bytes"),
        ({}, _arrays(junk=np.zeros(2, np.int32)), "junk"),
    ],
)
def test_arrays_that_make_no_sense_are_refused(
    changes: dict, arrays: dict, said: str
) -> None:
    @looped
    async def test() -> None:
        async with Pipeline(2) as line:
            message, _ = sweep(1, **changes)
            before = FakePeer("stage", bytes(16))
            line.hosts[1].handle(before, message, arrays)
            kind, text = _failed(await line.front.answer(1))
            assert kind == "refused"
            assert said in text

    test()


@looped
async def test_a_failed_step_fails_its_requests_alone() -> None:
    async with Pipeline() as line:
        await line.ask(1)
        line.engine.fail = RuntimeError("out of\nmemory")
        kind, text = _failed(await line.ask(2))
        assert kind == "broken"
        assert "out of memory" in text
        answer = await line.ask(1, b"c", number=1, start=2, index=2)
        assert _byte(answer) == expected(b"abc", 1, 1)
        assert line.host.pong().slots_free == 3
        assert len(line.said) == 1
        assert "\n" not in line.said[0]


@looped
async def test_a_lost_cache_is_told_to_all_and_the_stage_goes_on() -> None:
    async with Pipeline() as line:
        await line.ask(1)
        line.engine.hold.clear()
        line.engine.fail = CacheLost("boom")
        line.send(2)
        await _until(lambda: line.host.pong().queue == 0)
        line.send(3)
        line.engine.hold.set()
        assert _failed(await line.front.answer(2))[0] == "broken"
        assert _failed(await line.front.answer(3))[0] == "lost"
        answer = await line.ask(1, b"c", number=1, start=2, index=2)
        assert _failed(answer)[0] == "lost"
        assert line.host.pong().slots_free == 4
        assert _byte(await line.ask(1, b"abc", attempt=1)) == expected(b"abc", 1, 1)


@looped
async def test_a_result_that_is_not_finite_is_broken_and_its_neighbours_are_not() -> (
    None
):
    async with Pipeline() as line:
        line.engine.hold.clear()
        line.send(9)
        await _until(lambda: line.host.pong().queue == 0)
        line.send(1)
        line.send(2)
        line.engine.bad_slots = {1}  # of request 1
        line.engine.hold.set()
        kind, text = _failed(await line.front.answer(1))
        assert (kind, "finite" in text) == ("broken", True)
        assert _byte(await line.front.answer(2)) == expected(b"ab", 2, 1)
        assert line.host.pong().slots_free == 2


@looped
async def test_drain_finishes_what_is_computed_and_tells_who_waits() -> None:
    async with Pipeline() as line:
        line.engine.hold.clear()
        line.send(1)
        await _until(lambda: line.host.pong().queue == 0)
        line.send(2)
        draining = asyncio.create_task(line.host.drain())
        kind, text = _failed(await line.front.answer(2))
        assert (kind, "going away" in text) == ("peer", True)
        kind, text = _failed(await line.ask(3))
        assert (kind, "going away" in text) == ("peer", True)
        assert line.host.pong().draining
        assert not draining.done()
        line.engine.hold.set()
        assert _byte(await line.front.answer(1)) == expected(b"ab", 1, 1)
        assert await draining


@looped
async def test_drain_waits_for_no_hung_step() -> None:
    async with Pipeline(drain=0.1) as line:
        line.engine.hold.clear()
        line.send(1)
        await asyncio.sleep(0.02)
        assert not await line.host.drain()


@looped
async def test_a_front_end_that_is_not_here_gets_nothing_and_costs_nothing() -> None:
    async with Pipeline(2) as line:
        line.hosts[1].left(line.front)
        line.send(1)
        await _until(lambda: len(line.said) == 1)
        assert "front end" in line.said[0]
        assert line.hosts[1].pong().slots_free == 4


@looped
async def test_a_fault_in_the_host_itself_ends_it() -> None:
    async with Pipeline() as line:

        def broken(*_: object) -> list[Any]:
            raise TypeError("a bug")

        line.host._waiting.take = broken
        line.send(1)
        with pytest.raises(TypeError, match="a bug"):
            await line.host.broken
