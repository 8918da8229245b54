"""Checkpoints of a run: one directory a round, one item a block, restored in parts.

A round's directory::

    3/block_0/data.0, index.0.json     block 0 of the parameters, by process 0
    3/block_1/...
    3/interface/...                    the parameters that every worker holds
    3/rest/...                         optimizer states, keys, counters
    3/commit_success.txt               Orbax's sign of a finished write
    3/manifest.json                    ours, written last: what all this is, digests

Parameters that aren't ``{"blocks": ..., "interface": ...}`` are one item, ``params``.
An item stands alone: its data is the raw bytes of its arrays, its index says where
each is and carries a digest of every 4 MiB (see ``digests``), and the manifest holds a
SHA-256 of the index. So an item can be copied, sent and checked by itself, and piece by
piece; where strangers hand it on, write it with ``digest="blake3"``.
"""

from spheroid_jax.checkpoints.errors import CheckpointError
from spheroid_jax.checkpoints.store import FORMAT_VERSION, Checkpoints

__all__ = ["FORMAT_VERSION", "CheckpointError", "Checkpoints"]
