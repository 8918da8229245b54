"""What a stage allows, and how long it waits."""

import dataclasses

from spheroid_jax.serving.errors import ServingError


@dataclasses.dataclass(frozen=True)
class HostSettings:
    """Limits of a stage; seconds and numbers.

    Attributes:
      slots: requests whose keys and values are held at once.
      max_batch: rows that are computed together at most.
      queue: sweeps that may wait; as many results may be on their way out.
      idle: seconds without a sweep after which a request's slot is freed.
      connect: seconds for a connection to the next stage, its handshake included.
      backoff: seconds for which a next stage that couldn't be reached isn't dialled.
      tick: seconds between looks for what is late or idle.
      drain: seconds that a computation and what was sent get when the stage ends.
    """

    slots: int = 64
    max_batch: int = 16
    queue: int = 256
    idle: float = 600.0
    connect: float = 10.0
    backoff: float = 0.5
    tick: float = 0.25
    drain: float = 5.0

    def __post_init__(self) -> None:
        for name in ("slots", "max_batch", "queue"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= 1 << 20:
                raise ServingError(f"{name} is {value!r}; give a whole number from 1")
        for name in ("idle", "connect", "tick", "drain"):
            value = getattr(self, name)
            if not 0 < value < 1e9:
                raise ServingError(f"{name} is {value!r}; give seconds above 0")
