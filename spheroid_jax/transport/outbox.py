"""An update on its way, kept on the worker's disk until it is delivered."""

import os
from pathlib import Path

from spheroid_jax import manifests
from spheroid_jax.transport.protocol import (
    ProtocolError,
    Upload,
    decode,
    encode,
)


class Outbox:
    """At most one update at a time."""

    def __init__(self, directory: Path) -> None:
        """Opens ``directory``."""
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / "update"
        self.owed = directory / "owed"  # what it leaves owing, if it is accepted
        self._letter = directory / "upload.json"

    def put(self, upload: Upload) -> None:
        """The update in ``file`` is to be sent, as this message says.

        Raises:
          OSError: it can't be written.
        """
        part = self._letter.with_suffix(".part")
        part.write_bytes(encode(upload))
        manifests.sync(part)
        os.replace(part, self._letter)

    def pending(self) -> Upload | None:
        """What is to be sent, if anything is."""
        try:
            upload = decode(self._letter.read_bytes(), Upload)
        except (OSError, ProtocolError):
            return None
        whole = self.file.exists() and self.file.stat().st_size == upload.bytes
        return upload if whole else None

    def clear(self) -> None:
        """Nothing is to be sent any more."""
        for path in (self._letter, self.file, self.owed):
            path.unlink(missing_ok=True)
