"""The pages under docs/ do what they say: their Python runs, their pictures exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from spheroid_jax import optim

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
BLOCKS = [
    pytest.param(code, id=f"{page.stem}-{n}")
    for page in PAGES
    for n, code in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize("code", BLOCKS)
def test_the_python_blocks_run(code: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_there_are_blocks_to_run() -> None:
    assert BLOCKS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_links_to_exists(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).is_file(), target


def test_the_optim_page_knows_every_transformation() -> None:
    page = (ROOT / "docs" / "optim.md").read_text()
    functions = [name for name in optim.__all__ if name.islower()]
    missing = {name for name in functions if name not in page}
    # A half of adamw_8bit, and what builds an optimizer from a configuration.
    assert missing <= {"scale_by_adam_8bit", "outer_optimizer"}
