"""Listening: who comes in, and for how long."""

import asyncio
import logging
import time
from collections import deque

from spheroid_jax.serving.wire import handshake
from spheroid_jax.serving.wire.auth import Credentials, Identity
from spheroid_jax.serving.wire.connection import Connection, Handler, Watcher, ignore
from spheroid_jax.serving.wire.stream import Limits, Stream, WireError
from spheroid_jax.transport.http.tls import is_loopback
from spheroid_jax.transport.ledger import LedgerError

log = logging.getLogger(__name__)


class Listener:
    """Listens, and keeps the connections; :func:`listen` makes one.

    Attributes:
      port: where.
      connections: that have proven themselves and are open.
    """

    def __init__(
        self,
        credentials: Credentials,
        identity: Identity,
        handler: Handler,
        opened: Watcher | None,
        closed: Watcher | None,
        limits: Limits,
    ):
        self.port = 0
        self.connections: set[Connection] = set()
        self._credentials, self._identity = credentials, identity
        self._handler, self._opened, self._closed = handler, opened, closed
        self._limits = limits
        self._strangers: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._watch: asyncio.Task[None] | None = None
        self._complained: deque[float] = deque(maxlen=10)

    async def open(self, host: str, port: int) -> None:
        """Begins to listen; port 0 takes a free one.

        Raises:
          ValueError: the address can't be had.
        """
        limits, context = self._limits, self._credentials.server
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: Stream(limits, self._meet),
                host,
                port,
                ssl=context,
                ssl_handshake_timeout=limits.handshake_seconds if context else None,
                ssl_shutdown_timeout=limits.close_seconds if context else None,
            )
        except OSError as error:
            said = error.strerror or error
            raise ValueError(
                f"can't listen on {host}:{port}: {said}; choose another --listen"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._watch = asyncio.create_task(self._revoke())

    async def close(self, text: str = "it ends") -> None:
        """Takes no more, and closes what is open."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._strangers)
        if self._watch is not None:
            tasks.append(self._watch)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections = list(self.connections)
        await asyncio.gather(*(one.close(text) for one in connections))

    def _meet(self, stream: Stream) -> None:
        limits = self._limits
        if len(self._strangers) >= limits.strangers or (
            len(self.connections) >= limits.connections
        ):
            self._complain(f"{stream.where} is one connection too many: refused")
            stream.cut()
            return
        task = asyncio.create_task(self._welcome(stream))
        self._strangers.add(task)
        task.add_done_callback(self._strangers.discard)

    async def _welcome(self, stream: Stream) -> None:
        limits = self._limits
        try:
            peer = await handshake.welcome(
                stream, self._credentials, self._identity, limits.handshake_seconds
            )
        except WireError as error:
            self._complain(str(error))
            return
        connection = Connection(stream, peer, limits)
        self.connections.add(connection)
        if self._opened is not None:
            self._opened(connection)
        connection.start(self._handler, self._gone)

    def _gone(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._closed is not None:
            self._closed(connection)

    async def _revoke(self) -> None:
        """Cuts, for ever, the connections whose tokens aren't valid any more."""
        admits = self._credentials.admits
        while admits is not None:
            await asyncio.sleep(self._limits.revocation_seconds)
            try:
                keys = admits.current()
            except LedgerError as error:
                self._complain(f"tokens can't be checked: {error}")
                continue
            for one in list(self.connections):
                if keys.get(one.peer.name) != one.peer.key:
                    said = f"the token of {one.peer.name} was revoked"
                    one.cut(WireError(f"{one.peer.where}: {said}", "revoked"))

    def _complain(self, text: str) -> None:
        """A line in the log; strangers get ten in ten seconds, not more."""
        now = time.monotonic()
        full = len(self._complained) == self._complained.maxlen
        if not full or now - self._complained[0] > 10.0:
            self._complained.append(now)
            log.warning("%s", text)


async def listen(
    host: str,
    port: int,
    credentials: Credentials,
    handler: Handler = ignore,
    *,
    identity: Identity,
    opened: Watcher | None = None,
    closed: Watcher | None = None,
    limits: Limits | None = None,
) -> Listener:
    """Lets peers in that prove that they know a token.

    Args:
      host, port: where; port 0 takes a free one.
      credentials: whom to admit.
      handler: of what peers say.
      identity: of this process.
      opened: is called with every new connection, before its first message.
      closed: is called once with every connection that is over.
      limits: of everything.

    Raises:
      ValueError: the address can't be had, nobody could ever come in, or it would be
        plain TCP to other machines.
    """
    if credentials.admits is None:
        raise ValueError("whom to let in? give --token-file or --workdir")
    if (
        credentials.server is None
        and not credentials.insecure
        and not is_loopback(host)
    ):
        raise ValueError(
            f"--listen={host}:{port} lets other machines in, and plain TCP can be read "
            "and changed on the way; give --certificate and --key for TLS, or "
            "--insecure in a net you trust"
        )
    limits = limits or Limits()
    listener = Listener(credentials, identity, handler, opened, closed, limits)
    await listener.open(host, port)
    return listener
