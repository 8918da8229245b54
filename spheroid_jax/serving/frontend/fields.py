"""The fields of requests: their types, and what to say of a field that is wrong."""

import re
from typing import Annotated, Any, TypeVar

import msgspec

from spheroid_jax.serving.frontend.errors import ApiError

_PLACE = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.S)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.S)

Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]
# Whole numbers that every JSON parser holds exactly; what they may be is said later.
Whole = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
Count = Annotated[int, msgspec.Meta(ge=1, le=128)]
Shape = TypeVar("Shape", bound=msgspec.Struct)


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a stream tells besides."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # of no effect


class Decoding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of both: how to decode and to draw."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    seed: Whole | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    method: str | None = None
    fill: str | None = None
    window: Whole | None = None
    sweeps: Whole | None = None
    answer: str | None = None


class CompletionRequest(Decoding, frozen=True, kw_only=True):
    """OpenAI's fields, and ours; a token is a byte."""

    prompt: str | list[Byte | str | list[Byte]] | None = None
    max_tokens: Whole | None = None
    n: Count | None = None
    stream_options: StreamOptions | None = None
    echo: bool | None = None
    logprobs: Whole | None = None
    user: str | None = None  # of no effect
    # Of OpenAI's, and of no use with this model: only values that change nothing.
    suffix: str | None = None
    best_of: Whole | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None


class GenerateRequest(Decoding, frozen=True, kw_only=True):
    """The plain way: one prompt, bytes in and out."""

    prompt: str | None = None
    prompt_bytes: str | None = None  # base64, in place of a text
    length: Whole | None = None
    logprobs: bool | None = None


def read(body: bytes, shape: type[Shape]) -> Shape:
    """A JSON body as the fields of ``shape``.

    Raises:
      ApiError: it isn't JSON, lacks sense, or has a field that isn't known.
    """
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise _explained(str(error)) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError, ValueError) as error:
        why = str(error).removeprefix("JSON is malformed: ")[:200] or "nested too deep"
        raise ApiError(f"the body isn't JSON: {why}", code="invalid_json") from None


def _explained(text: str) -> ApiError:
    found = _PLACE.match(text)
    what, where = (found[1], found[2] or "") if found else (text, "")
    if unknown := _UNKNOWN.match(what):
        name = ".".join(part for part in (where, unknown[1]) if part)[:80]
        said = f"there is no field {name}: leave it out, or mend its name"
        return ApiError(said, code="unknown_parameter", param=name)
    what = what[:1].lower() + what[1:200]
    if not where:
        return ApiError(f"the body: {what}", code="invalid_type")
    return ApiError(f"{where}: {what}", code="invalid_type", param=where)
