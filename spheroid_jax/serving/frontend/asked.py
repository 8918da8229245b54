"""What a request asks for: its fields, checked, as texts to write."""

import base64
import binascii
import dataclasses
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.frontend.errors import ApiError
from spheroid_jax.serving.frontend.fields import (
    CompletionRequest,
    Decoding,
    GenerateRequest,
)
from spheroid_jax.serving.frontend.jobs import Job
from spheroid_jax.serving.frontend.settings import Settings
from spheroid_jax.serving.methods import Method, Sampling, check_answer

STOPS = 4  # sequences at which a text may end
STOP_BYTES = 256  # of each
USUAL_LENGTH = 16  # bytes, as many as OpenAI's tokens
_SEEDS = 2**32
# Fields of OpenAI's, and their values that change nothing.
_UNSUPPORTED = {
    "suffix": (None, ""),
    "frequency_penalty": (None, 0.0),
    "presence_penalty": (None, 0.0),
    "logit_bias": (None, {}),
}


class Asked(NamedTuple):
    """A request that makes sense.

    Attributes:
      jobs: a text each, by prompt, then by choice.
      prompts: each once.
      model: that it names; None for whatever is served.
      stream: whether pieces are told as they come.
      usage: whether a stream ends with the number of bytes.
      echo: whether a text begins with its prompt.
    """

    jobs: tuple[Job, ...]
    prompts: tuple[bytes, ...]
    model: str | None
    stream: bool = False
    usage: bool = False
    echo: bool = False

    @property
    def seed(self) -> int:
        """Of the first text; every other has the next one."""
        return self.jobs[0].sampling.seed


def completion(request: CompletionRequest, settings: Settings, usual: Method) -> Asked:
    """What a request for completions asks.

    Args:
      request: its fields.
      settings: the limits.
      usual: the method where none is named.

    Raises:
      ApiError: 400, names the field.
    """
    _refuse_unsupported(request)
    prompts = [_sized(prompt, settings) for prompt in _prompts(request.prompt)]
    choices = 1 if request.n is None else request.n
    if len(prompts) * choices > settings.choices:
        raise ApiError(
            f"{len(prompts)} prompts with n={choices} are more than the "
            f"{settings.choices} texts that a request may ask for; ask for fewer",
            param="n" if choices > 1 else "prompt",
        )
    logprobs = request.logprobs is not None
    if logprobs and request.logprobs not in (0, 1):
        raise ApiError(
            f"logprobs is {request.logprobs}, but only those of the bytes that were "
            "chosen are known; give 0 or 1",
            param="logprobs",
        )
    if logprobs and request.echo:
        raise ApiError(
            "the prompt's bytes have no log-probabilities; leave echo or logprobs out",
            param="echo",
        )
    options = request.stream_options
    if options is not None and not request.stream:
        raise ApiError(
            "stream_options goes with stream=true; leave it out, or stream",
            param="stream_options",
        )
    length = _length("max_tokens", request.max_tokens, settings)
    repeated = [prompt for prompt in prompts for _ in range(choices)]
    return Asked(
        _jobs(request, repeated, length, usual, logprobs),
        tuple(prompts),
        request.model,
        stream=bool(request.stream),
        usage=options is not None and bool(options.include_usage),
        echo=bool(request.echo),
    )


def generate(request: GenerateRequest, settings: Settings, usual: Method) -> Asked:
    """What a request for /v1/generate asks; arguments and errors of ``completion``."""
    if request.prompt is not None and request.prompt_bytes is not None:
        raise ApiError(
            "there is a prompt and prompt_bytes; give one of them", param="prompt_bytes"
        )
    prompt = _encoded(request.prompt or "", "prompt")
    if request.prompt_bytes is not None:
        try:
            prompt = base64.b64decode(request.prompt_bytes, validate=True)
        except (binascii.Error, ValueError):
            raise ApiError(
                "prompt_bytes isn't base64; encode the bytes, with padding",
                param="prompt_bytes",
            ) from None
    prompt = _sized(prompt, settings)
    length = _length("length", request.length, settings)
    jobs = _jobs(request, [prompt], length, usual, bool(request.logprobs))
    return Asked(jobs, (prompt,), request.model, stream=bool(request.stream))


