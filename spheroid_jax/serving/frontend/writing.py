"""One text on its way through the stages: sweep by sweep, however often one fails."""

import asyncio
import logging
import os
from typing import TYPE_CHECKING

import numpy as np

from spheroid_jax.serving.decoding import Decoder
from spheroid_jax.serving.decoding import Sweep as Planned
from spheroid_jax.serving.frontend.errors import ApiError
from spheroid_jax.serving.frontend.jobs import Job, Piece, Progress
from spheroid_jax.serving.frontend.model import Model
from spheroid_jax.serving.frontend.settings import Settings
from spheroid_jax.serving.frontend.stages import Route, Stages
from spheroid_jax.serving.frontend.trips import Key, Returned, TripFailed
from spheroid_jax.serving.wire.limits import WireError
from spheroid_jax.serving.wire.messages import Close, Sweep

if TYPE_CHECKING:
    from spheroid_jax.serving.frontend.requests import Writer

log = logging.getLogger(__name__)
_PAUSES = (0.02, 1.0)  # seconds between tries where there is no other way
_ON_THE_WAY = ("gone", "silent")  # a sweep may be, though nobody waits for it
_STUBBORN = 3  # failures of the same sweep that is refused, or breaks a stage


class Text:
    """A text of ``writer``: a decoder, and the way of its sweeps."""

    def __init__(
        self,
        writer: "Writer",
        job: Job,
        model: Model,
        deadline: float,
        progress: Progress,
    ) -> None:
        self.decoder = Decoder(
            job.prompt, job.length, job.method, job.sampling, model.places
        )
        self.progress = progress
        self._writer, self._job, self._model = writer, job, model
        self._stages, self._settings = writer.stages, writer.settings
        self._deadline = deadline
        self._request = os.urandom(16)
        self._number = self._attempt = 0
        self._route: Route | None = None
        self._avoid: set[str] = set()
        self._failures = 0  # in a row
        self._stubborn = 0
        self._pause = 0.0
        self._reason = ""
        self._told = 0  # log-probabilities that were given out
        self._pending: Key | None = None

    def piece(self, index: int, data: bytes) -> Piece:
        """A piece of it."""
        decoder, start = self.decoder, self._told
        logprobs: tuple[float, ...] = ()
        if self._job.logprobs:
            self._told += len(data)
            logprobs = tuple(decoder.logprobs[start : self._told])
        return Piece(index, data, logprobs, self.progress.trips, decoder.finish)

    async def step(self) -> bytes:
        """One sweep, however often it has to be tried; the bytes it made certain."""
        while True:
            planned = self.decoder.next()
            assert planned is not None  # not done
            if self._route is None:
                self._take(await self._way())
            try:
                returned = await self._trip(planned)
            except TripFailed as failure:
                await self._recover(failure)
                continue
            self._failures = self._stubborn = 0
            self._pause = 0.0
            return self._accept(planned, returned)

    def close(self) -> None:
        """It is over: stages may forget it."""
        route, attempt = self._route or (), self._attempt

        def tell() -> None:
            for link in route:
                link.post(Close(self._request, attempt))

        tell()
        for link in route:
            link.texts -= 1
        self._route = None
        if self._pending is None and not all(link.connected for link in route):
            # Its stage may not have noticed, and keep the slot for us to come back.
            self._pending = Key(self._request, self._number, attempt)
        if self._pending is not None:
            seconds = self._settings.sweep + 1.0
            self._stages.trips.abandon(self._pending, seconds, tell)
            self._pending = None

    async def _way(self) -> Route:
        """A way through the stages; waits for one."""
        loop = asyncio.get_running_loop()
        until = min(self._deadline, loop.time() + self._settings.patience)
        while True:
            if self._stages.model not in (None, self._model):
                raise ApiError(
                    "the model was replaced by another while this text was written; "
                    "ask again",
                    status=503,
                    code="model_replaced",
                )
            route = self._stages.route(self._avoid)
            if route is not None:
                return route
            if loop.time() >= until:
                raise unavailable(self._stages, self._settings)
            await self._stages.news(until - loop.time())

    def _take(self, route: Route) -> None:
        self._route = route
        for link in route:
            link.texts += 1

    async def _trip(self, planned: Planned) -> Returned:
        """Sends a sweep and waits for its result."""
        assert self._route is not None
        time = asyncio.get_running_loop().time
        left = self._deadline - time()
        if left <= 0:
            raise late(self._reason)
        for link in self._route:
            if not link.connected:  # its stage drops what it can't answer
                said = f"{self._stages.name(link)}: {link.told}"
                raise TripFailed("gone", said, link.address)
        seconds = min(left, self._settings.sweep)
        self._number += 1
        key = Key(self._request, self._number, self._attempt)
        route = tuple(link.address for link in self._route)
        answer = self._stages.trips.begin(key, route)
        self._pending = key
        sweep, row = self._message(planned, key, seconds)
        try:
            async with asyncio.timeout(seconds):
                await self._route[0].send(sweep, {"bytes": row})
                returned = await answer
        except TripFailed as failure:
            if failure.why not in _ON_THE_WAY:
                self._pending = None
            raise
        except TimeoutError:
            if time() >= self._deadline:
                raise late(self._reason or "the stages took too long") from None
            raise TripFailed("late", f"no answer in {seconds:.1f} s") from None
        except WireError as error:
            log.info("a sweep wasn't sent: %s", error)
            said = f"{self._stages.name(self._route[0])}: its connection ended"
            raise TripFailed("gone", said, route[0]) from None
        finally:
            self._stages.trips.end(key)
        self._pending = None
        return returned

    def _message(
        self, planned: Planned, key: Key, seconds: float
    ) -> tuple[Sweep, np.ndarray]:
        assert self._route is not None
        sampling = self._job.sampling
        row = np.zeros(planned.count, np.uint8)
        row[: len(planned.bytes)] = np.frombuffer(planned.bytes, np.uint8)
        sweep = Sweep(
            request=key.request,
            number=key.number,
            attempt=key.attempt,
            frontend=self._writer.frontend,
            deadline=seconds,
            start=planned.start,
            index=planned.index,
            known=planned.known,
            count=planned.count,
            route=tuple(link.address for link in self._route[1:]),
            fresh=planned.fresh,
            fill=planned.fill,  # type: ignore[arg-type]  # one of them
            answer=self._job.answer,  # type: ignore[arg-type]  # checked
            seed=sampling.seed,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            want_logprobs=self._job.logprobs,
            wire_dtype=self._writer.wire_dtype,
        )
        return sweep, row

    def _accept(self, planned: Planned, returned: Returned) -> bytes:
        """Takes a result; what makes no sense is the stages' fault."""
        result, arrays = returned
        window = planned.count - planned.known + 1
        drawn = arrays.get("bytes", np.zeros(0, np.uint8)).tobytes()
        guessed = b""
        if planned.fill == "drafted":
            context = arrays.get("context", np.zeros(0, np.uint8))
            guessed = context[planned.known :].tobytes()
        logprobs = arrays["logprob"].tolist() if "logprob" in arrays else []
        if len(drawn) != window or (self._job.logprobs and len(logprobs) != window):
            raise ApiError(
                f"stage {result.at} answered {len(drawn)} bytes where {window} were "
                "asked: are all hosts of the same version?",
                status=500,
                code="internal",
            )
        data = self.decoder.take(drawn, guessed, logprobs)
        self.progress.trips += 1
        self.progress.compute += sum(one.compute for one in result.seconds)
        self.progress.queue += sum(one.queue for one in result.seconds)
        self._writer.metrics.trips.inc()
        self._writer.metrics.bytes_out.inc(len(data))
        return data

    async def _recover(self, failure: TripFailed) -> None:
        """Makes ready for another try, elsewhere if there is another way."""
        self._writer.metrics.retries.labels(failure.why).inc()
        self.progress.retries += 1
        self._failures += failure.why != "busy"  # that passes, or the time does
        self._reason = str(failure)
        if failure.why in ("refused", "broken"):
            self._stubborn += 1
        if self._failures >= self._settings.attempts or self._stubborn >= _STUBBORN:
            raise ApiError(
                f"given up after {self._failures} tries; the last one: {failure}",
                status=500 if self._stubborn >= _STUBBORN else 503,
                code="internal" if self._stubborn >= _STUBBORN else "unavailable",
            )
        if failure.address is not None:
            self._avoid.add(failure.address)
        other = self._stages.route(self._avoid, strictly=True)
        if failure.why == "busy" and other is None:
            # The caches hold what they held: the same sweep, once more.
            self._attempt += 1
            self._number -= 1
        else:
            self._begin_anew()
        if other is None:
            self._avoid.clear()
            least, most = _PAUSES
            self._pause = min(most, 2 * self._pause or least)
            pause = self._pause
            left = self._deadline - asyncio.get_running_loop().time()
            await asyncio.sleep(max(0.0, min(pause, left)))

    def _begin_anew(self) -> None:
        self.close()
        self._attempt += 1
        self._number = 0
        self.decoder.restart()


def late(reason: str) -> ApiError:
    """The error for a request whose time is over."""
    said = f" ({reason})" if reason else ""
    return ApiError(
        f"the request's time is over{said}; ask for less, or later",
        status=504,
        code="timeout",
    )


def unavailable(stages: Stages, settings: Settings) -> ApiError:
    """The error for a block that has no stage."""
    return ApiError(
        f"{stages.absent()}; ask again later",
        status=503,
        code="unavailable",
        retry_after=settings.retry_after,
    )
