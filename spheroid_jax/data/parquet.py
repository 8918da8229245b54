"""Text from parquet files, byte for byte."""

from pathlib import Path

from spheroid_jax.data.corpus import CorpusError

INSTALL = 'pip install "spheroid_jax[data]"'


def has_pyarrow() -> bool:
    """Whether parquet files can be read."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        return False
    return True


def read_text_column(path: Path, *, wikitext_rows: bool = False) -> bytes:
    """Joins the rows of column ``text`` as UTF-8 bytes, each row a line.

    Args:
      path: a parquet file.
      wikitext_rows: rows are written as in the hub's WikiText, where a row brings its
        own newline and an empty row stands for the line ``" "``: joined so they are
        the official raw file, to the byte. Otherwise a newline is added to every row
        that doesn't end with one.

    Raises:
      CorpusError: pyarrow is missing, the file is damaged, or it has no such column.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise CorpusError(
            f"{path.name} is parquet, which needs pyarrow: {INSTALL}"
        ) from None
    pieces = []
    try:
        with pq.ParquetFile(path) as file:
            if "text" not in file.schema_arrow.names:
                raise CorpusError(
                    f"{path} has no column 'text', only {file.schema_arrow.names}: "
                    "rename the column that holds the text"
                )
            for batch in file.iter_batches(columns=["text"]):
                # As binary no row is decoded, so none can be altered or refused.
                rows = batch.column(0).cast(pa.large_binary()).to_pylist()
                if wikitext_rows:
                    pieces += [row or b" \n" for row in rows]
                else:
                    pieces += [_as_line(row or b"") for row in rows]
    except (pa.ArrowException, OSError) as error:
        raise CorpusError(
            f"{path} cannot be read as parquet: {one_line(error)}"
        ) from None
    return b"".join(pieces)


def _as_line(row: bytes) -> bytes:
    return row if row.endswith(b"\n") else row + b"\n"


def one_line(error: BaseException) -> str:
    """The error's message without its line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
