"""A coordinator's memory against the number of its workers and the size of updates."""

import sys
from pathlib import Path

import pytest

from benchmarks._loaded import Found, Load, run
from benchmarks._memory import MIB

EACH = 0.5 * MIB  # of a worker: its connections, the least of an upload's buffers
UPLOADS = 32 * MIB  # of all uploads, however many there are
NOISE = 16 * MIB  # threads that were started, a garbage collection that comes late
# One block being aggregated: read, as JAX has it, and what the step makes of it.
BLOCKS = 4


def grown(found: Found) -> float:
    """Bytes of its own that a coordinator took under the load."""
    assert found.verdicts["accepted"] > 0
    return found.peak.own - found.before.own


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
def test_it_grows_by_little_for_a_worker_and_by_a_block_for_large_updates(
    tmp_path: Path,
) -> None:
    """Workers hardly think here, so that they all send at the same time."""
    few = run(tmp_path / "few", Load(4, 5.0, 64, 0.1))
    many = run(tmp_path / "many", Load(24, 5.0, 64, 0.1))
    large = run(tmp_path / "large", Load(24, 5.0, 256, 0.1))
    assert large.update > 10 * many.update
    more = 24 - 4
    assert grown(many) - grown(few) < more * EACH + NOISE
    assert grown(large) - grown(many) < UPLOADS + BLOCKS * large.update + NOISE
