"""What a worker trains, fetched and loaded."""

import asyncio
from typing import Any

from spheroid_jax import manifests
from spheroid_jax.transport.items.cache import ItemCache
from spheroid_jax.transport.items.loading import load_part
from spheroid_jax.transport.link import Link, LinkError
from spheroid_jax.transport.protocol import Work

_KINDS = ("block", "interface")  # of a worker's items, as load_part wants them


async def fetched_part(link: Link, cache: ItemCache, work: Work, abstract: Any) -> Any:
    """The block and the interface that a work is about.

    What is damaged on this disk is fetched once more.

    Args:
      link: to the coordinator.
      cache: of items.
      work: to train.
      abstract: ``{"block", "interface"}`` as shapes.

    Raises:
      LinkError: they can't be fetched, or this disk damages them.
    """
    items = {kind: work.items[kind] for kind in _KINDS if kind in work.items}
    if len(items) < len(_KINDS):
        raise LinkError(
            "the coordinator gives work without its items; install its release",
            code="garbled",
        )
    for last in (False, True):
        # Not what the coordinator calls them: they are folders here.
        block, interface = [
            (await cache.get(link, item, kind)).path for kind, item in items.items()
        ]
        try:
            return await asyncio.to_thread(load_part, block, interface, abstract)
        except manifests.Damage as damage:
            if last:
                raise LinkError(f"this disk: {damage}", code="disk") from damage
            for kind, item in items.items():
                cache.discard(item, kind)
    raise AssertionError
