"""The HTTP interface over fake stages: what clients see."""

import asyncio
import base64
import itertools
import json
import random
from typing import Any

import aiohttp
import openai
import pytest

from spheroid_jax.serving.frontend.text import lossy
from spheroid_jax.serving.methods import Method
from tests.serving.frontend.fakes import PLACES, House, house, written


def client(it: House, **given: Any) -> openai.AsyncOpenAI:
    options = {"api_key": "unused", "max_retries": 0, **given}
    return openai.AsyncOpenAI(base_url=f"{it.url}/v1", **options)


async def post(it: House, body: Any, path: str = "/v1/completions") -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(it.url + path, json=body) as answer,
    ):
        return answer.status, await answer.json()


async def got(it: House, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(it.url + path) as answer,
    ):
        return answer.status, await answer.text()


def test_openai_client_writes_lists_and_streams() -> None:
    async def main() -> None:
        async with house() as it, client(it) as api:
            expected = written(7, b"Hello", 20)
            whole = await api.completions.create(
                model="fake", prompt="Hello", max_tokens=20, seed=7
            )
            choice = whole.choices[0]
            assert choice.text == lossy(expected)
            assert base64.b64decode(choice.bytes) == expected  # type: ignore[attr-defined]
            assert choice.finish_reason == "length"
            assert whole.usage is not None
            assert whole.usage.prompt_tokens == 5
            assert whole.usage.completion_tokens == 20
            assert whole.usage.total_tokens == 25
            assert whole.seed == 7  # type: ignore[attr-defined]

            listed = await api.models.list()
            assert [model.id for model in listed.data] == ["fake"]
            assert (await api.models.retrieve("fake")).id == "fake"

            stream = await api.completions.create(
                model="fake",
                prompt="Hello",
                max_tokens=20,
                seed=7,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"method": "token"},
            )
            chunks = [chunk async for chunk in stream]
            told = [chunk for chunk in chunks if chunk.choices]
            assert len(told) == 20  # a trip each: token by token
            assert "".join(c.choices[0].text for c in told) == lossy(expected)
            parts = [base64.b64decode(c.choices[0].bytes) for c in told]  # type: ignore[attr-defined]
            assert b"".join(parts) == expected
            assert told[-1].choices[0].finish_reason == "length"
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.completion_tokens == 20
            await it.until(it.idle)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:8471", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("localhost.evil.example:8471", 403),
        ("", 403),
    ],
)
def test_a_page_whose_name_points_here_is_kept_out(host: str, status: int) -> None:
    async def main() -> None:
        async with house() as it, aiohttp.ClientSession() as session:
            asked = session.post(
                f"{it.url}/v1/completions",
                json={"prompt": "a", "max_tokens": 1},
                headers={"Host": host},
            )
            async with asked as answer:
                assert answer.status == status

    asyncio.run(main())


def test_openai_client_raises_its_typed_errors() -> None:
    async def main() -> None:
        names = {"spheroid_" + "k" * 20: "anne"}
        async with house(name_of=names.get) as it:
            async with client(it, api_key="spheroid_" + "k" * 20) as api:
                ask = api.completions.create
                await ask(model="fake", prompt="a", max_tokens=1)
                with pytest.raises(openai.NotFoundError) as unknown:
                    await ask(model="gpt", prompt="a")
                assert unknown.value.code == "model_not_found"
                with pytest.raises(openai.BadRequestError) as wrong:
                    await ask(model="fake", prompt="a", temperature=-1)
                assert wrong.value.param == "temperature"
                with pytest.raises(openai.BadRequestError) as field:
                    await ask(model="fake", prompt="a", suffix="b")
                assert field.value.param == "suffix"
                for stage in it.stages:
                    stage.fail = ["broken"] * 9
                with pytest.raises(openai.InternalServerError):
                    await ask(model="fake", prompt="a")
            for key in ("short", "spheroid_" + "x" * 20):
                async with client(it, api_key=key) as api:
                    with pytest.raises(openai.AuthenticationError):
                        await api.models.list()
            status, _ = await got(it, "/healthz")
            assert status == 200  # needs no token

    asyncio.run(main())


