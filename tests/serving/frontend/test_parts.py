"""Text, choices, admission, the choice of a model, trips: each on its own."""

import asyncio
import base64
import dataclasses
import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spheroid_jax.serving.decoding import segments
from spheroid_jax.serving.frontend.admission import Admission
from spheroid_jax.serving.frontend.errors import ApiError
from spheroid_jax.serving.frontend.jobs import Piece, used_prompt
from spheroid_jax.serving.frontend.model import Model, Part, chosen, part_of
from spheroid_jax.serving.frontend.openai import Choice
from spheroid_jax.serving.frontend.text import TextStream, lossy
from spheroid_jax.serving.frontend.trips import Key, TripFailed, Trips
from spheroid_jax.serving.wire.messages import Failure, Result

# Likely to hold characters of all lengths, whole and cut.
TEXT = st.lists(
    st.binary(max_size=3) | st.text(max_size=2).map(str.encode), max_size=8
).map(b"".join)


@settings(max_examples=150, deadline=None)
@given(TEXT, st.lists(st.integers(0, 30), max_size=5))
def test_text_is_the_same_however_bytes_are_cut(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    stream = TextStream()
    text = "".join(stream.add(data[a:b]) for a, b in itertools.pairwise(places))
    assert text + stream.end() == data.decode("utf-8", "replace") == lossy(data)


@settings(max_examples=150, deadline=None)
@given(TEXT, TEXT, st.integers(0, 30))
def test_choices_tell_text_bytes_and_where_they_are(
    echo: bytes, data: bytes, cut: int
) -> None:
    choice = Choice(0, echo, logprobs=True)
    first, second = data[:cut], data[cut:]
    parts = [
        choice.add(Piece(0, first, (0.0,) * len(first))),
        choice.add(Piece(0, second, (0.0,) * len(second), finish="length")),
    ]
    text = "".join(part["text"] for part in parts)
    assert text == lossy(echo + data)
    assert b"".join(base64.b64decode(part["bytes"]) for part in parts) == data
    offsets = [o for part in parts for o in part["logprobs"]["text_offset"]]
    assert offsets == sorted(offsets)
    for byte, offset in zip(data, offsets, strict=True):
        # A byte of ASCII is itself; another is in a character that isn't ASCII.
        assert text[offset] == chr(byte) if byte < 128 else ord(text[offset]) > 127


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 200), st.integers(0, 80), st.integers(1, 60))
def test_used_prompt_is_what_the_first_segment_reads(
    prompt: int, length: int, places: int
) -> None:
    used = used_prompt(b"x" * prompt, length, places)
    if not length or not prompt:
        assert used == 0
        return
    first = next(segments(prompt, length, places))
    assert used == prompt - first.origin <= places


def part(index: int, mark: str = "a", count: int = 2) -> Part:
    return Part(mark, "m", "blocktrain", index, count, 8, 4)


def model(mark: str) -> Model:
    return part(0, mark).model


@pytest.mark.parametrize(
    ("parts", "current", "expected"),
    [
        ([], None, None),
        ([], "a", "a"),
        ([(0, "a")], None, "a"),
        ([(0, "a"), (0, "b"), (1, "b")], None, "b"),
        ([(0, "a"), (0, "b"), (1, "b")], "a", "b"),  # b is whole, a isn't
        ([(0, "a"), (1, "a"), (0, "b"), (1, "b")], "a", "a"),
        ([(0, "a"), (1, "a"), (0, "b"), (1, "b")], "b", "b"),
        ([(0, "a"), (0, "b")], "b", "b"),
        ([(0, "b")], "a", "a"),  # a may come back
        ([(0, "b"), (1, "b")], "a", "b"),
    ],
)
def test_which_model_is_served(
    parts: list[tuple[int, str]], current: str | None, expected: str | None
) -> None:
    given = None if current is None else model(current)
    found = chosen([part(index, mark) for index, mark in parts], given)
    assert found == (None if expected is None else model(expected))


