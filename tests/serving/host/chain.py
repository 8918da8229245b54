"""A tiny model of three stages over loopback, and a front end of a page."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Any

import jax
import numpy as np

from spheroid_jax.diffusion import NoiseLevels, chain_grid
from spheroid_jax.models import BlockDenoiser, InterfaceShape, TransformerShape
from spheroid_jax.serving.decoding import Decoder
from spheroid_jax.serving.generate import split
from spheroid_jax.serving.host.serve import Serving, facts_of, serve_host
from spheroid_jax.serving.host.settings import HostSettings
from spheroid_jax.serving.methods import Method, Sampling
from spheroid_jax.serving.stages import Stage, block_stages
from spheroid_jax.serving.wire.auth import Credentials, Identity
from spheroid_jax.serving.wire.connection import Connection
from spheroid_jax.serving.wire.dialling import dial
from spheroid_jax.serving.wire.messages import (
    Arrays,
    Close,
    Failure,
    Message,
    Result,
    Sweep,
)
from spheroid_jax.serving.wire.peers import Peers
from spheroid_jax.transport.http.tls import Token

TOKEN = Credentials.shared(Token("test-token-test-token"))
BLOCKS, WIDTH, PLACES = 3, 16, 16
Model = tuple[tuple[Stage, ...], tuple[Any, ...]]


def tiny_model() -> Model:
    """Stages and their parameters; untrained, but far from uniform."""
    shape = TransformerShape(width=WIDTH, heads=2, mlp_width=32, layers=1)
    model = BlockDenoiser(shape, InterfaceShape(WIDTH, PLACES, noisy_input_std=1.0))
    params = jax.jit(model.init, static_argnums=1)(jax.random.key(0), BLOCKS)
    phi = dict(params["interface"])
    phi["head"] = 40.0 * phi["head"]
    grid = chain_grid(NoiseLevels(), BLOCKS, "upper_edges")
    stages = block_stages(model, grid)
    return stages, split(stages, params | {"interface": phi})


async def start(
    model: Model,
    index: int,
    fingerprint: str = "f",
    peers: Peers | None = None,
    **settings: Any,
) -> Serving:
    """Serves a stage on a free port."""
    stages, parts = model
    chosen = HostSettings(**{"slots": 4, "max_batch": 4, "tick": 0.02, **settings})
    stage = stages[index]
    facts = facts_of(stage, fingerprint, "tiny", chosen)
    return await serve_host(
        stage, parts[index], facts, chosen, TOKEN, "127.0.0.1", 0, peers=peers
    )


class Front:
    """A front end: one connection to each stage."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses
        self.identity = Identity("frontend")
        self.wires: list[Connection] = []
        self._waiting: dict[tuple[bytes, int, int], asyncio.Future[Any]] = {}

    async def connect(self) -> None:
        for address in self.addresses:
            wire = await dial(address, TOKEN, self._heard, identity=self.identity)
            self.wires.append(wire)

    async def close(self) -> None:
        for wire in self.wires:
            await wire.close()

    async def _heard(self, wire: Connection, message: Message, arrays: Arrays) -> None:
        if isinstance(message, Result | Failure):
            key = (message.request, message.number, message.attempt)
            if (waiter := self._waiting.pop(key, None)) and not waiter.done():
                waiter.set_result((message, arrays))

    async def ask(self, sweep: Sweep, text: bytes) -> tuple[Any, Arrays]:
        key = (sweep.request, sweep.number, sweep.attempt)
        waiter = self._waiting[key] = asyncio.get_running_loop().create_future()
        await self.wires[0].send(sweep, {"bytes": np.frombuffer(text, np.uint8)})
        async with asyncio.timeout(60):
            return await waiter

    async def write(
        self,
        prompt: bytes,
        length: int,
        method: str,
        *,
        sampling: Sampling | None = None,
        answer: str = "last",
    ) -> tuple[bytes, int, list[float]]:
        """The text, its trips, its log-probabilities."""
        sampling = sampling or Sampling()
        decoder = Decoder(prompt, length, Method.parse(method), sampling, PLACES)
        request, number = secrets.token_bytes(16), 0
        while asked := decoder.next():
            sweep = Sweep(
                request=request,
                number=number,
                attempt=0,
                frontend=self.identity.id,
                deadline=60.0,
                start=asked.start,
                index=asked.index,
                known=asked.known,
                count=asked.count,
                route=tuple(self.addresses[1:]),
                fresh=asked.fresh,
                fill=asked.fill,  # type: ignore[arg-type]
                answer=answer,  # type: ignore[arg-type]
                seed=sampling.seed,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                want_logprobs=True,
            )
            padding = bytes(asked.count - len(asked.bytes))
            message, arrays = await self.ask(sweep, asked.bytes + padding)
            assert isinstance(message, Result), message
            context = arrays["context"].tobytes() if "context" in arrays else b""
            decoder.take(
                arrays["bytes"].tobytes(),
                context[asked.known :],
                arrays["logprob"].tolist(),
            )
            number += 1
        for wire in self.wires:
            await wire.send(Close(request, 0))
        return decoder.output, decoder.trips, decoder.logprobs


@contextlib.asynccontextmanager
async def chain(model: Model, **settings: Any) -> AsyncIterator[tuple[Any, Front]]:
    """All stages, and a front end that is connected to them."""
    stages = [await start(model, b, **settings) for b in range(BLOCKS)]
    front = Front([f"127.0.0.1:{stage.port}" for stage in stages])
    try:
        await front.connect()
        yield stages, front
    finally:
        await front.close()
        for stage in stages:
            await stage.close()
