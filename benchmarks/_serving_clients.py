"""Clients of a front end: one at a time, or many, each waiting for its answer."""

import asyncio
import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import numpy as np

TIMEOUT = 280.0  # seconds of a request; a front end gives up after 300


@dataclasses.dataclass(frozen=True)
class Answer:
    """One request as its client saw it.

    Attributes:
      seconds: until the whole answer was there.
      length: output bytes.
      trips: that it took.
      computing: seconds that stages computed for it, all together.
    """

    seconds: float
    length: int
    trips: int
    computing: float


@dataclasses.dataclass(frozen=True)
class Load:
    """What came of many clients.

    Attributes:
      answers: to all requests.
      errors: one line each.
      rate: output bytes per second while all clients were at work.
    """

    answers: tuple[Answer, ...]
    errors: tuple[str, ...]
    rate: float

    def latency(self, percent: float) -> float:
        """A percentile of the latencies, in seconds."""
        return float(np.percentile([each.seconds for each in self.answers], percent))

    @property
    def bytes_per_trip(self) -> float:
        """Output over trips, of all."""
        trips = sum(each.trips for each in self.answers)
        return sum(each.length for each in self.answers) / max(1, trips)


def body(prompt: int, length: int, method: str, **more: Any) -> dict[str, Any]:
    """A request for so many bytes after a prompt of so many."""
    text = ("the quick brown fox jumps over a lazy dog. " * 9)[:prompt]
    return {"prompt": text, "length": length, "method": method, **more}


def one_by_one(url: str, bodies: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """Sends requests one after the other; every one must be answered."""

    async def run() -> list[Answer]:
        async with _session() as session:
            return [await _ask(session, url, each) for each in bodies]

    return asyncio.run(run())


def closed_loop(
    url: str, request: Mapping[str, Any], clients: int, seconds: float, least: int = 2
) -> Load:
    """Clients that ask again as soon as they have an answer.

    Each goes on for ``seconds`` and for ``least`` requests; the rate is that of the
    time until the first of them stops.
    """
    return asyncio.run(_closed_loop(url, request, clients, seconds, least))


async def _closed_loop(
    url: str, request: Mapping[str, Any], clients: int, seconds: float, least: int
) -> Load:
    answers: list[tuple[float, Answer]] = []
    errors: list[str] = []
    stopped: list[float] = []
    began = time.perf_counter()

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        done = 0
        while done < least or time.perf_counter() - began < seconds:
            seed = number + clients * done
            try:
                answer = await _ask(session, url, {**request, "seed": seed})
                answers.append((time.perf_counter(), answer))
            except (RuntimeError, aiohttp.ClientError, TimeoutError) as error:
                errors.append(f"{type(error).__name__}: {error}")
            done += 1
        stopped.append(time.perf_counter())

    async with _session() as session:
        await asyncio.gather(*(client(session, n) for n in range(clients)))
    return Load(
        tuple(answer for _, answer in answers),
        tuple(errors),
        busy_rate(answers, began, min(stopped)),
    )


def busy_rate(
    answers: Sequence[tuple[float, Answer]], began: float, ended: float
) -> float:
    """Output bytes per second between two times; of an answer the share within them.

    Args:
      answers: each with the time at which it was complete.
      began, ended: while all clients were at work.
    """
    total = 0.0
    for at, answer in answers:
        inside = min(at, ended) - max(at - answer.seconds, began)
        total += answer.length * max(0.0, inside) / answer.seconds
    return total / (ended - began)


def median(answers: Sequence[Answer], field: str = "seconds") -> float:
    """Of a field of answers."""
    return statistics.median(getattr(answer, field) for answer in answers)


async def _ask(
    session: aiohttp.ClientSession, url: str, request: Mapping[str, Any]
) -> Answer:
    began = time.perf_counter()
    async with session.post(f"{url}/v1/generate", json=dict(request)) as response:
        content = await response.json(content_type=None)
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {content}")
    seconds = time.perf_counter() - began
    length, trips = content["length"], content["trips"]
    return Answer(seconds, length, trips, content["seconds_computing"])


def _session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(timeout=timeout, connector=connector)
