"""The HTTP interface: completions as OpenAI has them, plain generation, health."""

import asyncio
import contextlib
import dataclasses
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec
from aiohttp import web

from spheroid_jax.serving.frontend import openai, plain
from spheroid_jax.serving.frontend.asked import Asked, completion, generate
from spheroid_jax.serving.frontend.assembly import Frontend
from spheroid_jax.serving.frontend.errors import ApiError, body_of
from spheroid_jax.serving.frontend.fields import (
    CompletionRequest,
    Decoding,
    GenerateRequest,
    read,
)
from spheroid_jax.serving.frontend.front import (
    OUTCOME,
    NameOf,
    front,
    json_body,
    outcome_of,
)
from spheroid_jax.serving.frontend.jobs import Figures, Piece, merged
from spheroid_jax.serving.frontend.metrics import CONTENT_TYPE
from spheroid_jax.serving.frontend.model import Model
from spheroid_jax.serving.frontend.settings import Settings
from spheroid_jax.serving.frontend.texts import Texts
from spheroid_jax.serving.frontend.writing import unavailable
from spheroid_jax.serving.methods import Method, usual_method
from spheroid_jax.transport.http.limits import Limits
from spheroid_jax.transport.http.reception import Reception
from spheroid_jax.transport.http.requests import expect_later, sign, while_there
from spheroid_jax.transport.http.server import LIMITS, RECEPTION

_Fields = TypeVar("_Fields", bound=Decoding)
_DONE = b"data: [DONE]\n\n"
_SAFE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_STREAM = {
    **_SAFE,
    "Content-Type": "text/event-stream; charset=utf-8",
    "X-Accel-Buffering": "no",  # or nginx would hold events back
}


class Answer(Protocol):
    """What an answer looks like, at once or in events."""

    def took(self, figures: Figures) -> None:
        """What it took; said before ``last`` and ``whole``."""

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """An event."""

    def last(self) -> dict[str, Any] | None:
        """The event before the end, if there is one."""

    def whole(self, texts: list[Piece]) -> dict[str, Any]:
        """All of it."""


def make_app(
    frontend: Frontend, limits: Limits, name_of: NameOf | None = None
) -> web.Application:
    """The application, for ``transport.http.server.serve``.

    Args:
      frontend: that answers.
      limits: of connections and of HTTP.
      name_of: whose token it is; without it everybody may ask.
    """
    limits = _without_strangers(limits) if name_of is None else _for_clients(limits)
    reception = Reception(limits)
    app = web.Application(middlewares=[front(frontend.metrics, reception, name_of)])
    app[LIMITS], app[RECEPTION] = limits, reception
    api = Api(frontend, limits)
    for method, path, handler in (
        ("POST", "/v1/completions", api.completions),
        ("POST", "/v1/generate", api.generate),
        ("GET", "/v1/models", api.models),
        ("GET", "/v1/models/{name:.+}", api.model),
        ("GET", "/healthz", api.healthz),
        ("GET", "/metrics", api.metrics),
    ):
        app.router.add_route(method, path, handler, expect_handler=expect_later)
    app.on_response_prepare.append(sign)
    return app


def _without_strangers(limits: Limits) -> Limits:
    """Who needs no token is on this machine: nobody is told apart."""
    never = 2 * limits.stranger_seconds  # when all who said nothing are gone
    return dataclasses.replace(
        limits, connections_each=limits.connections, new_seconds=never
    )


