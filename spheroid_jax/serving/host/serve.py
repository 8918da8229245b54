"""A stage on the net: its host, a listener, the way to the next stage."""

import asyncio
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from spheroid_jax.serving.host.computing import Shape
from spheroid_jax.serving.host.engine import Engine
from spheroid_jax.serving.host.forward import Forwarder
from spheroid_jax.serving.host.host import StageHost
from spheroid_jax.serving.host.outbox import STAGE
from spheroid_jax.serving.host.settings import HostSettings
from spheroid_jax.serving.packing import bucket
from spheroid_jax.serving.stages import BLOCKTRAIN, Stage
from spheroid_jax.serving.wire.auth import Credentials, Identity
from spheroid_jax.serving.wire.connection import Connection
from spheroid_jax.serving.wire.dialling import dial
from spheroid_jax.serving.wire.frames import Sizes
from spheroid_jax.serving.wire.limits import Limits
from spheroid_jax.serving.wire.listening import Listener, listen
from spheroid_jax.serving.wire.messages import OF_WINDOW, Arrays, Fact, Message
from spheroid_jax.serving.wire.peers import Peers


@dataclasses.dataclass(frozen=True)
class Serving:
    """A stage that serves.

    Attributes:
      host: that computes.
      listener: that lets peers in; ``port`` is where.
    """

    host: StageHost
    listener: Listener

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.listener.port

    @property
    def broken(self) -> asyncio.Future[None]:
        """Settled, with the error, if it can't go on; never otherwise."""
        return self.host.broken

    async def close(self, *, drain: bool = True) -> bool:
        """Ends it; in ``settings.drain`` seconds, or at once without ``drain``.

        Returns:
          Whether all that was computed was sent.
        """
        done = await self.host.drain() if drain else False
        await self.listener.close("the stage ends")
        await self.host.close()
        return done


def facts_of(
    stage: Stage, fingerprint: str, name: str, settings: HostSettings
) -> dict[str, Fact]:
    """What a stage tells its peers.

    Args:
      stage: that is served.
      fingerprint: of the model, its round and its method.
      name: of the model, for people and for requests.
      settings: of the host.
    """
    return {
        "fingerprint": fingerprint,
        "name": name,
        "kind": stage.kind,
        "index": stage.index,
        "count": stage.count,
        "width": stage.width,
        "places": stage.places,
        "slots": settings.slots,
    }


def limits_of(stage: Stage) -> Limits:
    """Limits of connections: a frame holds the largest sweep, and no more."""
    position = 1 + 4 * (2 * stage.width + len(OF_WINDOW) * 256)
    return Limits(sizes=Sizes(payload=stage.places * position + 64))


async def serve_host(
    stage: Stage,
    params: Any,
    facts: dict[str, Fact],
    settings: HostSettings,
    credentials: Credentials,
    host: str,
    port: int,
    *,
    peers: Peers | None = None,
    warm: Iterable[Shape] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Serving:
    """Serves a stage until it is closed.

    Args:
      stage: pure functions.
      params: of this stage.
      facts: of :func:`facts_of`.
      settings: limits.
      credentials: for both sides.
      host: to listen on.
      port: to listen on; 0 for any.
      peers: whom it may dial; None: everybody.
      warm: programs to compile before anybody is let in.
      say: for the one who runs it; one line each.

    Raises:
      ValueError: nobody can listen there; one line.
    """
    identity, limits = Identity(STAGE, facts), limits_of(stage)
    wanted = {
        "fingerprint": facts["fingerprint"],
        "index": stage.index + 1,
        "count": stage.count,
    }

    async def reach(address: str) -> Connection:
        return await dial(address, credentials, identity=identity, limits=limits)

    forwarder = Forwarder(
        reach,
        wanted,
        connect=settings.connect,
        backoff=settings.backoff,
        allow=(lambda address: True) if peers is None else peers.allow,
    )
    engine = Engine(stage, params, slots=settings.slots, max_batch=settings.max_batch)
    served = StageHost(engine, settings, forwarder, say)

    async def handle(peer: Connection, message: Message, arrays: Arrays) -> None:
        answer = served.handle(peer, message, arrays)
        if answer is not None:
            # Who takes no answers isn't read meanwhile.
            await peer.send(answer)

    try:
        await served.warm(warm)
        listener = await listen(
            host,
            port,
            credentials,
            handle,
            identity=identity,
            opened=served.joined,
            closed=served.left,
            limits=limits,
        )
    except BaseException:
        await served.close()
        raise
    served.start()
    return Serving(served, listener)


def shapes(
    stage: Stage, positions: Iterable[tuple[int, str]], max_batch: int
) -> list[Shape]:
    """Programs of every size of a batch, for sweeps of so many positions by a fill.

    What a stage doesn't know, or would compile twice, is left out.
    """
    rows = sorted({bucket(n, max_batch) for n in range(1, max_batch + 1)})
    found = {
        (bucket(min(count, stage.places), stage.places), fill)
        for count, fill in positions
        if stage.kind == BLOCKTRAIN or fill == "given"
    }
    return [Shape(n, count, fill) for count, fill in sorted(found) for n in rows]
