"""What requests may say: each wrong one is a 400 that names the field."""

import json
import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spheroid_jax.serving.frontend.asked import Asked, completion, generate
from spheroid_jax.serving.frontend.errors import ApiError, body_of
from spheroid_jax.serving.frontend.fields import (
    CompletionRequest,
    GenerateRequest,
    read,
)
from spheroid_jax.serving.frontend.settings import Settings
from spheroid_jax.serving.methods import Method

LIMITS = Settings(length=100, prompt=1000, choices=4)
USUAL = Method.parse("windowed=4")


def asked(body: dict[str, Any] | bytes) -> Asked:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return completion(read(data, CompletionRequest), LIMITS, USUAL)


def refused(body: dict[str, Any] | bytes) -> ApiError:
    with pytest.raises(ApiError) as found:
        asked(body)
    assert found.value.status == 400
    assert "\n" not in str(found.value)
    return found.value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 1e7}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 257}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({"seed": 2**70}, "seed"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 101}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 5}, "n"),
        ({"prompt": ["a"] * 5}, "prompt"),
        ({"prompt": "x" * 1001}, "prompt"),
        ({"prompt": [256]}, "prompt[0]"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": [[1], [300]]}, "prompt[1][0]"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": ["a", [1]]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"stop": 3}, "stop"),
        ({"logprobs": 2}, "logprobs"),
        ({"logprobs": 1, "echo": True}, "echo"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"presence_penalty": -1}, "presence_penalty"),
        ({"logit_bias": {"50": 1}}, "logit_bias"),
        ({"temprature": 1}, "temprature"),
        ({"method": "windowd=4"}, "method"),
        ({"method": "windowed"}, "method"),
        ({"method": "token", "window": 3}, "window"),
        ({"method": "windowed", "window": 0}, "window"),
        ({"method": "windowed=4", "window": 4}, "window"),
        ({"method": "windowed", "window": 4, "sweeps": 2}, "sweeps"),
        ({"method": "one_sweep", "fill": "guessed"}, "fill"),
        ({"method": "speculative=4", "fill": "drawn"}, "fill"),
        ({"window": 4}, "window"),
        ({"fill": "drawn"}, "fill"),
        ({"answer": "first"}, "answer"),
    ],
)
def test_a_wrong_field_is_named(body: dict[str, Any], param: str) -> None:
    error = refused(body)
    assert error.param == param
    assert body_of(error)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b'"a"', b'{"top_p": NaN}', b'{"prompt": "\xff"}'],
)
def test_what_is_no_object_of_json(body: bytes) -> None:
    assert refused(body).code in ("invalid_json", "invalid_type")


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none(word: str) -> None:
    refused(f'{{"temperature": {word}}}'.encode())


def test_what_is_asked() -> None:
    plain = asked({})
    assert plain.prompts == (b"",)
    (job,) = plain.jobs
    assert (job.length, job.method, job.answer) == (16, USUAL, "last")
    assert (job.sampling.temperature, job.sampling.top_p) == (1.0, 1.0)
    assert {job.logprobs, plain.stream, plain.echo, plain.usage} == {False}

    full = asked(
        {
            "model": "m",
            "prompt": [[1, 2], [3]],
            "max_tokens": 0,
            "n": 2,
            "seed": 2**32 - 1,
            "temperature": 0,
            "top_k": 3,
            "top_p": 0.5,
            "stop": ["é", "\n"],
            "stream": True,
            "stream_options": {"include_usage": True, "include_obfuscation": False},
            "method": "windowed",
            "window": 9,
            "fill": "drawn",
            "answer": "ensemble",
            "logprobs": 0,
            "best_of": 2,
            "user": "anne",
            "suffix": None,
            "logit_bias": {},
            "frequency_penalty": 0,
        }
    )
    assert [job.prompt for job in full.jobs] == [b"\x01\x02"] * 2 + [b"\x03"] * 2
    assert [job.sampling.seed for job in full.jobs] == [2**32 - 1, 0, 1, 2]
    assert {str(job.method) for job in full.jobs} == {"windowed=9:drawn"}
    job = full.jobs[0]
    assert job.sampling.stop == (b"\xc3\xa9", b"\n")
    assert (job.sampling.top_k, job.sampling.top_p) == (3, 0.5)
    assert (job.length, job.answer, job.logprobs) == (0, "ensemble", True)
    assert full.stream
    assert full.usage
    assert full.model == "m"


def test_generate_takes_text_or_bytes() -> None:
    def ask(body: dict[str, Any]) -> Asked:
        data = json.dumps(body).encode()
        return generate(read(data, GenerateRequest), LIMITS, USUAL)

    assert ask({"prompt": "é"}).prompts == (b"\xc3\xa9",)
    assert ask({"prompt_bytes": "/wA="}).prompts == (b"\xff\x00",)
    assert ask({}).prompts == (b"",)
    for body, param in (
        ({"prompt_bytes": "/wA"}, "prompt_bytes"),
        ({"prompt_bytes": "a b="}, "prompt_bytes"),
        ({"prompt_bytes": "é"}, "prompt_bytes"),
        ({"prompt": "a", "prompt_bytes": "YQ=="}, "prompt_bytes"),
        ({"length": 101}, "length"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"prompt": ["a"]}, "prompt"),
    ):
        with pytest.raises(ApiError) as found:
            ask(body)
        assert found.value.param == param


def answered(body: bytes) -> Asked | None:
    """What is asked; None for what is refused, as it should be."""
    error = None
    try:
        return asked(body)
    except ApiError as found:
        error = found
    assert error.status == 400
    assert json.dumps(body_of(error)).encode()  # can be sent
    return None


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner)
    ),
    max_leaves=5,
)
NAMES = st.sampled_from(CompletionRequest.__struct_fields__) | st.text(max_size=10)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_whatever_is_said_is_served_or_refused(body: dict[str, Any]) -> None:
    found = answered(json.dumps(body).encode())
    if found is None:
        return
    assert 1 <= len(found.jobs) <= LIMITS.choices
    for job in found.jobs:
        assert 0 <= job.length <= LIMITS.length
        assert math.isfinite(job.sampling.temperature)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_whatever_bytes_come(body: bytes) -> None:
    answered(body)