@pytest.mark.parametrize(
    "change",
    [{"index": 2}, {"index": -1}, {"places": 0}, {"slots": 0}, {"count": "x"}],
)
def test_a_stage_that_says_what_cannot_be_is_refused(change: dict[str, object]) -> None:
    facts = dataclasses.asdict(part(1))
    assert part_of(facts) == part(1)
    with pytest.raises(ValueError, match="it "):
        part_of({**facts, **change})
    facts.pop("fingerprint")
    with pytest.raises(ValueError, match="what it holds"):
        part_of(facts)


def test_admission_is_bounded_and_first_come_first() -> None:
    async def main() -> None:
        capacity = 2
        admission = Admission(lambda: capacity, queue=3)
        first = admission.enter(3)
        second = admission.enter(2)
        assert (admission.inside, admission.waiting) == (2, 3)
        with pytest.raises(ApiError) as busy:
            admission.enter(1)
        assert busy.value.status == 429
        first[0].close()
        first[0].close()  # twice is once
        assert first[2].inside
        assert not second[0].inside
        second[0].close()  # gave up while it waited
        first[1].close()
        assert second[1].inside
        assert (admission.inside, admission.waiting) == (2, 0)
        capacity = 0  # stages went: who is inside stays
        third = admission.enter(3)
        first[2].close()
        assert (admission.inside, admission.waiting) == (1, 3)
        capacity = 3
        admission.changed()
        assert (admission.inside, admission.waiting) == (3, 1)
        for ticket in (*third, second[1]):
            ticket.close()
        assert (admission.inside, admission.waiting) == (0, 0)
        turn = asyncio.ensure_future(third[0].turn())
        turn.cancel()  # a wait that is given up leaves the ticket as it is
        await asyncio.gather(turn, return_exceptions=True)

    asyncio.run(main())


def test_trips_are_told_apart_by_request_number_and_attempt() -> None:
    async def main() -> None:
        trips, one = Trips(), b"1" * 16
        key = Key(one, 4, 2)
        answer = trips.begin(key, ("a", "b"))
        trips.returned(Result(one, 4, 1, 1), {})  # of the attempt before
        trips.returned(Result(one, 3, 2, 1), {})
        trips.returned(Result(b"2" * 16, 4, 2, 1), {})
        trips.lost("c", "gone", "")
        assert not answer.done()
        trips.returned(Result(one, 4, 2, 1), {})
        assert (await answer).result.number == 4
        trips.returned(Result(one, 4, 2, 1), {})  # once more
        trips.failed(Failure(one, 4, 2, 0, "lost"), "a")
        assert len(trips) == 0

        for kind, at, text, culprit in (
            ("peer", "a:1", "b:2 can't be reached", "b:2"),
            ("peer", "a:1", "is going away", "a:1"),
            ("peer", "b:2", "is going away", "b:2"),
            ("broken", "a:1", "", "a:1"),
            ("lost", "b:2", "", None),  # it may do after all
            ("refused", "a:1", "the next stage, b:2, holds another model", None),
            ("late", "a:1", "the next stage, b:2, didn't take it", "a:1"),
        ):
            answer = trips.begin(key, ("a:1", "b:2"))
            trips.failed(Failure(one, 4, 2, 0, kind, text), at)  # type: ignore[arg-type]
            with pytest.raises(TripFailed) as failure:
                await answer
            assert failure.value.address == culprit
            assert "a:1" not in str(failure.value)
            assert "b:2" not in str(failure.value)

    asyncio.run(main())


@pytest.mark.parametrize("ends", ["result", "failure", "time"])
def test_stages_are_told_again_once_an_abandoned_trip_ends(ends: str) -> None:
    async def main() -> None:
        trips, told = Trips(), []
        key = Key(b"1" * 16, 1, 0)
        trips.begin(key, ("a",))
        seconds = 0.05 if ends == "time" else 60.0
        trips.abandon(key, seconds, lambda: told.append(1))
        assert trips.abandoned == 1
        if ends == "result":
            trips.returned(Result(*key, 0), {})
        elif ends == "failure":
            trips.failed(Failure(*key, 0, "late"), "a")
        else:
            await asyncio.sleep(0.1)
        assert told == [1]
        assert trips.abandoned == len(trips) == 0

    asyncio.run(main())
