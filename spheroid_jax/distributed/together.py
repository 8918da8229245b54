"""What processes of a group tell each other, besides arrays."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax._src import distributed as _jax_distributed

from spheroid_jax.distributed.errors import CURE, DistributedError

_FOREVER = 7 * 24 * 3600 * 1000  # ms; the end of a process is noticed in other ways
# What XLA and its transports say when a peer is gone.
_PEER_GONE = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|socket closed|barrier|coordination|"
    r"UNAVAILABLE|DEADLINE_EXCEEDED",
    re.I,
)


def state() -> Any:
    """JAX' own record of the group.

    Private, but the only way to the coordination service; Orbax takes it too. Asking
    it, unlike ``jax.process_index()``, doesn't start a backend.
    """
    return _jax_distributed.global_state


def several() -> bool:
    """Whether this run spans processes."""
    return state().client is not None


def is_main() -> bool:
    """Whether this process writes what people read."""
    return state().process_id == 0


def agree(name: str, value: Callable[[], Any]) -> Any:
    """The JSON value that process 0 computes, at every process; once for a ``name``."""
    if not several():
        return value()
    key = f"spheroid/agreed/{name}"
    if is_main():
        found = value()
        state().client.key_value_set(key, json.dumps(found))
        return found
    return json.loads(state().client.blocking_key_value_get(key, _FOREVER))


def check_same(name: str, facts: Mapping[str, Any], cure: str) -> None:
    """Raises DistributedError unless ``facts`` are the same as at process 0."""
    mine = json.loads(json.dumps(dict(facts)))
    theirs = agree(name, lambda: mine)
    different = [
        f"{fact} is {mine.get(fact)!r} here, {theirs.get(fact)!r} there"
        for fact in sorted(mine.keys() | theirs.keys())
        if mine.get(fact) != theirs.get(fact)
    ]
    if different:
        raise DistributedError(
            f"process {state().process_id} has another {name} than process 0: "
            f"{'; '.join(different)}; {cure}"
        )


def lost_peer(error: BaseException) -> str:
    """One line if ``error`` means that another process is gone, else nothing."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, jax.errors.JaxRuntimeError):
        cause = cause.__cause__
    text = " ".join(str(cause or "").split())
    if not several() or not _PEER_GONE.search(text):
        return ""
    return (
        f"process {state().process_id} of {state().num_processes} lost another "
        f"process ({text[:160]}); {CURE}"
    )
