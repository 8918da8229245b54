"""What the command line of a stage says."""

from pathlib import Path

import pytest

from spheroid_jax.fields import ConfigError
from spheroid_jax.serving.options.stage import STAGE_FILLS, StageOptions, parse
from spheroid_jax.serving.stages import FILLS


def parsed(folder: Path, *more: str) -> StageOptions:
    token = folder / "token"
    token.write_text("0123456789abcdef" * 2)
    token.chmod(0o600)
    return parse(["--stage=0", "--checkpoint=x", f"--token-file={token}", *more])


def test_everybody_may_be_dialled_where_nothing_is_said(tmp_path: Path) -> None:
    assert parsed(tmp_path).peers is None


def test_peers_are_those_of_the_list(tmp_path: Path) -> None:
    peers = parsed(tmp_path, "--peers=b:8480, c").peers
    assert peers is not None
    allowed = [peers.allow(to) for to in ("b:8480", "b:22", "c:22", "d:8480")]
    assert allowed == [True, False, True, False]


def test_an_empty_list_is_nobody(tmp_path: Path) -> None:
    peers = parsed(tmp_path, "--peers=").peers
    assert peers is not None
    assert not peers.allow("b:8480")


def test_what_is_no_list_of_hosts_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--peers: .*http://b.*HOST") as said:
        parsed(tmp_path, "--peers=b:8480,http://b")
    assert "\n" not in str(said.value)


def test_every_fill_of_a_stage_can_be_warm(tmp_path: Path) -> None:
    assert sorted(STAGE_FILLS) == sorted(FILLS)
    flag = "--warm=" + ",".join(f"4:{fill}" for fill in FILLS)
    assert parsed(tmp_path, flag).warm == tuple((4, fill) for fill in FILLS)
