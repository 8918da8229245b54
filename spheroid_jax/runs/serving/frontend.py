"""A front end as a process: from its options to the signal that ends it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from spheroid_jax.fields import ConfigError
from spheroid_jax.ports import check_free
from spheroid_jax.runs.exchange.frame import say
from spheroid_jax.runs.serving.stopping import signals
from spheroid_jax.serving.frontend.assembly import Frontend, assemble
from spheroid_jax.serving.frontend.front import NameOf
from spheroid_jax.serving.frontend.http import make_app
from spheroid_jax.serving.options.frontend import FrontendOptions
from spheroid_jax.serving.wire.auth import Identity
from spheroid_jax.serving.wire.connection import Connection, Handler
from spheroid_jax.serving.wire.dialling import dial
from spheroid_jax.serving.wire.limits import Limits as WireLimits
from spheroid_jax.transport.http.limits import Limits, connections_for
from spheroid_jax.transport.http.server import Running, serve
from spheroid_jax.transport.ledger import Ledger
from spheroid_jax.transport.tokens import LEDGER, Tokens

STOPS = "stops once what it writes is written"


def serve_frontend(options: FrontendOptions) -> str:
    """Serves until it is asked to stop.

    Returns:
      ``finished``.

    Raises:
      ConfigError: it can't be served; one line.
      LedgerError: the clients' tokens can't be read.
    """
    asyncio.run(serve_frontend_until_stopped(options))
    say("has stopped")
    return "finished"


async def serve_frontend_until_stopped(options: FrontendOptions) -> None:
    """Serves until a signal, and gives what is being written some time then.

    Raises:
      ConfigError: it can't listen, or no stage knows its token; one line.
    """
    stopped = asyncio.create_task(signals(lambda: STOPS).wait())
    async with running(options) as (frontend, _):
        rejected = asyncio.create_task(frontend.stages.rejected.wait())
        await asyncio.wait([stopped, rejected], return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            raise ConfigError(
                "no stage knows our token: give the front end and all stages the same "
                "--token-file"
            )
        rejected.cancel()
        await drain(frontend)


@contextlib.asynccontextmanager
async def running(
    options: FrontendOptions, tell: Callable[[str], None] = say
) -> AsyncIterator[tuple[Frontend, Running]]:
    """A front end and its server, meanwhile.

    Raises:
      ConfigError: it can't listen; one line.
    """
    http, identity = options.http, Identity("frontend")
    limits = WireLimits(connect_seconds=http.settings.connect)

    async def connect(address: str, handler: Handler) -> Connection:
        return await dial(
            address, options.credentials, handler, identity=identity, limits=limits
        )

    frontend = assemble(
        options.stages,
        connect,
        identity.id,
        http.settings,
        http.method,
        http.wire_dtype,
        tell,
    )
    with contextlib.ExitStack() as stack:
        name_of: NameOf | None = None
        if http.clients is not None:
            ledger = stack.enter_context(Ledger.open(http.clients / LEDGER))
            name_of = Tokens(ledger).name_of
        app = make_app(frontend, Limits(connections=connections_for(1)), name_of)
        async with frontend.stages.connected():
            try:
                server = await serve(app, http.host, http.port, http.context)
            except ValueError as error:
                check_free(http.host, http.port)  # says it in our words
                raise ConfigError(str(error)) from error
            try:
                scheme = "https" if http.context else "http"
                tell(f"front end listens on {scheme}://{http.host}:{server.port}/v1")
                yield frontend, server
            finally:
                await server.close()


async def drain(frontend: Frontend) -> None:
    """Takes nothing new, and gives what is being written some time."""
    admission = frontend.admission
    admission.closed = True
    loop = asyncio.get_running_loop()
    until = loop.time() + frontend.settings.drain
    while (admission.inside or admission.waiting) and loop.time() < until:
        await asyncio.sleep(0.02)
