"""Corpora from the user's own files, read as bytes and never as lines."""

import difflib
import itertools
import re
from pathlib import Path

from spheroid_jax.data.corpus import SPLITS, Corpus, CorpusError, make_corpus
from spheroid_jax.data.parquet import read_text_column

_STEMS = {
    "train": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}
_PLAIN = re.compile(rf"(?:wiki\.)?({'|'.join(_STEMS)})\.(?:txt|raw|tokens)")
_PARQUET = re.compile(rf"({'|'.join(_STEMS)})(?:-(\d+)-of-(\d+))?\.parquet")
_KNOWN = "train.txt, wiki.train.raw, wiki.train.tokens or train*.parquet"
_PARAGRAPH_END = re.compile(rb"\n[ \t\r]*\n")
_TRAIN_END, _VALID_END = 0.90, 0.95


def load_path(path: Path) -> Corpus:
    """Loads ``file:PATH``: one file, or a folder with a file for each split.

    One file is cut by position, 90 % for training, the next 5 % for validation, the
    last 5 % for testing; each cut moves on to the next end of a paragraph (else of a
    line) within 2 % of the file. In a folder a split's file is ``SPLIT.txt``,
    ``.raw`` or ``.tokens``, with or without ``wiki.`` in front, or parquet with a
    column ``text``; SPLIT is train, valid (validation, val, dev) or test. Test may be
    missing; without validation the last 5 % of train become it, with a note.

    Bytes stay as they are: what isn't UTF-8 and carriage returns are only noted.

    Raises:
      CorpusError: nothing there, nothing in it, no train split, two files for one
        split, or a split that is part of another.
    """
    try:
        if path.is_dir():
            return _load_folder(path)
        if path.is_file():
            return _load_file(path)
        if path.exists():
            raise CorpusError(f"{path} is neither a file nor a folder of files")
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {error.strerror}") from None
    raise CorpusError(_missing(path))


def _load_file(path: Path) -> Corpus:
    data = read_split([path])
    splits, how = _cut(data, (_TRAIN_END, _VALID_END))
    named = dict(zip(SPLITS, splits, strict=True))
    sizes = ", ".join(f"{split} {len(named[split])}" for split in SPLITS)
    notes: tuple[str, ...] = (f"one file, split by position at {how}: {sizes} bytes",)
    notes += _encoding_notes(path.name, data)
    return make_corpus(f"file:{path.name}", named, str(path), notes)


def find_splits(folder: Path) -> dict[str, list[Path]]:
    """The files of each split in ``folder``; a split without any is left out.

    Raises:
      CorpusError: two files claim the same split, or a parquet shard is missing.
    """
    found: dict[str, dict[str, list[Path]]] = {}
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        if match := _PLAIN.fullmatch(path.name.lower()):
            found.setdefault(_STEMS[match[1]], {})[path.name] = [path]
        elif match := _PARQUET.fullmatch(path.name.lower()):
            family = f"{match[1]}-*-of-{match[3]}.parquet" if match[3] else path.name
            found.setdefault(_STEMS[match[1]], {}).setdefault(family, []).append(path)
    for split, families in found.items():
        if len(families) > 1:
            raise CorpusError(
                f"{folder} has more than one {split} split: "
                f"{', '.join(sorted(families))}; keep one"
            )
        _check_shards(folder, next(iter(families.values())))
    return {split: next(iter(families.values())) for split, families in found.items()}


def read_split(paths: list[Path], *, wikitext_rows: bool = False) -> bytes:
    """The bytes of a split's files, one after the other; an empty split is refused."""
    pieces = []
    for path in paths:
        if path.suffix.lower() == ".parquet":
            pieces.append(read_text_column(path, wikitext_rows=wikitext_rows))
        else:
            pieces.append(_read_bytes(path))
    data = b"".join(pieces)
    if not data:
        raise CorpusError(f"{paths[0]} is empty: fill it with text, or remove it")
    return data


