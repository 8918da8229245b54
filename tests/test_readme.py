"""The README does what it says: its Python runs, its files and commands exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from spheroid_jax.commandline import load

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("code", blocks("python"))
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


def test_there_are_python_blocks_to_run() -> None:
    assert blocks("python")


@pytest.mark.parametrize(
    "spec", sorted(set(re.findall(r"configs/\w+\.py(?::\w+)?", README)))
)
def test_the_configs_it_names_load(spec: str) -> None:
    path, colon, size = spec.partition(":")
    load(str(ROOT / path) + colon + size)


def test_every_config_is_in_it() -> None:
    for path in (ROOT / "configs").glob("[a-z]*.py"):
        assert f"configs/{path.name}" in README


def test_the_make_targets_it_names_exist() -> None:
    targets = set(re.findall(r"^\$ make ([\w-]+)", README, re.MULTILINE))
    assert targets >= {"run", "test", "check"}
    makefile = (ROOT / "Makefile").read_text()
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_its_pictures_exist() -> None:
    for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README):
        assert (ROOT / path).is_file(), path


def test_the_files_of_its_tree_exist() -> None:
    for path in re.findall(r"^  (\w+(?:\.py|/))", README, re.MULTILINE):
        assert (ROOT / "spheroid_jax" / path).exists(), path