@pytest.mark.parametrize(
    ("method", "trips"),
    [
        ({"method": "token"}, 30),
        ({}, None),  # speculative=16
        ({"method": "speculative", "window": 4}, None),
        ({"method": "speculative=8:drafted"}, None),
        ({"method": "sweeps", "sweeps": 64}, None),
    ],
)
def test_exact_methods_write_the_same(method: dict[str, Any], trips: int) -> None:
    async def main() -> None:
        async with house() as it:
            body = {"prompt": "same", "length": 30, "seed": 5, **method}
            status, answer = await post(it, body, "/v1/generate")
            assert status == 200
            assert base64.b64decode(answer["bytes"]) == written(5, b"same", 30)
            assert answer["retries"] == 0
            assert answer["trips"] == (trips or answer["trips"])
            assert answer["trips"] <= 30
            assert method or answer["method"] == "speculative=16"
            assert answer["seconds"] >= answer["seconds_to_first"] > 0

    asyncio.run(main())


def test_choices_have_seeds_of_their_own_and_come_in_order() -> None:
    async def main() -> None:
        async with house() as it:
            body = {
                "prompt": ["one", "two"],
                "n": 2,
                "max_tokens": 6,
                "seed": 2**32 - 2,
            }
            status, answer = await post(it, body)
            assert status == 200
            found = [base64.b64decode(c["bytes"]) for c in answer["choices"]]
            seeds = (2**32 - 2, 2**32 - 1, 0, 1)
            prompts = (b"one", b"one", b"two", b"two")
            assert found == [
                written(seed, prompt, 6)
                for seed, prompt in zip(seeds, prompts, strict=True)
            ]
            assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
            assert answer["usage"]["prompt_tokens"] == 6

    asyncio.run(main())


def test_prompts_of_all_forms() -> None:
    async def main() -> None:
        async with house() as it:
            for prompt, expected in (
                ("é", [b"\xc3\xa9"]),
                (None, [b""]),
                ("", [b""]),
                ([], [b""]),
                ([0, 255], [b"\x00\xff"]),
                ([[1], [2, 3]], [b"\x01", b"\x02\x03"]),
                (["a", ""], [b"a", b""]),
            ):
                body = {"prompt": prompt, "max_tokens": 3, "seed": 1, "temperature": 0}
                status, answer = await post(it, body)
                assert status == 200
                found = [base64.b64decode(c["bytes"]) for c in answer["choices"]]
                assert found == [
                    written((1 + i) % 2**32, text, 3) for i, text in enumerate(expected)
                ]

    asyncio.run(main())


def test_long_prompts_count_their_last_bytes_and_too_long_ones_are_refused() -> None:
    async def main() -> None:
        async with house() as it:
            long = "x" * (64 << 10)
            status, answer = await post(it, {"prompt": long, "max_tokens": 8})
            assert status == 200
            # Eight bytes of output need seven places beside the prompt's.
            assert answer["usage"]["prompt_tokens"] == PLACES - 7
            assert answer["usage"]["prompt_bytes"] == 64 << 10
            status, answer = await post(it, {"prompt": long + "x"})
            assert (status, answer["error"]["param"]) == (400, "prompt")
            status, answer = await post(it, {"prompt": "x" * (10 << 20)})
            assert (status, answer["error"]["code"]) == (413, "too_large")
            await it.until(it.idle)

    asyncio.run(main())


def test_a_seed_is_told_and_writes_the_same_again() -> None:
    async def main() -> None:
        async with house() as it:
            _, first = await post(it, {"prompt": "a", "max_tokens": 9})
            again = {"prompt": "a", "max_tokens": 9, "seed": first["seed"]}
            _, second = await post(it, again)
            _, other = await post(it, {"prompt": "a", "max_tokens": 9})
            assert second["choices"] == first["choices"]
            assert other["seed"] != first["seed"]

    asyncio.run(main())


