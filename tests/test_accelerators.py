"""The page on accelerators names flags of XLA that exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "accelerators.md"


def starts(flags: list[str]) -> bool:
    """Whether JAX starts with these flags: XLA ends the process at an unknown one."""
    done = subprocess.run(
        [sys.executable, "-c", "import jax; jax.devices()"],
        env=os.environ | {"XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def test_every_flag_on_the_page_is_known_to_xla() -> None:
    flags = re.findall(r"--xla_[\w]+=[\w]+", PAGE.read_text())
    assert len(flags) > 10
    assert starts(flags)
    assert not starts(["--xla_gpu_enable_perpetual_motion=true"])
