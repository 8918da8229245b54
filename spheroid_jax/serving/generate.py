"""Generation in one process: all stages here, many texts at once.

The same decoding as over a network, without the network: what ``token`` writes here is
what every exact method writes anywhere, for the same seed.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from spheroid_jax.models.cached import Cache
from spheroid_jax.serving.decoding import Decoder, Sweep
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.methods import Method, Sampling, check_answer
from spheroid_jax.serving.packing import Row, bucket, pack
from spheroid_jax.serving.rows import Drawn, Passed, Rows
from spheroid_jax.serving.showing import Shifted, Watch
from spheroid_jax.serving.stages import AUTOREGRESSIVE, Stage

Stages = tuple[Stage, ...]
Params = Any

# A row that is done leaves the batch when many have: a shape takes seconds to compile.
_ROWS = 8


@dataclasses.dataclass(frozen=True)
class Generated:
    """What was written, a list entry a prompt.

    Attributes:
      texts: without the prompt and without the stop sequence.
      trips: sweeps that each took.
      finish: ``length`` or ``stop``.
      logprobs: of the bytes of ``texts`` under the model's own distribution, before
        temperature and filters, in nats.
    """

    texts: list[bytes]
    trips: list[int]
    finish: list[str]
    logprobs: list[list[float]]


def generate(
    stages: Stages,
    params: Params,
    prompts: Sequence[bytes | str],
    length: int,
    method: str | Method = "token",
    *,
    fill: str | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: Sequence[bytes | str] = (),
    answer: str = "last",
    batch: int = 64,
    watch: Watch | None = None,
) -> Generated:
    """Writes up to ``length`` bytes after each prompt.

    A sweep is compiled once a shape: positions are padded to 1, 4, 8, 16, 32, ..., and
    texts to powers of eight.

    Args:
      stages: all of a model, as from ``block_stages`` or ``layer_stages``.
      params: of the whole model, or the stages' parts in a tuple.
      prompts: bytes, or text that is encoded as UTF-8. Of a prompt longer than the
        model's places the last bytes count; an empty one is read as one newline.
      length: output bytes at most; more than there are places is fine.
      method: as ``Method.parse`` reads it; a reference that isn't made of blocks knows
        ``token`` only.
      fill: what stands for undecided bytes, unless ``method`` says it.
      temperature: 0 takes the best byte.
      top_k: number of best bytes to draw from, 0 for all.
      top_p: the fewest best bytes of this probability; 1 for all.
      seed: row r draws by ``seed + r`` (modulo 2^32), so its text is that of the prompt
        alone under that seed.
      stop: sequences that end a text.
      answer: ``last``, or ``ensemble`` of all blocks.
      batch: texts that are written at once; each has a slot of the cache.
      watch: told what happens meanwhile.

    Raises:
      ServingError: an argument makes no sense, or the model's parameters aren't finite.
    """
    if isinstance(prompts, (str, bytes)):
        raise ServingError("prompts is one text; put it into a list")
    if isinstance(method, str):
        method = Method.parse(method, fill)
    elif fill and fill != method.fill:
        raise ServingError(f"fill is {fill!r}, but method is {method}; give one")
    check_model(stages, method, check_answer(answer))
    if not isinstance(batch, int) or batch < 1:
        raise ServingError(f"batch is {batch!r}; give a whole number from 1")
    sampling = Sampling(
        temperature, top_k, top_p, seed, tuple(as_bytes("stop", s) for s in stop)
    )
    decoders = [
        Decoder(
            as_bytes("prompt", prompt),
            length,
            method,
            dataclasses.replace(sampling, seed=(seed + row) % 2**32),
            stages[0].places,
        )
        for row, prompt in enumerate(prompts)
    ]
    parts = params if isinstance(params, tuple) else split(stages, params)
    for first in range(0, len(decoders), batch):
        some = decoders[first : first + batch]
        seen = None if watch is None else Shifted(watch, first)
        _write(stages, parts, some, answer, batch, seen)
    return Generated(
        [decoder.output for decoder in decoders],
        [decoder.trips for decoder in decoders],
        [decoder.finish or "" for decoder in decoders],
        [decoder.logprobs for decoder in decoders],
    )


def split(stages: Stages, params: Params) -> tuple[Params, ...]:
    """The stages' parts of a whole model's parameters."""
    return tuple(stage.part(params) for stage in stages)


def as_bytes(name: str, text: bytes | str) -> bytes:
    """Bytes, or the UTF-8 of a text.

    Raises:
      ServingError: the text has half a surrogate pair, or it is neither.
    """
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise ServingError(f"{name} is a {type(text).__name__}; give bytes or a text")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ServingError(
            f"{name} has half a surrogate pair, which UTF-8 can't say; give bytes"
        ) from None


def check_model(stages: Stages, method: Method, answer: str) -> None:
    """Refuses what stages can't do.

    Raises:
      ServingError: they aren't all of one model in order, or a reference is asked for
        more than ``token`` and ``last``.
    """
    if [stage.index for stage in stages] != list(range(stages[0].count)):
        raise ServingError(
            f"stages are {[stage.index for stage in stages]}; give all "
            f"{stages[0].count} of the model in order"
        )
    if stages[0].kind != AUTOREGRESSIVE:
        return
    for what, value, known in (
        ("method", method.name, "token"),
        ("answer", answer, "last"),
    ):
        if value != known:
            raise ServingError(
                f"{what} is {value!r}, which needs a model of blocks; an "
                f"autoregressive reference knows {known!r} only"
            )


@functools.partial(
    jax.jit, static_argnames=("stages", "fill", "answer"), donate_argnames=("caches",)
)
def sweep(
    stages: Stages,
    parts: tuple[Params, ...],
    caches: tuple[Cache, ...],
    rows: Rows,
    *,
    fill: str,
    answer: str,
) -> tuple[tuple[Cache, ...], Drawn]:
    """All stages on a batch of rows, one after another; donates the caches."""
    passed: Passed | Drawn | None = None
    new = []
    for stage, part, cache in zip(stages, parts, caches, strict=True):
        assert not isinstance(passed, Drawn)
        cache, passed = stage.step(part, cache, rows, passed, fill=fill, answer=answer)
        new.append(cache)
    assert isinstance(passed, Drawn)
    return tuple(new), passed


def _write(
    stages: Stages,
    parts: tuple[Params, ...],
    decoders: list[Decoder],
    answer: str,
    batch: int,
    watch: Watch | None,
) -> None:
    """Drives decoders, each in the slot of its number, until all are done."""
    slots = bucket(len(decoders), batch, _ROWS)
    caches = tuple(stage.init_cache(slots) for stage in stages)
    while turn := _turn(decoders):
        fill = _fill(turn.values())
        rows = pack(
            [_row(slot, s, decoders[slot].sampling) for slot, s in turn.items()],
            bucket(len(turn), slots, _ROWS),
            _positions(max(s.count for s in turn.values()), stages[0].places),
        )
        if watch is not None:
            texts, positions = rows.bytes.shape
            watch.sweep(texts, positions, fill)
        caches, drawn = sweep(stages, parts, caches, rows, fill=fill, answer=answer)
        for slot, data in _give(drawn, turn, decoders):
            if watch is not None:
                watch.wrote(slot, data, bool(decoders[slot].finish))


def _positions(count: int, places: int) -> int:
    """Up to four cost about as much as two, and are one shape less."""
    return bucket(count if count == 1 else min(max(count, 4), places), places)


def _turn(decoders: list[Decoder]) -> dict[int, Sweep]:
    """The sweeps that go together next, by slot.

    A batch has one fill; a sweep that has nothing to fill goes along with any but
    ``written``, where the last block draws without regard to what the first one would.
    """
    asked = {slot: decoder.next() for slot, decoder in enumerate(decoders)}
    turn = {slot: s for slot, s in asked.items() if s is not None}
    fill = _fill(turn.values())
    any_fill = fill != "written"
    return {
        slot: s
        for slot, s in turn.items()
        if s.fill == fill or (any_fill and s.count == s.known)
    }


def _fill(sweeps: Iterable[Sweep]) -> str:
    """The fill of a batch: of the first sweep that has something to fill."""
    return next((s.fill for s in sweeps if s.count > s.known), "given")


def _row(slot: int, s: Sweep, sampling: Sampling) -> Row:
    return Row(
        slot,
        s.start,
        s.index,
        s.known,
        s.count,
        np.frombuffer(s.bytes, np.uint8),
        sampling.seed,
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
    )


def _give(
    drawn: Drawn, turn: dict[int, Sweep], decoders: list[Decoder]
) -> list[tuple[int, bytes]]:
    """Hands every decoder its bytes; by slot, those that stand."""
    made = []
    bytes_, logprobs, context = jax.device_get(drawn)
    for row, (slot, s) in enumerate(turn.items()):
        window = slice(s.known - 1, s.count)
        logs = logprobs[row, window]
        if not np.isfinite(logs).all():
            raise ServingError(
                "the model's probabilities aren't finite; its parameters, or those of "
                "the checkpoint, are broken"
            )
        used = context[row, s.known : s.count] if s.fill == "drafted" else []
        data = decoders[slot].take(
            bytes(bytes_[row, window].tolist()), bytes(list(used)), logs.tolist()
        )
        made.append((slot, data))
    return made