def _refuse_unsupported(request: CompletionRequest) -> None:
    for name, harmless in _UNSUPPORTED.items():
        if getattr(request, name) not in harmless:
            raise ApiError(
                f"{name} isn't supported: leave it out",
                code="unsupported_parameter",
                param=name,
            )
    if request.best_of not in (None, 1 if request.n is None else request.n):
        raise ApiError(
            "best_of isn't supported: leave it out, or ask for n texts",
            code="unsupported_parameter",
            param="best_of",
        )


def _prompts(given: str | Sequence[int | str | list[int]] | None) -> list[bytes]:
    """The prompts, of any of the four forms of the field."""
    if given is None or isinstance(given, str):
        return [_encoded(given or "", "prompt")]
    kinds = {type(item) for item in given}
    if len(kinds) > 1:
        raise ApiError(
            "prompt mixes kinds: give a string, a list of strings, a list of bytes as "
            "numbers, or a list of such lists",
            param="prompt",
        )
    if not kinds or int in kinds:
        return [bytes(item for item in given if isinstance(item, int))]
    return [
        _encoded(item, "prompt") if isinstance(item, str) else bytes(item)
        for item in given
        if not isinstance(item, int)
    ]


def _encoded(text: str, param: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ApiError(
            f"{param} has half a surrogate pair, which is no text", param=param
        ) from None


def _sized(prompt: bytes, settings: Settings) -> bytes:
    if len(prompt) > settings.prompt:
        raise ApiError(
            f"prompt has {len(prompt)} bytes; give at most {settings.prompt}: only the "
            "last ones are read anyway",
            code="context_length_exceeded",
            param="prompt",
        )
    return prompt


def _length(name: str, given: int | None, settings: Settings) -> int:
    length = min(USUAL_LENGTH, settings.length) if given is None else given
    if not 0 <= length <= settings.length:
        raise ApiError(
            f"{name} is {length}; give a number of bytes from 0 to {settings.length}",
            param=name,
        )
    return length


def _stops(given: str | list[str] | None) -> tuple[bytes, ...]:
    texts = [given] if isinstance(given, str) else given or []
    stops = tuple(_encoded(text, "stop") for text in texts)
    if len(stops) > STOPS or not all(0 < len(stop) <= STOP_BYTES for stop in stops):
        raise ApiError(
            f"stop has {len(stops)} sequences; give at most {STOPS}, each of 1 to "
            f"{STOP_BYTES} bytes",
            param="stop",
        )
    return stops


def _method(request: Decoding, usual: Method) -> Method:
    """The method of a name such as ``windowed=16:drafted``, or of separate fields."""
    numbers = {"window": request.window, "sweeps": request.sweeps}
    given = {name: number for name, number in numbers.items() if number is not None}
    if request.method is None:
        for name in (*given, *(["fill"] if request.fill is not None else [])):
            raise ApiError(
                f"{name} goes with a method: give method as well", param=name
            )
        return usual
    text, takes = request.method, {"windowed": "window", "speculative": "window"}
    for name, number in given.items():
        if takes.get(text, text) != name:
            raise ApiError(
                f"{name} doesn't go with method {text[:60]!r}; leave it out",
                param=name,
            )
        text = f"{text}={number}"
    return Method.parse(text, request.fill)


def _jobs(
    request: Decoding,
    prompts: Sequence[bytes],
    length: int,
    usual: Method,
    logprobs: bool,
) -> tuple[Job, ...]:
    stops = _stops(request.stop)
    seed = secrets.randbelow(_SEEDS) if request.seed is None else request.seed
    try:
        method = _method(request, usual)
        sampling = Sampling(
            temperature=1.0 if request.temperature is None else request.temperature,
            top_k=0 if request.top_k is None else request.top_k,
            top_p=1.0 if request.top_p is None else request.top_p,
            seed=seed,
            stop=stops,
        )
        answer = check_answer("last" if request.answer is None else request.answer)
    except ServingError as error:
        name = str(error).split(" ", 1)[0]
        known = name in type(request).__struct_fields__
        raise ApiError(str(error), param=name if known else None) from None
    seeds = ((seed + i) % _SEEDS for i in range(len(prompts)))
    return tuple(
        Job(
            prompt,
            length,
            method,
            dataclasses.replace(sampling, seed=own),
            answer,
            logprobs,
        )
        for prompt, own in zip(prompts, seeds, strict=True)
    )
