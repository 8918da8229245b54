"""A program that was stopped ends at once, with all that it said."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading, time
from spheroid_jax.leaving import leave
threading.Thread(target=time.sleep, args=({seconds},)).start()  # such as a compiler's
sys.stdout.write("said")
leave({status})
"""


@pytest.mark.parametrize(("status", "seconds"), [(130, 600), (0, 0.1), (2, 0.1)])
def test_the_status_is_kept_and_what_was_said(status: int, seconds: float) -> None:
    """Python would wait ten minutes for the thread."""
    program = PROGRAM.format(status=status, seconds=seconds)
    ended = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (status, b"said")