def test_stop_echo_and_logprobs() -> None:
    async def main() -> None:
        async with house() as it:
            # ASCII is rare in what the fake writes: stop at bytes that it does write.
            text = next(
                t
                for t in (written(s, b"q", 40) for s in range(1000))
                if any(b < 128 for b in t[3:30])
            )
            seed = next(s for s in range(1000) if written(s, b"q", 40) == text)
            place = next(i for i in range(3, 30) if text[i] < 128)
            cut = text.index(text[place])
            base = {"prompt": "q", "seed": seed, "max_tokens": 40}
            body = {**base, "stop": chr(text[place])}
            _, answer = await post(it, body)
            (choice,) = answer["choices"]
            assert choice["finish_reason"] == "stop"
            assert base64.b64decode(choice["bytes"]) == text[:cut]

            _, answer = await post(it, {**base, "echo": True})
            assert answer["choices"][0]["text"] == lossy(b"q" + text)
            assert base64.b64decode(answer["choices"][0]["bytes"]) == text

            _, answer = await post(it, {**base, "logprobs": 1})
            told = answer["choices"][0]["logprobs"]
            assert told["token_logprobs"] == [-float(b) for b in text]
            assert len(told["tokens"]) == len(told["text_offset"]) == 40
            shown = answer["choices"][0]["text"]
            for name, offset in zip(told["tokens"], told["text_offset"], strict=True):
                if not name.startswith("bytes:"):
                    assert shown[offset] == name
            _, answer = await post(it, {**base, "max_tokens": 0, "echo": True})
            assert answer["choices"][0]["text"] == "q"

    asyncio.run(main())


def test_streams_are_what_whole_answers_are() -> None:
    async def main() -> None:
        async with house() as it, aiohttp.ClientSession() as session:
            body = {"prompt": ["é", "b"], "n": 2, "max_tokens": 24, "seed": 3}
            body |= {"method": "windowed=5:drawn", "echo": True}
            _, whole = await post(it, body)
            texts = [""] * 4
            raw = [b""] * 4
            url = f"{it.url}/v1/completions"
            async with session.post(url, json={**body, "stream": True}) as answer:
                assert answer.content_type == "text/event-stream"
                events = (await answer.text()).split("\n\n")
            assert events[-2:] == ["data: [DONE]", ""]
            for event in events[:-2]:
                (choice,) = json.loads(event.removeprefix("data: "))["choices"]
                texts[choice["index"]] += choice["text"]
                raw[choice["index"]] += base64.b64decode(choice["bytes"])
            assert texts == [c["text"] for c in whole["choices"]]
            assert raw == [base64.b64decode(c["bytes"]) for c in whole["choices"]]

            plain = {"prompt": "p", "length": 12, "stream": True, "logprobs": True}
            plain |= {"method": "token"}
            async with session.post(f"{it.url}/v1/generate", json=plain) as answer:
                events = (await answer.text()).split("\n\n")
            told = [json.loads(e.removeprefix("data: ")) for e in events[:-2]]
            data = b"".join(base64.b64decode(t["bytes"]) for t in told[:-1])
            assert told[-1]["done"]
            assert (told[-1]["length"], told[-1]["trips"]) == (12, 12)
            assert data == written(told[-1]["seed"], b"p", 12)
            assert [t["logprobs"] for t in told[:-1]] == [[-float(b)] for b in data]

    asyncio.run(main())


def test_events_come_as_bytes_are_decided() -> None:
    async def main() -> None:
        async with house() as it, client(it) as api:
            it.stages[2].slow = 0.1
            time = asyncio.get_running_loop().time
            stream = await api.completions.create(
                model="fake",
                prompt="a",
                max_tokens=6,
                stream=True,
                extra_body={"method": "token"},
            )
            came = [time() async for _ in stream]
            assert all(0.08 < b - a < 1.0 for a, b in itertools.pairwise(came))

    asyncio.run(main())


def test_the_usual_method_is_the_front_ends() -> None:
    async def main() -> None:
        async with house(method=Method.parse("windowed=10:drawn")) as it:
            _, answer = await post(it, {"prompt": "a", "max_tokens": 20})
            assert answer["method"] == "windowed=10:drawn"
            assert answer["choices"][0]["trips"] == 2
            _, answer = await post(it, {"prompt": "a", "method": "token"})
            assert answer["choices"][0]["trips"] == 16

    asyncio.run(main())


def test_an_autoregressive_model_takes_its_own_way_only() -> None:
    async def main() -> None:
        async with house(kind="autoregressive") as it:
            status, _ = await post(it, {"prompt": "a"})
            assert status == 200
            for wrong in ({"method": "windowed=4"}, {"answer": "ensemble"}):
                status, answer = await post(it, {"prompt": "a", **wrong})
                assert (status, answer["error"]["param"]) == (400, next(iter(wrong)))

    asyncio.run(main())


