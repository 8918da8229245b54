"""Configurations of the exchange that train in a second or two."""

from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

TEXT = "The quick brown fox jumps over the lazy dog; the dog sleeps on. " * 60


def toy(c: ConfigDict, folder: Path, **changes: Any) -> ConfigDict:
    """A configuration, made tiny; its text is put into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(TEXT)
    c.data.corpus = f"file:{folder / 'text.txt'}"
    c.model.blocks, c.model.layers, c.model.width, c.model.heads = 2, 1, 16, 2
    c.data.seq_len, c.data.batch = 8, 2
    c.train.replicas, c.train.rounds, c.train.local_steps = 1, 3, 2
    c.eval.windows, c.eval.batch = 4, 4
    for field, value in changes.items():
        c.update_from_flattened_dict({field.replace("__", "."): value})
    return c
