"""One run on several processes: who is there, what each holds, and how they end.

Every process runs the same program on the same global mesh (``jax.distributed``), reads
the windows of its own workers alone and saves its own part of the state; process 0
writes what people read. With one process everything here does nothing.

Processes share their fate: when one ends, the others end too, with one line. A process
that fails says why, and the others hear of it within a second or two; one that is
killed or unreachable is missed by the next collective or, at the latest, by its
heartbeat.
"""

from spheroid_jax.distributed.arrays import (
    everywhere,
    mesh_devices,
    on_host,
    own_workers,
    spread_windows,
)
from spheroid_jax.distributed.errors import DistributedError
from spheroid_jax.distributed.group import Group, group_from_flags
from spheroid_jax.distributed.member import Member
from spheroid_jax.distributed.together import (
    agree,
    check_same,
    is_main,
    lost_peer,
    several,
)

__all__ = [
    "DistributedError",
    "Group",
    "Member",
    "agree",
    "check_same",
    "everywhere",
    "group_from_flags",
    "is_main",
    "lost_peer",
    "mesh_devices",
    "on_host",
    "own_workers",
    "several",
    "spread_windows",
]
