"""WikiText: to the byte from parquet, over bad networks, from a cache that may rot."""

import hashlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spheroid_jax.data import CorpusError, corpora, load_corpus, wikitext
from spheroid_jax.data import download as download_module

Pages = dict[str, tuple[int, int | None, bytes]]  # see conftest.serve
NAME = "wikitext-2-raw"
RAW = {
    "train": " \n = Böhmen = \n \n Some <unk> text .\u2028 More . \n \n \n".encode()
    * 300,
    "valid": b" \n = Valid = \n \n Other text . \n" * 40,
    "test": b" \n = Test = \n \n Final text . \n" * 50,
}


def as_parquet(raw: bytes, path: Path) -> bytes:
    """Rows as the hub serves them: lines with their newline, blank lines as ""."""
    lines = raw.decode().split("\n")[:-1]
    rows = ["" if line == " " else f"{line}\n" for line in lines]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": rows}), path, row_group_size=100)
    return path.read_bytes()


@pytest.fixture
def official(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes RAW the official WikiText-2."""
    digests = {s: (len(d), hashlib.sha256(d).hexdigest()) for s, d in RAW.items()}
    monkeypatch.setitem(wikitext.OFFICIAL, NAME, digests)


@pytest.fixture
def shards(tmp_path: Path) -> dict[str, bytes]:
    """The hub's parquet files of RAW, by path within the data set."""
    stems = {"train": "train", "valid": "validation", "test": "test"}
    return {
        f"{NAME}-v1/{stem}-00000-of-00001.parquet": as_parquet(
            RAW[split], tmp_path / f"{stem}.source"
        )
        for split, stem in stems.items()
    }


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every hub refuses the connection at once."""
    monkeypatch.setattr(
        wikitext, "HUBS", ("http://127.0.0.1:9", "http://127.0.0.1:9/x")
    )


def hub_pages(shards: dict[str, bytes]) -> Pages:
    return {
        f"/{wikitext._DATASET}/{path}": (200, None, data)
        for path, data in shards.items()
    }


def assert_is_raw(corpus: corpora.Corpus) -> None:
    for split, data in RAW.items():
        assert getattr(corpus, split).tobytes() == data


def cache_folder() -> Path:
    return Path(os.environ["XDG_CACHE_HOME"]) / "spheroid_jax" / NAME


class TestMirrors:
    def test_rows_of_the_hub_become_the_official_bytes(
        self, official: None, shards: dict[str, bytes], tmp_path: Path
    ) -> None:
        for path, data in shards.items():
            (tmp_path / "mirror" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "mirror" / path).write_bytes(data)
        corpus = load_corpus(NAME, mirror=str(tmp_path / "mirror"))
        assert_is_raw(corpus)
        assert corpus.name == NAME
        assert str(tmp_path / "mirror") in corpus.source
        assert corpus.notes == ()

    def test_real_splits_survive_the_trip(
        self, wikitext_raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The true digests of two splits, from rows in the form the hub has."""
        true = {s: wikitext.OFFICIAL[NAME][s] for s in ("valid", "test")}
        monkeypatch.setitem(wikitext.OFFICIAL, NAME, true)
        for split, stem in (("valid", "validation"), ("test", "test")):
            raw = (wikitext_raw / f"wiki.{split}.raw").read_bytes()
            as_parquet(raw, tmp_path / f"{stem}.parquet")
        as_parquet(RAW["train"], tmp_path / "train.parquet")
        corpus = load_corpus(NAME, mirror=str(tmp_path))
        assert (corpus.valid.size, corpus.test.size) == (1146846, 1290590)

    def test_folder_of_raw_files(self, official: None, tmp_path: Path) -> None:
        for split, data in RAW.items():
            (tmp_path / f"wiki.{split}.raw").write_bytes(data)
        assert_is_raw(load_corpus(NAME, mirror=str(tmp_path)))

    def test_the_second_hub_helps_out(
        self,
        official: None,
        shards: dict[str, bytes],
        serve: Callable[[Pages], str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        first, second = serve({}), serve(hub_pages(shards))
        monkeypatch.setattr(wikitext, "HUBS", (first, second))
        corpus = load_corpus(NAME)
        assert_is_raw(corpus)
        assert second.removeprefix("http://") in corpus.source

    @pytest.mark.parametrize("fault", ["cut off", "other text", "no parquet"])
    def test_a_hub_that_lies_is_passed_over(
        self,
        fault: str,
        official: None,
        shards: dict[str, bytes],
        serve: Callable[[Pages], str],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        good = hub_pages(shards)
        path = next(p for p in good if "/train-" in p)
        body = good[path][2]
        bad = {
            "cut off": (200, len(body), body[:-100]),
            "other text": (200, None, as_parquet(b" \n other\n", tmp_path / "x")),
            "no parquet": (200, None, b"<html>Please log in</html>"),
        }[fault]
        hubs = (serve({**good, path: bad}), serve(good))
        monkeypatch.setattr(wikitext, "HUBS", hubs)
        assert_is_raw(load_corpus(NAME))

        monkeypatch.setattr(wikitext, "HUBS", hubs[:1])
        with pytest.raises(
            CorpusError, match=r"could not be fetched \(127.0.0.1:"
        ) as e:
            load_corpus(NAME, cache_dir=str(tmp_path / "fresh"))
        expected = {
            "cut off": f"cut off after {len(body) - 100} of {len(body)} bytes",
            "other text": "not the official wikitext-2-raw: train has 9 bytes",
            "no parquet": "cannot be read as parquet",
        }[fault]
        assert expected in str(e.value)
        assert "\n" not in str(e.value)
        assert not list((tmp_path / "fresh").rglob("*.*"))

    def test_redirects_are_followed(
        self, official: None, shards: dict[str, bytes], serve: Callable[[Pages], str]
    ) -> None:
        store = serve({f"/blob/{path}": (200, None, d) for path, d in shards.items()})
        mirror = serve(
            {f"/d/{p}": (302, None, f"{store}/blob/{p}".encode()) for p in shards}
        )
        assert_is_raw(load_corpus(NAME, mirror=f"{mirror}/d/"))

    def test_a_mirror_is_the_only_one_asked(
        self, shards: dict[str, bytes], serve: Callable[[Pages], str]
    ) -> None:
        mirror = serve({})
        with pytest.raises(CorpusError, match=r"\(127.0.0.1:\d+: HTTP 404\): connect"):
            load_corpus(NAME, mirror=f"{mirror}/somewhere")

    def test_a_hub_that_stalls_is_given_up(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(download_module, "_STALL", 0.2)
        with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, never answers
            mirror = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
            start = time.monotonic()
            with pytest.raises(CorpusError, match="timed out"):
                load_corpus(NAME, mirror=mirror)
        assert time.monotonic() - start < 3

    def test_a_long_download_reports_its_progress(
        self,
        official: None,
        shards: dict[str, bytes],
        serve: Callable[[Pages], str],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        mirror = serve({f"/x/{path}": (200, None, d) for path, d in shards.items()})
        monkeypatch.setattr(download_module, "_REPORT_FROM", 1)
        load_corpus(NAME, mirror=f"{mirror}/x")
        lines = capsys.readouterr().err
        assert lines.startswith(f"spheroid_jax: fetching {NAME} from 127.0.0.1:")
        assert "train-00000-of-00001.parquet: 100 %" in lines

    def test_wikitext_103_has_two_shards(self, tmp_path: Path) -> None:
        folder = tmp_path / "wikitext-103-raw-v1"
        half = len(RAW["train"]) // 2
        assert RAW["train"][half - 1] == ord("\n")
        as_parquet(RAW["train"][:half], folder / "train-00000-of-00002.parquet")
        as_parquet(RAW["train"][half:], folder / "train-00001-of-00002.parquet")
        as_parquet(RAW["valid"], folder / "validation-00000-of-00001.parquet")
        as_parquet(RAW["test"], folder / "test-00000-of-00001.parquet")
        corpus = load_corpus("wikitext-103-raw", mirror=str(tmp_path))
        assert_is_raw(corpus)
        assert corpus.name == "wikitext-103-raw"
        # No official digest is known for it, so its manifest alone tells damage.
        cached = cache_folder().parent / "wikitext-103-raw" / "test.raw"
        cached.write_bytes(RAW["test"].replace(b"F", b"G", 1))
        with pytest.raises(CorpusError, match=r"is damaged \(test.raw has SHA-256"):
            load_corpus("wikitext-103-raw", mirror=str(tmp_path / "none"))

    def test_wrong_bytes_name_both_digests(self, tmp_path: Path) -> None:
        for split, data in RAW.items():
            (tmp_path / f"wiki.{split}.raw").write_bytes(data)
        found = hashlib.sha256(RAW["train"]).hexdigest()
        with pytest.raises(CorpusError, match=f"{found}.*10940747.*6707892fa378"):
            load_corpus(NAME, mirror=str(tmp_path))

    def test_a_folder_without_it(self, tmp_path: Path) -> None:
        with pytest.raises(CorpusError, match=r"does not hold .* put wiki\.train\.raw"):
            load_corpus(NAME, mirror=str(tmp_path))
        for spec in (NAME, "auto"):
            with pytest.raises(CorpusError, match="is no folder"):
                load_corpus(spec, mirror=str(tmp_path / "typo"))

    def test_without_pyarrow_the_cure_is_named(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
        with pytest.raises(CorpusError, match=r'pip install "spheroid_jax\[data\]"'):
            load_corpus(NAME)


class TestCache:
    @pytest.fixture
    def mirror(self, official: None, tmp_path: Path) -> str:
        folder = tmp_path / "mirror"
        folder.mkdir()
        for split, data in RAW.items():
            (folder / f"wiki.{split}.raw").write_bytes(data)
        return str(folder)

    def test_fetched_once(self, mirror: str, no_network: None) -> None:
        first = load_corpus(NAME, mirror=mirror)
        again = load_corpus(NAME)
        assert_is_raw(again)
        assert (again.sha256, again.source) == (first.sha256, first.source)
        manifest = json.loads((cache_folder() / "manifest.json").read_text())
        for split, data in RAW.items():
            assert (cache_folder() / f"{split}.raw").read_bytes() == data
            assert manifest["splits"][split] == {
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
            }

    def test_cache_dir_and_xdg(
        self, mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        load_corpus(NAME, mirror=mirror, cache_dir=str(tmp_path / "mine"))
        assert (tmp_path / "mine" / NAME / "manifest.json").is_file()
        assert not cache_folder().exists()
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # invalid: to be ignored
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        load_corpus(NAME, mirror=mirror)
        default = tmp_path / "home" / ".cache" / "spheroid_jax" / NAME
        assert (default / "manifest.json").is_file()

    @pytest.mark.parametrize("damage", ["bit", "missing", "manifest", "other"])
    def test_damage_is_noticed_and_repaired(
        self,
        damage: str,
        mirror: str,
        no_network: None,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        load_corpus(NAME, mirror=mirror)
        raw, manifest = cache_folder() / "valid.raw", cache_folder() / "manifest.json"
        if damage == "bit":
            raw.write_bytes(raw.read_bytes().replace(b"V", b"W", 1))
        elif damage == "missing":
            raw.unlink()
        elif damage == "manifest":
            manifest.write_text(manifest.read_text()[:50])
        else:  # another text with a manifest that agrees is still not WikiText
            raw.write_bytes(b"other")
            content = json.loads(manifest.read_text())
            content["splits"]["valid"]["sha256"] = hashlib.sha256(b"other").hexdigest()
            manifest.write_text(json.dumps(content))
        capsys.readouterr()
        both = f"the cache {cache_folder()} is damaged .*could not be fetched"
        with pytest.raises(CorpusError, match=both):
            load_corpus(NAME)
        assert_is_raw(load_corpus(NAME, mirror=mirror))
        assert "fetching it again" in capsys.readouterr().err
        assert_is_raw(load_corpus(NAME))

    @pytest.mark.parametrize("survived", [0, 1, 3])
    def test_death_while_filling_leaves_no_half_cache(
        self,
        survived: int,
        mirror: str,
        no_network: None,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        moved: list[Path] = []

        def replace_then_die(source: Path, target: Path) -> None:
            if len(moved) == survived:
                raise KeyboardInterrupt
            moved.append(target)
            os.rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(wikitext.os, "replace", replace_then_die)
            with pytest.raises(KeyboardInterrupt):
                load_corpus(NAME, mirror=mirror)
        with pytest.raises(CorpusError, match="could not be fetched"):
            load_corpus(NAME)
        assert not list(cache_folder().parent.glob(".partial-*"))
        assert_is_raw(load_corpus(NAME, mirror=mirror))

    def test_leftovers_of_a_kill_go_when_they_are_old(self, no_network: None) -> None:
        cache = cache_folder().parent
        old, young = cache / ".partial-old", cache / ".partial-young"
        for folder in (old, young):
            folder.mkdir(parents=True)
            (folder / "train.parquet").write_bytes(b"half")
        os.utime(old, (time.time() - 1e6,) * 2)
        with pytest.raises(CorpusError):
            load_corpus(NAME)
        assert not old.exists()
        assert young.exists()

    def test_a_cache_that_cannot_be_written(self, mirror: str, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(
            CorpusError, match=r"cannot write the cache .*XDG_CACHE_HOME"
        ):
            load_corpus(NAME, mirror=mirror, cache_dir=str(tmp_path / "file"))


class TestAuto:
    def test_takes_wikitext_where_it_can(
        self,
        official: None,
        shards: dict[str, bytes],
        serve: Callable[[Pages], str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        hubs = ("http://127.0.0.1:9", serve(hub_pages(shards)))
        monkeypatch.setattr(wikitext, "HUBS", hubs)
        assert_is_raw(load_corpus("auto"))
        monkeypatch.setattr(wikitext, "HUBS", ())
        cached = load_corpus("auto")
        assert (cached.name, cached.notes) == (NAME, ())

    def test_falls_back_with_one_loud_line(self, no_network: None) -> None:
        corpus = load_corpus("auto")
        assert corpus.name == "embedded"
        assert corpus.sha256 == load_corpus("embedded").sha256
        (note,) = corpus.notes
        assert "\n" not in note
        for word in ("WikiText-2 NOT USED", "embedded", "connection refused", "mirror"):
            assert word in note

    def test_a_network_that_swallows_packets_costs_seconds(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        over = threading.Event()

        def hang(*_: object, **__: object) -> None:
            over.wait(10)
            raise OSError

        # As a name server that never answers: no socket timeout bounds that.
        monkeypatch.setattr(download_module.urllib.request, "urlopen", hang)
        monkeypatch.setattr(corpora, "_PATIENCE", 0.2)
        start = time.monotonic()
        corpus = load_corpus("auto")
        assert time.monotonic() - start < 3
        over.set()
        assert corpus.name == "embedded"
        assert "no answer within 0.2 s" in corpus.notes[0]

    def test_a_damaged_cache_is_mentioned(
        self, official: None, no_network: None, tmp_path: Path
    ) -> None:
        cache_folder().mkdir(parents=True)
        (cache_folder() / "manifest.json").write_text("{}")
        assert "is damaged" in load_corpus("auto").notes[0]


class TestNames:
    @pytest.mark.parametrize(
        ("spec", "hint"),
        [
            ("wikitext-2", "did you mean wikitext-2-raw?"),
            ("wikitext-103", "did you mean wikitext-103-raw?"),
            ("embeded", "did you mean embedded?"),
            ("", "use one of auto, embedded"),
            ("/dev/null", "did you mean file:/dev/null?"),
        ],
    )
    def test_an_unknown_name_gets_a_hint(self, spec: str, hint: str) -> None:
        with pytest.raises(CorpusError) as caught:
            load_corpus(spec)
        assert hint in str(caught.value)

    def test_the_digest_is_the_documented_one(self, tmp_path: Path) -> None:
        (tmp_path / "train.txt").write_bytes(b"abc")
        (tmp_path / "valid.txt").write_bytes(b"xyz")
        lines = [
            f"{split} {hashlib.sha256(data).hexdigest()}\n"
            for split, data in (("train", b"abc"), ("valid", b"xyz"), ("test", b""))
        ]
        expected = hashlib.sha256("".join(lines).encode()).hexdigest()
        assert load_corpus(f"file:{tmp_path}").sha256 == expected
