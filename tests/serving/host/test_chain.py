"""Real stages over real connections: the text of one process, byte for byte."""

import asyncio
import socket
from typing import Any

import numpy as np
import pytest

from spheroid_jax.serving.generate import generate
from spheroid_jax.serving.host.serve import limits_of
from spheroid_jax.serving.methods import Sampling
from spheroid_jax.serving.wire.auth import Credentials, Identity
from spheroid_jax.serving.wire.codec import pack
from spheroid_jax.serving.wire.dialling import dial
from spheroid_jax.serving.wire.messages import Failure
from spheroid_jax.serving.wire.peers import Peers
from spheroid_jax.transport.http.tls import Token

from .chain import PLACES, WIDTH, Front, Model, chain, start, tiny_model
from .toys import looped, sweep

PROMPT, LENGTH = b"abcd", 5
METHODS = ("token", "one_sweep:expected")
MORE_METHODS = (
    "one_sweep:drafted",
    "one_sweep:drawn",
    "windowed=2:drawn",
    "windowed=3:drafted",
    "speculative=4",
    "sweeps=2:drawn",
    "sweeps=3:expected",
)


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny_model()


def _here(model: Model, method: str, **changes: Any) -> Any:
    stages, parts = model
    return generate(stages, parts, [PROMPT], LENGTH, method, **changes)


def test_the_largest_sweep_fits_into_a_frame_and_not_much_more(model: Model) -> None:
    stage = model[0][1]
    state = np.zeros((PLACES, WIDTH), np.float32)
    window = np.zeros((PLACES, 256), np.float32)
    message, arrays = sweep(1, bytes(PLACES), known=1, fill="expected")
    arrays |= {"state": state, "guess": state, "logs": window, "draft": window}
    _, *payload = pack(message, arrays)
    size = sum(map(len, payload))
    assert size <= limits_of(stage).sizes.payload < size + 200


def _same_as_here(model: Model, methods: tuple[str, ...]) -> None:
    @looped
    async def test() -> None:
        async with chain(model) as (_, front):
            for method in methods:
                text, trips, logs = await front.write(PROMPT, LENGTH, method)
                here = _here(model, method)
                assert (text, trips) == (here.texts[0], here.trips[0]), method
                assert np.allclose(logs, here.logprobs[0], atol=1e-4), method

    test()


def test_methods_write_what_one_process_writes(model: Model) -> None:
    _same_as_here(model, METHODS)


@pytest.mark.slow
@pytest.mark.parametrize("method", MORE_METHODS)
def test_every_method_writes_what_one_process_writes(model: Model, method: str) -> None:
    _same_as_here(model, (method,))


def test_sampling_and_answer_travel(model: Model) -> None:
    @looped
    async def test() -> None:
        async with chain(model) as (_, front):
            choices: dict[str, Any] = {
                "temperature": 0.7,
                "top_k": 5,
                "top_p": 0.9,
                "seed": 2**32 - 1,
            }
            text, _, _ = await front.write(
                PROMPT, LENGTH, "token", sampling=Sampling(**choices)
            )
            assert text == _here(model, "token", **choices).texts[0]
            text, _, _ = await front.write(PROMPT, LENGTH, "token", answer="ensemble")
            assert text == _here(model, "token", answer="ensemble").texts[0]

    test()


def test_texts_at_once_are_texts_one_by_one_and_leave_no_slot(model: Model) -> None:
    @looped
    async def test() -> None:
        async with chain(model) as (stages, front):
            seeds = range(4)
            texts = await asyncio.gather(
                *(
                    front.write(PROMPT, LENGTH, "token", sampling=Sampling(seed=s))
                    for s in seeds
                )
            )
            for seed, (text, _, _) in zip(seeds, texts, strict=True):
                assert text == _here(model, "token", seed=seed).texts[0]
            async with asyncio.timeout(5):
                while any(s.host.pong().slots_free < 4 for s in stages):
                    await asyncio.sleep(0.01)

    test()


def test_a_stage_that_is_gone_is_named(model: Model) -> None:
    @looped
    async def test() -> None:
        async with chain(model) as (stages, front):
            await stages[1].close()
            message, arrays = sweep(
                1,
                PROMPT,
                route=tuple(front.addresses[1:]),
                frontend=front.identity.id,
            )
            answer, _ = await front.ask(message, arrays["bytes"].tobytes())
            assert isinstance(answer, Failure)
            assert (answer.kind, answer.at) == ("peer", 0)
            assert front.addresses[1] in answer.text

    test()


