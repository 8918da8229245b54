"""A worker restores its block and the interface alone, a model all parameters."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from spheroid_jax.checkpoints import CheckpointError, blobs
from tests.checkpoints.states import (
    State,
    abstract,
    assert_same,
    blocks_state,
    files_of,
    open_,
    part_of,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, State]:
    directory, state = tmp_path_factory.mktemp("saved"), blocks_state()
    with open_(directory) as store:
        store.save(7, state, {"seconds": 1.5}, metric=0.25, age=2.5)
    return directory, state


def copied(saved: tuple[Path, State], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved[0], tmp_path / "copy"))


def test_an_item_a_block_the_interface_and_the_rest(saved: tuple[Path, State]) -> None:
    items = {path.name for path in (saved[0] / "7").iterdir() if path.is_dir()}
    assert items == {"block_0", "block_1", "block_2", "interface", "rest"}
    # 2 x 8 x 4 float32 and 3 bfloat16 to a block; 5 + 1 float32 at the interface.
    sizes = {name: (saved[0] / "7" / name / "data.0").stat().st_size for name in items}
    assert [sizes[f"block_{b}"] for b in range(3)] == [2 * 8 * 4 * 4 + 3 * 2] * 3
    assert sizes["interface"] == 6 * 4
    # Momentum as large as the parameters, two of the interface, a counter and a key.
    params = 3 * sizes["block_0"] + sizes["interface"]
    assert sizes["rest"] == params + 2 * sizes["interface"] + 4 + 8


@pytest.mark.parametrize("block", [0, 1, 2])
def test_a_worker_needs_its_block_and_the_interface_only(
    saved: tuple[Path, State], tmp_path: Path, block: int
) -> None:
    directory, state = copied(saved, tmp_path), saved[1]
    for item in {"block_0", "block_1", "block_2", "rest"} - {f"block_{block}"}:
        shutil.rmtree(directory / "7" / item)  # not even there
    expected = part_of(state, block)
    with open_(directory) as store:
        assert_same(store.restore_part(abstract(expected), block=block), expected)
        other = (block + 1) % 3
        with pytest.raises(CheckpointError, match=rf"block_{other}/.* is missing"):
            store.restore_part(abstract(expected), block=other)


def test_an_assembled_model_needs_no_optimizer_states(
    saved: tuple[Path, State], tmp_path: Path
) -> None:
    directory, state = copied(saved, tmp_path), saved[1]
    shutil.rmtree(directory / "7" / "rest")
    with open_(directory) as store:
        assert_same(store.restore_params(abstract(state.params)), state.params)
        with pytest.raises(CheckpointError, match="rest/.* is missing"):
            store.restore(abstract(state))


def test_a_run_gets_everything_back(saved: tuple[Path, State]) -> None:
    directory, state = saved
    with open_(directory) as store:
        restored, host = store.restore(abstract(state))
    assert_same(restored, state)
    assert host == {"seconds": 1.5}


def test_parameters_that_are_not_blocks_are_one_item(tmp_path: Path) -> None:
    params = {"layers": jnp.ones((3, 2)), "head": jnp.arange(4.0)}
    with open_(tmp_path) as store:
        store.save(1, {"params": params, "round": jnp.int32(1)}, {})
        assert_same(store.restore_params(abstract(params)), params)
        with pytest.raises(CheckpointError, match="has no blocks, so not block 0"):
            store.restore_part({"block": {}, "interface": {}}, block=0)
    items = {path.name for path in (tmp_path / "1").iterdir() if path.is_dir()}
    assert items == {"params", "rest"}


@pytest.mark.parametrize("block", [-1, 3])
def test_a_block_that_is_not_there(saved: tuple[Path, State], block: int) -> None:
    expected = abstract(part_of(saved[1], 0))
    message = f"has blocks 0 to 2, so not block {block};"
    with open_(saved[0]) as store, pytest.raises(CheckpointError, match=message):
        store.restore_part(expected, block=block)


def test_a_part_of_another_shape_or_dtype_is_refused(
    saved: tuple[Path, State],
) -> None:
    part = abstract(part_of(saved[1], 0))
    with open_(saved[0]) as store:
        part["block"]["w"] = jax.ShapeDtypeStruct((4, 8, 4), "float32")
        expected = r"params\.blocks\.w is float32\[2, 8, 4\] there and float32\[4, 8, 4"
        with pytest.raises(CheckpointError, match=expected):
            store.restore_part(part, block=0)
        part = abstract(part_of(saved[1], 0))
        part["interface"]["scale"] = jax.ShapeDtypeStruct((), "bfloat16")
        with pytest.raises(CheckpointError, match=r"interface\.scale is float32\[\]"):
            store.restore_part(part, block=0)
        del part["interface"]["scale"]
        with pytest.raises(CheckpointError, match=r"interface\.scale .* absent here"):
            store.restore_part(part, block=0)


@pytest.mark.parametrize(("saved_blocks", "wanted"), [(3, 4), (4, 3)])
def test_another_number_of_blocks_is_refused(
    tmp_path: Path, saved_blocks: int, wanted: int
) -> None:
    with open_(tmp_path) as store:
        store.save(1, blocks_state(saved_blocks), {})
        message = rf"bias is bfloat16\[{saved_blocks}, 3\] there and bfloat16\[{wanted}"
        with pytest.raises(CheckpointError, match=message):
            store.restore_params(abstract(blocks_state(wanted).params))


def test_another_run_or_format_is_refused_for_a_part_too(
    saved: tuple[Path, State],
) -> None:
    part = abstract(part_of(saved[1], 0))
    with (
        open_(saved[0], identity={"seed": 2}) as store,
        pytest.raises(CheckpointError, match="seed is absent there and 2 here"),
    ):
        store.restore_part(part, block=0)


def test_a_flipped_bit_is_found_wherever_it_is_read(
    saved: tuple[Path, State], tmp_path: Path
) -> None:
    """Any bit of a part's items refuses the part; none of the others' does."""
    directory, state = copied(saved, tmp_path), saved[1]
    part = part_of(state, 1)
    with open_(directory) as store:
        for path in files_of(directory / "7"):
            original = path.read_bytes()
            item = path.relative_to(directory / "7").parts[0]
            for where in {0, len(original) // 2, len(original) - 1}:
                flipped = bytearray(original)
                flipped[where] ^= 1
                path.write_bytes(flipped)
                if item in ("block_0", "block_2", "rest"):
                    assert_same(store.restore_part(abstract(part), block=1), part)
                else:
                    with pytest.raises(CheckpointError) as error:
                        store.restore_part(abstract(part), block=1)
                    assert str(path) in str(error.value)
            path.write_bytes(original)


def test_metadata_without_loading(saved: tuple[Path, State]) -> None:
    with open_(saved[0]) as store:
        known = store.metadata()
    assert known["round"] == 7
    assert known["age"] == 2.5
    assert known["metric"] == 0.25
    assert known["host"] == {"seconds": 1.5}
    assert known["format"] == 3
    assert len(known["config"]) == 64
    assert known["items"].keys() == {
        "block_0",
        "block_1",
        "block_2",
        "interface",
        "rest",
    }


def test_an_items_digest_is_of_its_content(tmp_path: Path) -> None:
    """So a peer can tell from it whether it has the item already."""
    one, other = blocks_state(), blocks_state()
    changed = one.params["blocks"]["w"].at[1, 0, 0, 0].add(1)
    other.params["blocks"]["w"] = changed
    with open_(tmp_path) as store:
        store.save(1, one, {})
        store.save(2, other, {})
        before, after = (store.metadata(round_)["items"] for round_ in (1, 2))
    assert {name for name in before if before[name] != after[name]} == {"block_1"}


@pytest.mark.parametrize(
    ("digest", "called"),
    [("xxh3", "XXH3 digest"), ("sha256", "SHA-256"), ("blake3", "BLAKE3 digest")],
)
def test_boxes_of_many_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest: str, called: str
) -> None:
    """Written in pieces of 40 bytes, the last of a box shorter; the size is in there.

    A bit flipped in the middle is found and its piece is named.
    """
    state = blocks_state()
    with open_(tmp_path, digest=digest) as store:
        with monkeypatch.context() as small:
            small.setattr(blobs, "PIECE", 40)
            small.setattr(blobs, "_STRIDE", 16)
            store.save(1, state, {})
            store.wait()
        assert_same(store.restore(abstract(state))[0], state)
        index = json.loads((tmp_path / "1/block_0/index.0.json").read_text())
        digests = {box["leaf"]: len(box[digest]) for box in index["boxes"]}
        assert digests == {"params.blocks.bias": 1, "params.blocks.w": 7}  # 256 bytes
        data = tmp_path / "1/block_2/data.0"
        content = bytearray(data.read_bytes())
        content[6 + 125] ^= 4  # byte 125 of w, after 6 of bias: in its fourth piece
        data.write_bytes(content)
        with pytest.raises(
            CheckpointError,
            match=rf"block_2/data\.0 has another {called} than .*from byte 126 on",
        ):
            store.restore(abstract(state))