def test_what_is_not_there() -> None:
    async def main() -> None:
        async with house() as it, aiohttp.ClientSession() as session:
            for method, path, status in (
                ("GET", "/v1/chat/completions", 404),
                ("GET", "/v1/completions", 405),
                ("GET", "/v1/models/other", 404),
                ("POST", "/metrics", 405),
            ):
                async with session.request(method, it.url + path) as answer:
                    assert answer.status == status
                    body = await answer.json()
                    assert body["error"]["message"]
            url = f"{it.url}/v1/completions"
            async with session.post(url, data=b'{"prompt": "a"}') as answer:
                assert answer.status == 415  # no page of another site can send JSON
            head = {"Content-Type": "application/json"}
            for data in (b"", b"{", b'{"temperature": NaN}', b"\xff", b"[" * 100_000):
                async with session.post(url, data=data, headers=head) as answer:
                    assert answer.status == 400
                    assert (await answer.json())["error"]["code"] in (
                        "invalid_json",
                        "invalid_type",
                    )

    asyncio.run(main())


def test_spoilt_bodies_are_refused_and_nothing_else_happens() -> None:
    async def main() -> None:
        chance = random.Random(0)
        whole = json.dumps(
            {"prompt": ["a", "b"], "max_tokens": 3, "temperature": 0.5, "stop": ["x"]}
            | {"n": 1, "seed": 3, "method": "windowed=4:drawn", "stream": False}
        ).encode()
        async with house() as it, aiohttp.ClientSession() as session:
            seen = set()
            for _ in range(150):
                data = bytearray(whole)
                for _ in range(chance.randint(1, 4)):
                    place = chance.randrange(len(data))
                    data[place : place + chance.randint(0, 3)] = chance.randbytes(
                        chance.randint(0, 2)
                    )
                async with session.post(
                    f"{it.url}/v1/completions",
                    data=bytes(data),
                    headers={"Content-Type": "application/json"},
                ) as answer:
                    seen.add(answer.status)
                    body = await answer.json()
                    assert ("error" in body) == (answer.status != 200)
            assert 400 in seen
            assert seen <= {200, 400, 404}
            await it.until(it.idle)

    asyncio.run(main())


def test_metrics_add_up_and_health_names_what_is_missing() -> None:
    async def main() -> None:
        async with house((1, 2)) as it:
            await post(it, {"prompt": "abc", "max_tokens": 10, "method": "token"})
            await post(it, {"prompt": "abc", "max_tokens": -1})
            _, text = await got(it, "/metrics")
            for line in (
                'spheroid_serving_requests_total{outcome="ok"} 1.0',
                'spheroid_serving_requests_total{outcome="refused"} 1.0',
                "spheroid_serving_prompt_bytes_total 3.0",
                "spheroid_serving_output_bytes_total 10.0",
                "spheroid_serving_trips_total 10.0",
                "spheroid_serving_trips_per_byte_sum 1.0",
                "spheroid_serving_request_seconds_count 1.0",
                "spheroid_serving_first_byte_seconds_count 1.0",
                "spheroid_serving_in_flight 0.0",
                "spheroid_serving_queue 0.0",
                "spheroid_serving_capacity 8.0",
                'spheroid_serving_retries_total{why="lost"} 0.0',
                'spheroid_serving_stage_up{block="1",replica="0"} 1.0',
                'spheroid_serving_stage_up{block="1",replica="1"} 1.0',
            ):
                assert line in text, line
            assert await got(it, "/healthz") == (
                200,
                '{"status":"ok","missing":[],"model":"fake","fingerprint":"f0"}',
            )
            await it.stages[1].stop()
            await it.until(lambda: len(it.frontend.stages.live(1)) == 1)
            assert (await got(it, "/healthz"))[0] == 200  # there is a replica
            await it.stages[2].stop()
            await it.until(lambda: bool(it.frontend.stages.missing))
            status, text = await got(it, "/healthz")
            assert status == 503
            assert json.loads(text)["missing"] == [1]
            assert "block 1 has no stage (replica 0: it" in json.loads(text)["why"]
            for stage in it.stages:
                assert str(stage.address.rpartition(":")[2]) not in text
            _, text = await got(it, "/metrics")
            assert 'spheroid_serving_stage_up{block="1",replica="0"} 0.0' in text

    asyncio.run(main())