def _load_folder(folder: Path) -> Corpus:
    found = find_splits(folder)
    if "train" not in found:
        names = sorted(p.name for p in folder.iterdir())
        listing = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise CorpusError(
            f"{folder} has no train split: name it {_KNOWN}; the folder holds "
            f"{listing or 'nothing'}"
        )
    data = {split: read_split(paths) for split, paths in found.items()}
    notes: tuple[str, ...] = ()
    for split in found:
        names_read = ", ".join(path.name for path in found[split])
        notes += _encoding_notes(names_read, data[split])
    if "valid" not in data:
        (data["train"], data["valid"]), how = _cut(data["train"], (_VALID_END,))
        notes += (
            f"no validation file: the last {len(data['valid'])} bytes of train, cut at "
            f"{how}, are the validation split",
        )
    data.setdefault("test", b"")
    _check_disjoint(folder, data)
    return make_corpus(f"file:{folder.name}", data, str(folder), notes)


def _cut(data: bytes, ends: tuple[float, ...]) -> tuple[list[bytes], str]:
    """Cuts near the given fractions; also says at what kind of boundary."""
    cuts, kinds = [0], set()
    for fraction in ends:
        target = max(int(len(data) * fraction), cuts[-1])
        cut, kind = _boundary(data, target, len(data) // 50)
        cuts.append(cut)
        kinds.add(kind)
    cuts.append(len(data))
    pieces = [data[start:stop] for start, stop in itertools.pairwise(cuts)]
    return pieces, " and ".join(sorted(kinds))


def _boundary(data: bytes, target: int, reach: int) -> tuple[int, str]:
    if match := _PARAGRAPH_END.search(data, target, target + reach):
        return match.end(), "a paragraph's end"
    line_end = data.find(b"\n", target, target + reach)
    if line_end >= 0:
        return line_end + 1, "a line's end"
    return target, "a byte (no line ends near)"


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {error.strerror}") from None


def _check_shards(folder: Path, paths: list[Path]) -> None:
    """Refuses an incomplete set of files named ``x-00000-of-00002.parquet``."""
    match = _PARQUET.fullmatch(paths[0].name.lower())
    if match and match[3] and len(paths) != int(match[3]):
        raise CorpusError(
            f"{folder} holds {len(paths)} of the {int(match[3])} files of "
            f"{match[1]}-*-of-{match[3]}.parquet: add the others"
        )


def _check_disjoint(folder: Path, data: dict[str, bytes]) -> None:
    """Refuses a split that is another, or a piece of another."""
    for one, other in itertools.combinations(SPLITS, 2):
        first_is_small = len(data[one]) < len(data[other])
        small, large = (one, other) if first_is_small else (other, one)
        if data[small] and data[small] in data[large]:
            what = "the same bytes as" if data[one] == data[other] else "a piece of"
            raise CorpusError(
                f"in {folder} the {small} split is {what} the {large} split, so the "
                "results would be worthless: give each split text of its own"
            )


def _encoding_notes(name: str, data: bytes) -> tuple[str, ...]:
    notes = []
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = ""
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            hint = " (it begins like UTF-16: convert it to UTF-8 if it is text)"
        notes.append(
            f"{name} is not UTF-8 (first at byte {error.start}): its bytes are kept "
            f"as they are{hint}"
        )
    if returns := data.count(b"\r\n"):
        notes.append(
            f"{name} has {returns} CRLF line ends: kept as they are, two bytes each"
        )
    return tuple(notes)


def _missing(path: Path) -> str:
    try:
        neighbours = [other.name for other in path.parent.iterdir()]
        near = difflib.get_close_matches(path.name, neighbours)
    except OSError:
        return f"{path} does not exist, nor does its folder: check the path"
    hint = f"did you mean {path.parent / near[0]}?" if near else "check the path"
    where = "" if path.is_absolute() else f" (looked in {Path.cwd()})"
    return f"{path} does not exist{where}: {hint}"
