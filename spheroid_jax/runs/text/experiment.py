"""Every way of decoding on the same prompts and seeds, read by another model."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spheroid_jax.data import evaluation_windows, load_corpus
from spheroid_jax.models import Autoregressive
from spheroid_jax.reports.text import FIRST, REAL
from spheroid_jax.runs.opening import corpus_facts, environment
from spheroid_jax.runs.text.measures import (
    Judge,
    distinct,
    longest_run,
    mean_and_error,
    repeated,
)
from spheroid_jax.runs.workdir import as_json
from spheroid_jax.serving.errors import ServingError
from spheroid_jax.serving.generate import Generated, generate
from spheroid_jax.serving.loading import Run, load_model, open_run
from spheroid_jax.serving.methods import FILLS, Method

ENSEMBLE = "+ensemble"
DEFAULT_METHODS = (
    "token",
    "token+ensemble",
    *(f"speculative={w}" for w in (8, 16, 32)),
    *(f"windowed={w}:{fill}" for fill in FILLS for w in (2, 4, 8, 16)),
    *(f"sweeps={n}:expected" for n in (2, 4, 8)),
    *(f"one_sweep:{fill}" for fill in FILLS),
)
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is compared.

    Attributes:
      checkpoint: run of the model that writes.
      judge: run of the model that reads; its end-to-end reference.
      prompts: how many, spread evenly over the validation text of the writer's corpus.
      prompt_bytes: of each.
      length: bytes written after each.
      methods: as ``Method.parse`` reads them, with ``+ensemble`` where all blocks
        answer; ``token`` is always among them.
      temperature: of all draws.
      seed: of the first prompt.
      timings: how often each method is timed, after it was compiled; 0 for never.
    """

    checkpoint: str
    judge: str
    prompts: int = 64
    prompt_bytes: int = 64
    length: int = 64
    methods: tuple[str, ...] = DEFAULT_METHODS
    temperature: float = 1.0
    seed: int = 0
    timings: int = 1

    def __post_init__(self) -> None:
        for name, least in (
            ("prompts", 1),
            ("prompt_bytes", 1),
            ("length", 1),
            ("timings", 0),
        ):
            if getattr(self, name) < least:
                raise ServingError(
                    f"{name} is {getattr(self, name)}; give a number from {least}"
                )
        for text in self.methods:
            parse_method(text)


def parse_method(text: str) -> tuple[Method, str]:
    """Method and answer of a text such as ``windowed=4:drawn+ensemble``.

    >>> str(parse_method("token+ensemble")[0]), parse_method("token+ensemble")[1]
    ('token', 'ensemble')
    """
    plain = text.removesuffix(ENSEMBLE)
    return Method.parse(plain), "last" if plain == text else "ensemble"


def study(settings: Settings, say: Say) -> dict[str, Any]:
    """Runs the comparison and returns its summary.

    Raises:
      ServingError: the runs can't be compared, or can't be loaded.
      CorpusError: the corpus isn't there, or is too small.
    """
    began = time.perf_counter()
    writer, judge_run = open_run(settings.checkpoint), _judge_run(settings.judge)
    _check_apart(writer, judge_run)
    judge = _load_judge(judge_run, settings)
    stages, parts, facts = load_model(writer.directory)
    data = writer.config.data
    corpus = load_corpus(data.corpus, mirror=data.mirror)
    prompts, real = _prompts(corpus.valid, settings)
    reader = _Reader(judge, prompts)

    def write(method: str | Method, answer: str = "last", blocks: int = 0) -> Generated:
        some = tuple(
            dataclasses.replace(s, count=blocks, grid=s.grid[:blocks])
            for s in stages[:blocks]
        )
        return generate(
            some or stages,
            parts[:blocks] if blocks else parts,
            prompts,
            settings.length,
            method,
            temperature=settings.temperature,
            seed=settings.seed,
            answer=answer,
            batch=len(prompts),
        )

    rows = [reader.row(REAL, real)]
    say(_told(rows[-1]))
    jobs = [(text, *parse_method(text), 0) for text in _with_token(settings.methods)]
    if stages[0].count > 1:
        jobs.append((FIRST, Method(), "last", 1))
    for name, method, answer, blocks in jobs:
        result = write(method, answer, blocks)
        seconds = [
            _timed(lambda m=method, a=answer, b=blocks: write(m, a, b))  # type: ignore[misc]
            for _ in range(settings.timings)
        ]
        rows.append(reader.row(name, result.texts, result.trips, seconds))
        say(_told(rows[-1]))
    return {
        "settings": dataclasses.asdict(settings),
        "model": facts._asdict(),
        "blocks": stages[0].count,
        "judge": {"run": str(judge_run.directory), "round": reader.judge_round},
        "corpus": corpus_facts(corpus),
        "rows": rows,
        "samples": _samples(reader, prompts),
        "environment": environment(),
        "seconds": time.perf_counter() - began,
    }