def test_a_stage_of_another_checkpoint_in_the_route_is_refused(model: Model) -> None:
    @looped
    async def test() -> None:
        async with chain(model) as (_, front):
            other = await start(model, 1, fingerprint="another")
            route = (f"127.0.0.1:{other.port}", front.addresses[2])
            message, arrays = sweep(1, PROMPT, route=route, frontend=front.identity.id)
            answer, _ = await front.ask(message, arrays["bytes"].tobytes())
            await other.close()
            assert isinstance(answer, Failure)
            assert answer.kind == "refused"
            assert "fingerprint" in answer.text

    test()


def test_a_stage_dials_nobody_but_its_peers(model: Model) -> None:
    @looped
    async def test() -> None:
        dialled = []
        elsewhere = await asyncio.start_server(
            lambda reader, writer: dialled.append(writer), "127.0.0.1", 0
        )
        port = elsewhere.sockets[0].getsockname()[1]
        last = await start(model, 1)
        first = await start(model, 0, peers=Peers([f"127.0.0.1:{last.port}"]))
        front = Front([f"127.0.0.1:{stage.port}" for stage in (first, last)])
        await front.connect()
        for to, said in ((port, "--peers"), (last.port, "b:1, can't be reached")):
            route = (f"127.0.0.1:{to}", "b:1")  # the last one isn't dialled by first
            message, arrays = sweep(to, PROMPT, route=route, frontend=front.identity.id)
            answer, _ = await front.ask(message, arrays["bytes"].tobytes())
            assert isinstance(answer, Failure)
            assert said in answer.text
        assert dialled == []
        await front.close()
        for stage in (first, last):
            await stage.close()
        elsewhere.close()

    test()


def test_rubbish_on_one_connection_leaves_the_others_alone(model: Model) -> None:
    @looped
    async def test() -> None:
        async with chain(model) as (stages, front):
            other = Front(front.addresses)
            await other.connect()
            other.wires[0]._stream._transport.write(b"\x00" * 200)
            with socket.create_connection(("127.0.0.1", stages[0].port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                text, _, _ = await front.write(PROMPT, LENGTH, "token")
            assert text == _here(model, "token").texts[0]
            async with asyncio.timeout(5):
                await other.wires[0].wait_closed()
            await other.close()

    test()


def test_parameters_that_are_not_finite_break_the_request_alone(model: Model) -> None:
    stages, parts = model
    damaged = dict(parts[1])
    damaged["interface"] = {
        name: np.full_like(leaf, np.nan) if name == "head_bias" else leaf
        for name, leaf in damaged["interface"].items()
    }

    @looped
    async def test() -> None:
        async with chain((stages, (parts[0], damaged, parts[2]))) as (hosts, front):
            message, arrays = sweep(
                1,
                PROMPT,
                route=tuple(front.addresses[1:]),
                frontend=front.identity.id,
            )
            answer, _ = await front.ask(message, arrays["bytes"].tobytes())
            assert isinstance(answer, Failure)
            assert (answer.kind, answer.at) == ("broken", 1)
            assert "\n" not in answer.text
            assert hosts[1].host.pong().slots_free == 4
            assert not hosts[1].broken.done()

    test()


def test_a_front_end_that_goes_away_frees_its_slots(model: Model) -> None:
    @looped
    async def test() -> None:
        async with chain(model) as (hosts, front):
            other = Front(front.addresses)
            await other.connect()
            message, arrays = sweep(
                1,
                PROMPT,
                route=tuple(front.addresses[1:]),
                frontend=other.identity.id,
            )
            await other.ask(message, arrays["bytes"].tobytes())
            assert [h.host.pong().slots_free for h in hosts] == [3, 3, 3]
            for wire in other.wires:
                wire._stream.cut()  # without a word
            async with asyncio.timeout(5):
                while any(h.host.pong().slots_free < 4 for h in hosts):
                    await asyncio.sleep(0.01)

    test()


def test_nobody_without_the_token_comes_in(model: Model) -> None:
    @looped
    async def test() -> None:
        stage = await start(model, 0)
        wrong = Credentials.shared(Token("another-token-altogether"))
        with pytest.raises(ConnectionError):
            await dial(f"127.0.0.1:{stage.port}", wrong, identity=Identity("frontend"))
        await stage.close()

    test()
