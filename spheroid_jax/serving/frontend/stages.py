"""All stages: which model they make up, and the way of a text through them."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence

from spheroid_jax.serving.frontend.link import Dial, StageLink
from spheroid_jax.serving.frontend.metrics import StageSample
from spheroid_jax.serving.frontend.model import Model, Part, chosen
from spheroid_jax.serving.frontend.settings import Settings
from spheroid_jax.serving.frontend.trips import Trips
from spheroid_jax.serving.wire.messages import Arrays, Failure, Result

log = logging.getLogger(__name__)
Route = tuple[StageLink, ...]  # one of each block, in order
_NEVER_REACHED = "no stage of it was reached yet: it may still be starting"


class Stages:
    """Connections to all stages; replicas hold the same block.

    Args:
      addresses: of the stages, in any order.
      dial: connects to one.
      settings: how long to wait for what.
      say: told what an operator has to know, a line each.

    Attributes:
      model: that is served; None before a stage was reached.
      trips: that are on their way.
      rejected: set if no stage at all has known our token.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        dial: Dial,
        settings: Settings,
        say: Callable[[str], None] = log.warning,
    ) -> None:
        self.model: Model | None = None
        self.trips = Trips()
        self.rejected = asyncio.Event()
        self.links = [
            StageLink(address, place, dial, settings, self)
            for place, address in enumerate(addresses)
        ]
        self._settings, self._say = settings, say
        self._said: dict[str, str] = {}
        self._news = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator["Stages"]:
        """Keeps the connections up meanwhile."""
        tasks = [asyncio.ensure_future(link.run()) for link in self.links]
        try:
            yield self
        finally:
            self.trips.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls it whenever a stage's state is another."""
        self._listeners.append(listener)

    # What there is.

    def live(self, block: int) -> list[StageLink]:
        """The stages with a block that can be used now."""
        return [link for link in self.links if self._is_live(link, block)]

    @property
    def missing(self) -> list[int]:
        """Blocks without a stage that can be used; of an unknown model, [0]."""
        if self.model is None:
            return [0]
        return [b for b in range(self.model.count) if not self.live(b)]

    @property
    def capacity(self) -> int:
        """Texts that the stages can hold at once: as many as the fewest of a block."""
        if self.model is None:
            return 0
        blocks = (self.live(block) for block in range(self.model.count))
        return min(sum(part.slots for part in _parts(links)) for links in blocks)

    def name(self, link: StageLink) -> str:
        """A stage by what it holds, for clients, who need not know of addresses."""
        if link.part is None:
            return f"number {link.place} of --stages"
        return f"block {link.part.index} replica {self._replica(link)}"

    def _replica(self, link: StageLink) -> int:
        """Which of those with its block, by place; of an unknown block, the place."""
        if link.part is None:
            return link.place
        before = self.links[: link.place]
        return sum(one.index == link.part.index for one in _parts(before))

    def absent(self) -> str:
        """Which blocks have no stage, and what is known of those that had them."""
        if self.model is None:
            said = [f"{self.name(link)}: {link.told}" for link in self.links]
            return f"no stage was reached yet ({'; '.join(said)})"
        said = []
        for block in self.missing:
            had = [
                f"replica {self._replica(link)}: {link.told}"
                for link in self.links
                if link.part is not None and link.part.index == block
            ]
            known = "; ".join(had) or _NEVER_REACHED
            said.append(f"block {block} has no stage ({known})")
        return "; ".join(said) or "all blocks have a stage"

    def samples(self) -> tuple[StageSample, ...]:
        """The stages, as metrics."""
        return tuple(
            StageSample(
                "" if link.part is None else str(link.part.index),
                str(self._replica(link)),
                self._is_live(link, None),
                0 if link.part is None else link.part.slots,
                link.pong.slots_free if link.state == "up" else 0,
                link.pong.queue,
            )
            for link in self.links
        )

    # Ways.

    def route(
        self, avoid: Collection[str] = (), strictly: bool = False
    ) -> Route | None:
        """One stage of each block, those with the least to do.

        Args:
          avoid: addresses to do without, where there are others.
          strictly: no way rather than one of those.

        Returns:
          None if a block has no stage.
        """
        if self.model is None:
            return None
        way = []
        for block in range(self.model.count):
            live = self.live(block)
            other = [link for link in live if link.address not in avoid]
            choice = other if strictly else other or live
            if not choice:
                return None
            way.append(min(choice, key=lambda link: link.load))
        return tuple(way)

    async def news(self, seconds: float) -> None:
        """Waits until a stage's state is another, but no longer than that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._news.wait()

    # What links tell.

    def changed(self, link: StageLink, why: str) -> None:
        """A stage came, went, or hangs."""
        up = [one.part for one in self.links if one.state == "up" and one.part]
        before, self.model = self.model, chosen(up, self.model)
        if before is not None and before != self.model and self.model is not None:
            self._say(f"model {self.model.name} {self.model.fingerprint} takes over")
        self._tell(link, why)
        if self.model is None and all(one.rejected for one in self.links):
            self.rejected.set()
        if link.state in ("down", "refused", "connecting"):
            self.trips.lost(link.address, "gone", self._news_of(link))
        self._route_around()
        news, self._news = self._news, asyncio.Event()
        news.set()
        for listener in self._listeners:
            listener()

    def heard(self, link: StageLink, message: Result | Failure, arrays: Arrays) -> None:
        """A sweep came to its end."""
        if isinstance(message, Result):
            self.trips.returned(message, arrays)
        else:
            self.trips.failed(message, link.address)

    def _route_around(self) -> None:
        """Trips through a stage that hangs are made again, where there is another."""
        for link in self.links:
            if link.state != "suspected" or not self.trips.through(link.address):
                continue
            if self.route({link.address}, strictly=True) is not None:
                self.trips.lost(link.address, "silent", self._news_of(link))

    def _news_of(self, link: StageLink) -> str:
        return f"{self.name(link)}: {link.told}"

    def _is_live(self, link: StageLink, block: int | None) -> bool:
        part = link.part
        if link.state != "up" or part is None or part.model != self.model:
            return False
        return block is None or part.index == block

    def _tell(self, link: StageLink, why: str) -> None:
        """Says what became of a stage, once."""
        part, state = link.part, str(link.state)
        if state == "up" and part is not None and part.model != self.model:
            state = "refused"
            why = (
                f"it holds {part.name} {part.fingerprint}, not what is served: start "
                "all stages from the same checkpoint"
            )
        if self._said.get(link.address) != state:
            self._said[link.address] = state
            if link.rejected:
                self._say(why)
                return
            held = "" if part is None else f" block {part.index} of {part.count}"
            self._say(f"stage {link.address}{held}: {state} ({why})")


def _parts(links: Sequence[StageLink]) -> list[Part]:
    return [link.part for link in links if link.part is not None]
