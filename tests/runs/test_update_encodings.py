"""One run in several encodings, trained without a network."""

import json
from pathlib import Path
from typing import Any

import pytest
from ml_collections import ConfigDict

from spheroid_jax import config, data
from spheroid_jax.reports.log import read_metrics
from spheroid_jax.runs.exchange import encodings, lockstep
from spheroid_jax.runs.loop import TrainingError
from spheroid_jax.validation import problems
from tests.runs.exchange_configs import toy

SLOTS, ROUNDS = 4, 3


def of(folder: Path, **changes: Any) -> ConfigDict:
    c = toy(config.encodings(), folder, train__replicas=2, **changes)
    c.seeds, c.encodings, c.eval.every = 2, ("float32", "int8"), 2
    return c


Finished = tuple[Path, dict[str, Any], list[str]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("encodings")
    lines: list[str] = []
    summary = encodings.run_encodings(
        of(folder), folder / "run", resume=False, command="again", say=lines.append
    )
    return folder / "run", summary, lines


def points(
    finished: Finished, encoding: str, seed: int, *, both: bool = False
) -> list[dict[str, float]]:
    (found,) = [
        run["points"]
        for run in finished[1]["runs"]
        if (run["encoding"], run["seed"], run["both_ways"]) == (encoding, seed, both)
    ]
    return found


def test_float32_is_the_simulator(finished: Finished) -> None:
    """Files, aggregation and one block at a time change nothing."""
    c, seed = config.exchange(), 1
    toy(c, finished[0].parent, train__replicas=2, seed=seed)
    c.train.warmup_steps, c.eval.every = of(finished[0].parent).train.warmup_steps, 2
    simulated = lockstep.simulate(c, data.load_corpus(c.data.corpus), print)
    found = points(finished, "float32", seed)
    assert [p["round"] for p in found] == [0, 2, 3]
    for one, other in zip(found, simulated.ce, strict=True):
        assert one["round"] == other["round"]
        assert one["ce_chain"] == pytest.approx(other["ce_chain"], abs=1e-5)


def test_int8_is_another_run_with_fewer_bytes(finished: Finished) -> None:
    plain, small = (points(finished, e, 0) for e in ("float32", "int8"))
    assert small[0]["ce_chain"] == plain[0]["ce_chain"]
    assert small[-1]["ce_chain"] != plain[-1]["ce_chain"]
    assert small[-1]["ce_chain"] == pytest.approx(plain[-1]["ce_chain"], abs=0.02)
    updates = SLOTS * ROUNDS
    params = finished[1]["part_params"]
    assert plain[-1]["bytes"] > 4 * params * updates
    assert params * updates < small[-1]["bytes"] < 2 * params * updates
    for course in (plain, small):
        assert course[1]["bytes"] == pytest.approx(
            course[-1]["bytes"] * 2 / 3, rel=0.05
        )
        assert course[-1]["bytes_zstd"] < course[-1]["bytes"]


def test_what_goes_down_is_counted_and_may_be_encoded(finished: Finished) -> None:
    part = 4 * finished[1]["part_params"]
    plain, up = points(finished, "float32", 0)[-1], points(finished, "int8", 0)[-1]
    assert plain["bytes_down"] == up["bytes_down"] == SLOTS * ROUNDS * part
    both = points(finished, "int8", 0, both=True)[-1]
    assert both["ce_chain"] != up["ce_chain"]
    assert both["ce_chain"] == pytest.approx(plain["ce_chain"], abs=0.02)
    # The first parts whole, then about a byte a parameter and what is around it.
    steps = both["bytes_down"] - SLOTS * part
    assert part / 5 < steps / (SLOTS * (ROUNDS - 1)) < part / 2


def test_seeds_differ(finished: Finished) -> None:
    one, other = (points(finished, "float32", seed)[0] for seed in (0, 1))
    assert one["ce_chain"] != other["ce_chain"]


def test_the_files_of_a_run(finished: Finished) -> None:
    workdir, summary, lines = finished
    assert json.loads((workdir / "summary.json").read_text())["runs"] == summary["runs"]
    assert "# update_encodings:quick" in (workdir / "report.md").read_text()
    assert (workdir / "encodings.png").stat().st_size > 10_000
    methods = {r["method"] for r in read_metrics(workdir / "metrics.jsonl")}
    names = ("float32", "int8", "int8_both_ways")
    assert methods == {f"{name}-{seed}" for name in names for seed in (0, 1)}
    assert sum(line.startswith("  seed ") for line in lines) == 6


def test_what_was_lost_is_sent_later(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without error feedback the coarsest encoding takes another course."""
    c = of(finished[0].parent)
    seed = encodings.prepared(c, data.load_corpus(c.data.corpus), 0)
    fed = encodings.course(seed, "int4", 3)
    monkeypatch.setattr(encodings.Feedback, "settle", lambda *given: None)
    bare = encodings.course(seed, "int4", 3)
    assert fed[0] == bare[0]
    assert fed[-1]["ce_chain"] != bare[-1]["ce_chain"]


def test_a_loss_that_is_no_number_ends_the_run(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = of(finished[0].parent)
    seed = encodings.prepared(c, data.load_corpus(c.data.corpus), 0)
    trained = seed.trainer.train

    def diverge(*given: Any) -> Any:
        return trained(*given)._replace(loss=float("nan"))

    monkeypatch.setattr(seed.trainer, "train", diverge)
    with pytest.raises(TrainingError, match=r"seed 0 with int8 is nan in round 1"):
        encodings.course(seed, "int8", 3)


def test_float32_has_to_be_among_them(tmp_path: Path) -> None:
    c = of(tmp_path)
    c.encodings = ("int8",)
    (line,) = problems(c, 1)
    assert "must have 'float32' among them" in line
