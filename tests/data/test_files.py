"""The user's own files: every byte kept, every mistake explained."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spheroid_jax.data import Corpus, CorpusError, load_corpus


def write(folder: Path, **files: bytes) -> str:
    """Writes ``name__ext=bytes`` as ``name.ext``; returns the corpus' name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name.replace("__", ".")).write_bytes(data)
    return f"file:{folder}"


def write_parquet(path: Path, rows: list[str | None], column: str = "text") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({column: pa.array(rows, pa.string())}), path)


def joined(corpus: Corpus) -> bytes:
    return b"".join(x.tobytes() for x in (corpus.train, corpus.valid, corpus.test))


def text(paragraphs: int) -> bytes:
    return b"".join(b"Paragraph %d is short.\n\n" % i for i in range(paragraphs))


class TestOneFile:
    def test_three_contiguous_splits_at_paragraphs(self, tmp_path: Path) -> None:
        data = text(1000)
        (tmp_path / "mine.txt").write_bytes(data)
        corpus = load_corpus(f"file:{tmp_path}/mine.txt")
        assert joined(corpus) == data
        assert 0.90 <= corpus.train.size / len(data) < 0.92
        assert 0.04 < corpus.valid.size / len(data) < 0.07
        for split in (corpus.train, corpus.valid, corpus.test):
            assert split.tobytes().startswith(b"Paragraph")
            assert split.tobytes().endswith(b"\n\n")
        assert corpus.name == "file:mine.txt"
        assert "split by position at a paragraph's end" in corpus.notes[0]
        assert str(corpus.valid.size) in corpus.notes[0]

    def test_lines_when_there_are_no_paragraphs(self, tmp_path: Path) -> None:
        data = text(1000).replace(b"\n\n", b"\n")
        (tmp_path / "a").write_bytes(data)
        corpus = load_corpus(f"file:{tmp_path}/a")
        assert joined(corpus) == data
        assert corpus.train.tobytes().endswith(b".\n")
        assert corpus.valid.tobytes().startswith(b"Paragraph")
        assert "at a line's end" in corpus.notes[0]

    @given(data=st.binary(min_size=1, max_size=400))
    def test_any_bytes_come_back_in_order(
        self, tmp_path_factory: pytest.TempPathFactory, data: bytes
    ) -> None:
        path = tmp_path_factory.mktemp("any") / "bytes"
        path.write_bytes(data)
        assert joined(load_corpus(f"file:{path}")) == data

    def test_line_separators_of_unicode_are_bytes_like_others(
        self, tmp_path: Path
    ) -> None:
        # str.splitlines and text mode would drop or change each of these.
        data = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh\n".encode() * 50
        (tmp_path / "a").write_bytes(data)
        assert joined(load_corpus(f"file:{tmp_path}/a")) == data

    def test_not_utf8_is_kept_and_noted(self, tmp_path: Path) -> None:
        data = b"caf\xe9 " + text(50)
        (tmp_path / "latin1.txt").write_bytes(data)
        corpus = load_corpus(f"file:{tmp_path}/latin1.txt")
        assert joined(corpus) == data
        assert any(
            "latin1.txt is not UTF-8 (first at byte 3)" in n for n in corpus.notes
        )

    def test_utf16_is_recognised(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes("Some text.\n".encode("utf-16"))
        assert any("UTF-16" in n for n in load_corpus(f"file:{tmp_path}/a").notes)

    def test_crlf_is_kept_and_noted(self, tmp_path: Path) -> None:
        data = text(1000).replace(b"\n", b"\r\n")
        (tmp_path / "dos.txt").write_bytes(data)
        corpus = load_corpus(f"file:{tmp_path}/dos.txt")
        assert joined(corpus) == data
        assert corpus.train.tobytes().endswith(b"\r\n\r\n")
        assert any("2000 CRLF line ends" in note for note in corpus.notes)

    def test_clean_text_gets_no_other_note(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes("naïve text, with accents\n".encode() * 50)
        assert len(load_corpus(f"file:{tmp_path}/a").notes) == 1

    def test_a_parquet_file(self, tmp_path: Path) -> None:
        write_parquet(tmp_path / "a.parquet", ["one", "two\n", "", None, "fünf"])
        corpus = load_corpus(f"file:{tmp_path}/a.parquet")
        assert joined(corpus) == "one\ntwo\n\n\nfünf\n".encode()


class TestFolder:
    @pytest.mark.parametrize(
        "names",
        [
            ("train.txt", "valid.txt", "test.txt"),
            ("train.txt", "validation.txt", "test.txt"),
            ("train.txt", "dev.txt", "test.txt"),
            ("train.raw", "val.raw", "test.raw"),
            ("wiki.train.raw", "wiki.valid.raw", "wiki.test.raw"),
            ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
        ],
    )
    def test_common_names(self, tmp_path: Path, names: tuple[str, ...]) -> None:
        for name, data in zip(
            names, (b"train!\n", b"valid!\n", b"test!\n"), strict=True
        ):
            (tmp_path / name).write_bytes(data)
        (tmp_path / "README.md").write_bytes(b"not a split")
        corpus = load_corpus(f"file:{tmp_path}")
        assert corpus.train.tobytes() == b"train!\n"
        assert corpus.valid.tobytes() == b"valid!\n"
        assert corpus.test.tobytes() == b"test!\n"
        assert corpus.notes == ()

    def test_parquet_shards_in_order(self, tmp_path: Path) -> None:
        write_parquet(tmp_path / "train-00001-of-00002.parquet", ["c", "d"])
        write_parquet(tmp_path / "train-00000-of-00002.parquet", ["a", "b"])
        write_parquet(tmp_path / "validation-00000-of-00001.parquet", ["e"])
        corpus = load_corpus(f"file:{tmp_path}")
        assert corpus.train.tobytes() == b"a\nb\nc\nd\n"
        assert corpus.valid.tobytes() == b"e\n"

    def test_without_test_the_split_is_empty(self, tmp_path: Path) -> None:
        corpus = load_corpus(write(tmp_path, train__txt=b"abc", valid__txt=b"def"))
        assert corpus.test.shape == (0,)
        assert corpus.test.dtype == np.uint8

    def test_without_validation_train_gives_its_end(self, tmp_path: Path) -> None:
        data = text(1000)
        corpus = load_corpus(write(tmp_path, train__txt=data, test__txt=b"the test"))
        assert corpus.train.tobytes() + corpus.valid.tobytes() == data
        assert 0.02 < corpus.valid.size / len(data) <= 0.05
        assert corpus.test.tobytes() == b"the test"
        assert "no validation file" in corpus.notes[0]

    def test_notes_name_the_file(self, tmp_path: Path) -> None:
        corpus = load_corpus(
            write(tmp_path, train__txt=b"fine\n", valid__txt=b"\xff\r\n")
        )
        assert len(corpus.notes) == 2
        assert all(note.startswith("valid.txt") for note in corpus.notes)


class TestRefusals:
    def check(self, spec: str, *words: str) -> None:
        with pytest.raises(CorpusError) as caught:
            load_corpus(spec)
        message = str(caught.value)
        assert "\n" not in message
        for word in words:
            assert word in message

    def test_nothing_there(self, tmp_path: Path) -> None:
        (tmp_path / "corpus.txt").write_bytes(b"x")
        self.check(f"file:{tmp_path}/corpsu.txt", "does not exist", "/corpus.txt?")
        self.check(f"file:{tmp_path}/no/such", "nor does its folder")

    def test_a_relative_path_says_where_it_looked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        self.check("file:none.txt", "none.txt does not exist", f"looked in {tmp_path}")

    def test_no_path_at_all(self) -> None:
        self.check("file:", "names no path")

    def test_neither_file_nor_folder(self) -> None:
        self.check("file:/dev/null", "neither a file nor a folder")

    def test_a_name_the_system_refuses(self) -> None:
        self.check(f"file:/{'x' * 5000}", "cannot read")

    def test_empty_file(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes(b"")
        self.check(f"file:{tmp_path}/a.txt", "a.txt is empty")
        spec = write(tmp_path / "f", train__txt=b"abc", valid__txt=b"")
        self.check(spec, "valid.txt is empty")

    def test_folder_without_train(self, tmp_path: Path) -> None:
        spec = write(tmp_path, valid__txt=b"x", training__txt=b"y")
        self.check(spec, "no train split", "train.txt", "holds training.txt, valid.txt")
        (tmp_path / "empty").mkdir()
        self.check(f"file:{tmp_path}/empty", "no train split", "holds nothing")

    def test_two_files_for_one_split(self, tmp_path: Path) -> None:
        spec = write(tmp_path, train__txt=b"x", valid__txt=b"y", dev__txt=b"z")
        self.check(spec, "more than one valid split", "dev.txt, valid.txt")

    def test_a_missing_shard(self, tmp_path: Path) -> None:
        write_parquet(tmp_path / "train-00000-of-00003.parquet", ["a"])
        write_parquet(tmp_path / "train-00002-of-00003.parquet", ["b"])
        self.check(f"file:{tmp_path}", "holds 2 of the 3 files")

    def test_splits_that_are_the_same(self, tmp_path: Path) -> None:
        spec = write(tmp_path, train__txt=b"same", valid__txt=b"same")
        self.check(spec, "the same bytes as the train split")

    def test_splits_that_are_a_piece_of_another(self, tmp_path: Path) -> None:
        spec = write(tmp_path, train__txt=text(100), valid__txt=text(100)[900:1500])
        self.check(spec, "valid split is a piece of the train split")
        spec = write(tmp_path / "b", train__txt=b"abc", valid__txt=b"x", test__txt=b"b")
        self.check(spec, "test split is a piece of the train split")

    def test_damaged_parquet(self, tmp_path: Path) -> None:
        path = tmp_path / "train.parquet"
        write_parquet(path, ["some text"] * 100)
        path.write_bytes(path.read_bytes()[:-20])
        self.check(f"file:{path}", "cannot be read as parquet")

    def test_parquet_without_text(self, tmp_path: Path) -> None:
        write_parquet(tmp_path / "train.parquet", ["a"], column="body")
        self.check(f"file:{tmp_path}/train.parquet", "no column 'text'", "body")

    def test_parquet_whose_text_is_numbers(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "train.parquet")
        self.check(f"file:{tmp_path}/train.parquet", "cannot be read as parquet")
