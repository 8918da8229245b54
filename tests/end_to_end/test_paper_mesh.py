"""The paper's size compiles for hosts of six devices, and any mesh trains the same."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spheroid_jax.commandline import load, overrides
from spheroid_jax.runs import run_experiment

ROOT = Path(__file__).parents[2]
GIB = 2**30

# One host of six devices, and two: 3 blocks of 2 replicas, and workers shared by two.
_COMPILE = """
import json, sys
from benchmarks.mesh_round import compiled_round
from spheroid_jax.commandline import load, overrides
from spheroid_jax.rounds.collectives import collectives, collectives_table

mesh = "train.replicas=2 mesh.block=3 mesh.replica=2 mesh.fsdp=" + sys.argv[2]
config = overrides(load(sys.argv[1]), mesh)
program, mesh, held = compiled_round(config)
found = collectives(program, mesh)
memory = program.memory_analysis()
print(collectives_table(found), file=sys.stderr)
print(json.dumps({
    "devices": mesh.size,
    "state": held,
    "arguments": memory.argument_size_in_bytes,
    "aliased": memory.alias_size_in_bytes,
    "temporary": memory.temp_size_in_bytes,
    "block": sum(c.bytes for c in found if "block" in c.axes and c.elements > 1),
    "replica": sum(c.bytes for c in found if "replica" in c.axes and c.elements > 1),
    "across": sorted({"+".join(c.axes) for c in found if c.elements > 1}),
}))
"""


def compile_paper(fsdp: int) -> dict[str, Any]:
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=12",
        "JAX_PLATFORMS": "cpu",
    }
    config = str(ROOT / "configs" / "b3_l4.py") + ":paper"
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE, config, str(fsdp)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(done.stderr)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_paper_size_compiles_for_one_and_for_two_hosts_of_six() -> None:
    one, two = compile_paper(1), compile_paper(2)
    for got in (one, two):
        print(
            f"{got['devices']} devices:",
            ", ".join(
                f"{name} {got[name] / GIB:.3f} GiB"
                for name in ("state", "arguments", "aliased", "temporary")
            ),
        )
        # The whole state is updated in place.
        assert got["aliased"] >= got["state"]
        assert got["arguments"] + got["temporary"] < 16 * GIB
    assert (one["devices"], two["devices"]) == (6, 12)
    assert one["across"] == ["block", "replica"]
    assert two["across"] == ["block", "fsdp", "replica"]
    # A worker shared by two devices leaves each about half of its state, all but small
    # leaves, half of its batch, and half of what is exchanged between workers.
    for name in ("state", "temporary", "block", "replica"):
        assert two[name] < 0.6 * one[name], name


@pytest.mark.slow
def test_a_run_on_a_mesh_ends_like_the_run_on_one_device(tmp_path: Path) -> None:
    tiny = overrides(
        load(str(ROOT / "configs" / "b3_l4.py") + ":quick"),
        "data.corpus=embedded model.width=32 model.layers=1 model.mlp_ratio=2"
        " data.seq_len=16 data.batch=6 train.replicas=2 train.rounds=2"
        " train.local_steps=2 eval.windows=8 eval.curve_windows=8 eval.batch=8"
        " eval.mix_draws=1 eval.every=1",
    )
    results = {}
    for name, mesh in {
        "one": "mesh.block=1",
        "six": "mesh.block=3 mesh.replica=2",
        "shared": "mesh.block=1 mesh.replica=0 mesh.fsdp=3",
    }.items():
        run_experiment(
            overrides(tiny, mesh), tmp_path / name, resume=False, command="test"
        )
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        results[name] = summary["results"]
    for name in ("six", "shared"):
        for key in ("ce_chain", "end_to_end", "block_sized"):
            assert results[name][key] == pytest.approx(results["one"][key], abs=2e-3)