def _for_clients(limits: Limits) -> Limits:
    """One token may have many connections: the queue is what all share."""
    each = max(limits.connections_each, limits.connections // 4)
    return dataclasses.replace(limits, connections_each=each)


class Api:
    """The handlers."""

    def __init__(self, frontend: Frontend, limits: Limits) -> None:
        self._frontend, self._limits = frontend, limits

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        return await self._respond(
            request, CompletionRequest, completion, openai.Completion
        )

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/generate."""
        return await self._respond(request, GenerateRequest, generate, plain.Text)

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models."""
        model = self._frontend.stages.model
        since = self._frontend.since
        empty: dict[str, Any] = {"object": "list", "data": []}
        return _json(empty if model is None else openai.models(model, since))

    async def model(self, request: web.Request) -> web.Response:
        """GET /v1/models/NAME."""
        model = self._frontend.stages.model
        name = request.match_info["name"]
        if model is None or model.name != name:
            raise _no_model(name, model)
        return _json(openai.card(model, self._frontend.since))

    async def healthz(self, request: web.Request) -> web.Response:
        """GET /healthz: 200 if every block has a stage."""
        stages = self._frontend.stages
        missing = stages.missing
        facts: dict[str, Any] = {
            "status": "missing" if missing else "ok",
            "missing": missing,
            "model": stages.model and stages.model.name,
            "fingerprint": stages.model and stages.model.fingerprint,
        }
        if missing:
            facts["why"] = stages.absent()
        if self._frontend.admission.closed:
            facts["status"] = "draining"
        return _json(facts, 200 if facts["status"] == "ok" else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics."""
        body = self._frontend.metrics.exposition()
        return web.Response(body=body, headers={**_SAFE, "Content-Type": CONTENT_TYPE})

    def _usual(self) -> Method:
        """Where a request names none; of what is served, as far as it is known."""
        if self._frontend.method is not None:
            return self._frontend.method
        model = self._frontend.stages.model
        return Method() if model is None else usual_method(model.kind, model.count)

    async def _respond(
        self,
        request: web.Request,
        fields: type[_Fields],
        understand: Callable[[_Fields, Settings, Method], Asked],
        form: Callable[[Asked, Model], Answer],
    ) -> web.StreamResponse:
        """Reads a request's fields, and answers in the form that belongs to them."""
        settings = self._frontend.settings
        body = await json_body(request, settings.body, self._limits.message_seconds)
        asked = understand(read(body, fields), settings, self._usual())

        async def run() -> web.StreamResponse:
            model = await self._ready(asked)
            return await self._write(request, asked, model, form(asked, model))

        return await while_there(request, run())

    async def _ready(self, asked: Asked) -> Model:
        """The model, once one is known; whether it is the one that was asked for."""
        stages, settings = self._frontend.stages, self._frontend.settings
        time_ = asyncio.get_running_loop().time
        until = time_() + min(settings.patience, settings.request)
        while stages.model is None and time_() < until:
            await stages.news(until - time_())
        model = stages.model
        if model is None:
            raise unavailable(stages, settings)
        if asked.model is not None and asked.model != model.name:
            raise _no_model(asked.model, model)
        job = asked.jobs[0]
        plain_way = job.method.name == "token" and job.answer == "last"
        if model.kind == "autoregressive" and not plain_way:
            named = "method" if job.method.name != "token" else "answer"
            raise ApiError(
                f"{model.name} is autoregressive, it writes a byte after the other; "
                f"leave {named} out",
                param=named,
            )
        return model

    async def _write(
        self, request: web.Request, asked: Asked, model: Model, answer: Answer
    ) -> web.StreamResponse:
        frontend = self._frontend
        began = asyncio.get_running_loop().time()
        tickets = frontend.admission.enter(len(asked.jobs))
        frontend.metrics.bytes_in.inc(sum(map(len, asked.prompts)))
        texts = Texts(
            frontend.writer,
            asked.jobs,
            model,
            tickets,
            began + frontend.settings.request,
        )
        async with texts:
            pieces = self._timed(texts, answer, began)
            async with contextlib.aclosing(pieces):
                if asked.stream:
                    return await self._stream(request, pieces, answer)
                found: dict[int, list[Piece]] = {}
                async for piece in pieces:
                    found.setdefault(piece.index, []).append(piece)
            whole = [merged(found[i]) for i in sorted(found)]
            return _json(answer.whole(whole))

    async def _timed(
        self, texts: Texts, answer: Answer, began: float
    ) -> AsyncGenerator[Piece, None]:
        """The pieces of texts; notes what they took."""
        now = asyncio.get_running_loop().time
        metrics, first = self._frontend.metrics, 0.0
        sizes: Counter[int] = Counter()
        async for piece in texts.pieces():
            if not first and piece.data:
                first = now() - began
                metrics.first.observe(first)
            sizes[piece.index] += len(piece.data)
            if piece.finish is not None:
                if sizes[piece.index]:
                    metrics.trips_per_byte.observe(piece.trips / sizes[piece.index])
                if len(sizes) == len(texts.progress):
                    answer.took(Figures(first, now() - began, tuple(texts.progress)))
            yield piece
        metrics.whole.observe(now() - began)

    async def _stream(
        self, request: web.Request, pieces: AsyncIterator[Piece], answer: Answer
    ) -> web.StreamResponse:
        """Sends pieces as events; an error before the first has a status of its own."""
        response = web.StreamResponse(headers=_STREAM)
        try:
            async for piece in pieces:
                if not response.prepared:
                    await response.prepare(request)
                await self._send(request, response, answer.chunk(piece))
            if (last := answer.last()) is not None:
                await self._send(request, response, last)
        except ApiError as error:
            if not response.prepared:
                raise
            request[OUTCOME] = outcome_of(error.status)
            await self._send(request, response, body_of(error))
            response.force_close()
            return response
        await self._put(request, response, _DONE)
        return response

    async def _send(
        self,
        request: web.Request,
        response: web.StreamResponse,
        event: Mapping[str, Any],
    ) -> None:
        data = b"data: " + msgspec.json.encode(event) + b"\n\n"
        await self._put(request, response, data)

    async def _put(
        self, request: web.Request, response: web.StreamResponse, data: bytes
    ) -> None:
        """Sends, within the time that a client has for it; else it is cut."""
        try:
            async with asyncio.timeout(self._frontend.settings.stall):
                await response.write(data)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client takes nothing") from None


def _no_model(name: str, model: Model | None) -> ApiError:
    there = "no model is served yet" if model is None else f"there is {model.name}"
    return ApiError(
        f"there is no model {name[:80]!r}: {there}",
        status=404,
        code="model_not_found",
        param="model",
    )


def _json(body: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body),
        status=status,
        content_type="application/json",
        headers=_SAFE,
    )
