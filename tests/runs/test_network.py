"""Runs over a virtual network: what is run, what is counted, what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from spheroid_jax import config
from spheroid_jax.checkpoints import Checkpoints
from spheroid_jax.fields import ConfigError, assign
from spheroid_jax.rounds.round import RoundState
from spheroid_jax.runs.grid.jobs import plan, room
from spheroid_jax.runs.methods import block_denoiser
from spheroid_jax.runs.network.arrivals import network_of, part_bytes
from spheroid_jax.runs.network.experiment import FAMILY, run_network
from spheroid_jax.validation import validate

TINY = {
    "name": "async_regimes",
    "seeds": 2,
    "methods": ("mean",),
    "data.corpus": "embedded",
    "data.seq_len": 16,
    "data.batch": 2,
    "model.blocks": 2,
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "train.replicas": 2,
    "train.rounds": 4,
    "train.local_steps": 2,
    "train.warmup_steps": 1,
    "eval.every": 2,
    "eval.windows": 2,
    "eval.batch": 2,
    "eval.last": 1,
}
# Everyone takes 1 s, one worker of four 2.5 s, one is lost in every second round.
TRACE = "1,1,1,2.5\n1,1,,2.5\n"


def tiny(*assignments: str, cells: tuple[str, ...] = ()) -> ConfigDict:
    c = config.network()
    c.update_from_flattened_dict(TINY)
    for assignment in assignments:
        field, _, value = assignment.partition("=")
        assign(c, field, value)
    if cells:
        c.sweep = config.delay_cells("network.preset", cells, panel="network.late")
    return c


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("network")
    trace = folder / "trace.csv"
    trace.write_text(TRACE)
    cells = (
        "network.preset=lockstep network.late=drop",
        "network.preset=bad_edge network.late=drop network.deadline=0.001",
        f"network.late=drop network.trace={trace} network.deadline=2.0",
        f"network.late=gate network.trace={trace} network.deadline=2.0",
    )
    c = tiny("network.max_age=2", cells=cells)
    validate(c)
    workdir = folder / "run"
    run_network(c, workdir, resume=False, command="again", say=lambda _: None)
    return workdir, json.loads((workdir / "summary.json").read_text())


class TestSweep:
    def test_lockstep_hears_everyone_and_learns(self, swept: Any) -> None:
        row = swept[1]["rows"][0]
        assert row["participation"] == [1.0, 1.0]
        assert row["timely_blocks"] == [1.0, 1.0]
        assert row["by_age"] == [2 * 4 * 4, 0, 0]  # two seeds, 4 rounds, 4 workers
        first, last = row["curve"]["loss"][0], row["curve"]["loss"][-1]
        assert all(b < a for a, b in zip(first, last, strict=True))
        # Two steps of 50 ms, and no way to go.
        assert row["round_seconds"] == pytest.approx([0.1, 0.1], rel=1e-5)
        assert row["busy"] == pytest.approx([1.0, 1.0], rel=1e-5)

    def test_nobody_in_time_changes_nothing(self, swept: Any) -> None:
        row = swept[1]["rows"][1]
        assert row["participation"] == [0.0, 0.0]
        assert row["bytes_up"] == [0, 0]
        assert row["curve"]["loss"][0] == row["curve"]["loss"][1]
        assert row["round_seconds"] == pytest.approx([0.001, 0.001], rel=1e-4)

    def test_a_trace_is_counted_by_hand(self, swept: Any) -> None:
        dropped, gated = swept[1]["rows"][2:]
        # Three of four, then two of four, in time.
        assert dropped["participation"] == [10 / 16, 10 / 16]
        # The slow worker begins in rounds 0 and 2 and is heard in rounds 1 and 3; the
        # others as before.
        assert gated["by_age"] == [2 * 10, 2 * 2, 0]
        assert gated["received"] == [12 / 16, 12 / 16]
        size = swept[1]["part_bytes"]
        assert dropped["bytes_down"] == [16 * size] * 2
        assert dropped["bytes_up"] == [10 * size] * 2
        assert gated["bytes_down"] == [14 * size] * 2
        assert gated["bytes_up"] == [12 * size] * 2
        # Rounds wait for those who are late or lost, until the deadline.
        assert gated["time"][-1] == pytest.approx([8.0, 8.0])

    def test_report_and_picture_are_there(self, swept: Any) -> None:
        workdir, _ = swept
        assert (workdir / "report.md").stat().st_size > 500
        assert (workdir / "sweep.png").stat().st_size > 1000


def test_simulated_bytes_are_those_of_the_items_that_a_worker_is_sent(
    tmp_path: Path,
) -> None:
    """The arrays on disk, to the byte; beside them lies an index of digests."""
    c = tiny()
    params = block_denoiser(c).init(jax.random.key(0), c.model.blocks)
    state = RoundState(params, (), (), jnp.int32(1), jax.random.key(1))
    with Checkpoints(tmp_path / "c", keep=1, identity={}) as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.wait()
    for block in range(c.model.blocks):
        items = [tmp_path / "c" / "1" / f"block_{block}", tmp_path / "c/1/interface"]
        files = [f for item in items for f in item.glob("data.*")]
        assert sum(f.stat().st_size for f in files) == part_bytes(c)


def test_networks_are_of_the_seed_and_not_of_the_optimizer() -> None:
    a, b = network_of(tiny(), 3), network_of(tiny("methods=adam"), 3)
    other = network_of(tiny(), 4)
    np.testing.assert_array_equal(a.fleet.step_seconds, b.fleet.step_seconds)
    assert not np.array_equal(a.fleet.step_seconds, other.fleet.step_seconds)


def test_policies_and_presets_share_a_program() -> None:
    cells = (
        "network.preset=lockstep network.late=drop",
        "network.preset=wan network.late=gate network.deadline=3.5",
        "network.preset=mild network.late=gate network.quorum=1 network.grace=0.5",
    )
    planned = plan(FAMILY, tiny("network.max_age=3", cells=cells), "corpus")
    jobs = [job for cell in planned for job in cell.jobs]
    assert len({job.program for job in jobs}) == 1
    assert len({job.identity for job in jobs}) == 3
    assert room(FAMILY, planned) == 3


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["network.preset=wann"], "network.preset=wann"),
        (["network.quorum=3"], "lower it"),
        (["network.grace=0.5"], "set network.quorum=1"),
        (["network.deadline=0.0", "network.late=gate"], "set network.deadline"),
        (["network.late=gate", "network.max_age=4"], "lower it"),
        (["network.profiles=a", "network.trace=b"], "leave one out"),
        (["network.deadline=-1.0"], "network.deadline=-1.0"),
        (["train.rounds=5"], "eval.every=2"),
        (["methods=mena"], "'mena'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    settings: list[str], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint) as error:
        validate(tiny(*settings))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("field", ["network.profiles", "network.trace"])
def test_a_file_that_is_not_there_or_empty_is_named(field: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{field}=.*name a CSV file"):
        network_of(tiny(f"{field}={tmp_path}/none.csv"), 0)
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ConfigError, match="empty"):
        network_of(tiny(f"{field}={tmp_path}/empty.csv"), 0)


def test_no_deadline_waits_for_ever() -> None:
    assert math.isinf(network_of(tiny("network.deadline=0.0"), 0).policy.deadline)