class _Reader:
    """Has the judge read what was written, beside what ``token`` wrote."""

    def __init__(self, judge: tuple[Judge, int], prompts: Sequence[bytes]):
        self._judge, self.judge_round = judge
        self._prompts = prompts
        self._token: np.ndarray | None = None
        self.texts: dict[str, list[bytes]] = {}

    def row(
        self,
        name: str,
        texts: list[bytes],
        trips: list[int] | None = None,
        seconds: Sequence[float] = (),
    ) -> dict[str, Any]:
        """A row of the summary."""
        costs = self._judge.cross_entropies(self._prompts, texts)
        self.texts[name] = texts
        if name == "token":
            self._token = costs
        ce, error = mean_and_error(costs)
        row: dict[str, Any] = {"name": name, "ce": ce, "ce_error": error}
        if self._token is not None:
            more, more_error = mean_and_error(costs - self._token)
            row |= {"more": more, "more_error": more_error}
            pairs = zip(texts, self.texts["token"], strict=True)
            row["same"] = float(np.mean([ours == theirs for ours, theirs in pairs]))
        written = sum(map(len, texts))
        return row | {
            "distinct": distinct(texts),
            "repeated": float(np.mean([repeated(text) for text in texts])),
            "longest_run": float(np.mean([longest_run(text) for text in texts])),
            "bytes_per_trip": written / sum(trips) if trips else None,
            "seconds_per_byte": min(seconds) / written if seconds else None,
        }


def _judge_run(path: str) -> Run:
    """A run's end-to-end reference, whatever else it has trained."""
    reference = Path(path) / "checkpoints" / "end_to_end"
    return open_run(reference if reference.is_dir() else path)


def _check_apart(writer: Run, judge: Run) -> None:
    same = writer.directory.parent.resolve() == judge.directory.parent.resolve()
    if same or as_json(writer.config) == as_json(judge.config):
        raise ServingError(
            f"the judge {judge.directory} is of the run that it judges: name one that "
            "was trained with another seed"
        )


def _load_judge(run: Run, settings: Settings) -> tuple[Judge, int]:
    stages, parts, facts = load_model(run.directory)
    model = stages[0].model
    if not isinstance(model, Autoregressive):
        raise ServingError(
            f"the judge {run.directory} isn't autoregressive: name a run that trained "
            "end_to_end"
        )
    needed = settings.prompt_bytes + settings.length - 1
    if needed > stages[0].places:
        raise ServingError(
            f"prompt_bytes + length - 1 is {needed}, but the judge reads "
            f"{stages[0].places} bytes; make one of them smaller"
        )
    return Judge(model, parts[0]), facts.round


def _prompts(valid: np.ndarray, settings: Settings) -> tuple[list[bytes], list[bytes]]:
    """Prompts, and what really follows them."""
    whole = settings.prompt_bytes + settings.length
    windows = evaluation_windows(valid, seq_len=whole - 1, count=settings.prompts)
    texts = [bytes(window) for window in windows]
    cut = settings.prompt_bytes
    return [text[:cut] for text in texts], [text[cut:] for text in texts]


def _with_token(methods: Sequence[str]) -> list[str]:
    return ["token", *(text for text in methods if text != "token")]


def _timed(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _samples(reader: _Reader, prompts: Sequence[bytes]) -> dict[str, str]:
    """What each wrote after the middle prompt; bytes that aren't text are replaced."""
    middle = len(prompts) // 2
    samples = {"prompt": prompts[middle]}
    samples |= {name: texts[middle] for name, texts in reader.texts.items()}
    return {name: text.decode(errors="replace") for name, text in samples.items()}


def _told(row: dict[str, Any]) -> str:
    rate = row["bytes_per_trip"]
    trips = f", {rate:.2f} bytes a trip" if rate else ""
    return f"  {row['name']}: {row['ce']:.3f} ± {row['ce_error']:.3f}{trips}"
