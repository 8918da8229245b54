"""Requests to a coordinator: one try each, with a token, timed, and no redirects."""

import contextlib
import math
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import aiohttp
import msgspec

from spheroid_jax.transport import protocol
from spheroid_jax.transport.http import answers, sending, tls
from spheroid_jax.transport.http.file_body import FileBody
from spheroid_jax.transport.http.retry import Pace, Tools, Tries
from spheroid_jax.transport.protocol import MESSAGE_LIMIT, PREFIX

Message = TypeVar("Message", bound=msgspec.Struct)

_BUFFER = 1 << 20  # bytes that wait to be read, of each connection
_CONNECTIONS = 8


class Timeouts(NamedTuple):
    """Seconds. There is none for a whole transfer: large ones take what they take."""

    connect: float = 20.0  # until there is a connection: name, TCP, TLS
    sock_connect: float = 10.0  # of that, TCP with one address
    sock_read: float = 60.0  # without a byte, while an answer is awaited or comes in
    stall: float = 60.0  # without getting rid of a MiB, or of an answer to the last


class Asking:
    """Connections to a coordinator, and the tries of what is asked over them.

    Make it and use it inside one event loop; ``close`` it, or use ``async with``.
    """

    def __init__(
        self,
        url: str,
        token: tls.Token,
        ca: Path | None = None,
        *,
        insecure: bool = False,
        timeouts: Timeouts = Timeouts(),  # noqa: B008  (immutable)
        pace: Pace = Pace(),  # noqa: B008
        notice: Callable[[str], None] = lambda line: None,
        tools: Tools = Tools(),  # noqa: B008
    ) -> None:
        """Connects to nothing yet.

        Args:
          url: Address of the coordinator, such as ``https://host:8470``.
          token: Who this worker is.
          ca: File of certificates to trust; None for those of the system.
          insecure: Allow ``http://`` to other machines.
          timeouts: How long to wait for a sign of life.
          pace: When to try again, and for how long.
          notice: Gets one line for every try that failed.
          tools: Clock, sleep and random numbers.

        Raises:
          ValueError: The address or the certificate can't be used; says why.
        """
        self._address = tls.address(url, insecure=insecure)
        self.url = str(self._address)
        self._context: ssl.SSLContext | bool = True
        if self._address.scheme == "https":
            self._context = tls.client_context(ca)
        self._token, self._timeouts, self._pace = token, timeouts, pace
        self._notice, self._tools = notice, tools
        self._has_met = False
        self._most = math.inf  # seconds of patience, whatever the pace says
        self._opened: aiohttp.ClientSession | None = None
        self._speed = sending.Speed()  # of the line

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def close(self) -> None:
        """Closes the connections."""
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def timeouts(self) -> Timeouts:
        """As given."""
        return self._timeouts

    @property
    def tools(self) -> Tools:
        """As given."""
        return self._tools

    def tries(self, what: str) -> Tries:
        """The tries of a call, told as ``what``."""
        pace = self._pace
        return Tries(
            what,
            self.url,
            patience=pace.patience if self._has_met else pace.first_patience,
            pace=pace,
            tools=self._tools,
            notice=self._notice,
            most=lambda: self._most,
            hints=not self._has_met,
        )

    def hurry(self, seconds: float) -> None:
        """From now on, calls that get nowhere end after so long, those on too."""
        self._most = seconds

    async def post(
        self,
        path: str,
        message: msgspec.Struct | None,
        kind: type[Message],
        *,
        wait: float = 0.0,
    ) -> Message:
        """One try to say a message and to read the answer; raises as ``ask``."""
        body = b"{}" if message is None else protocol.encode(message)
        async with self.ask("POST", path, body=body, wait=wait) as answer:
            content = await answers.body(answer, MESSAGE_LIMIT)
            return answers.message(answer, content, kind)

    @contextlib.asynccontextmanager
    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes | FileBody | None = None,
        headers: Mapping[str, str] | None = None,
        wait: float | None = 0.0,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One try of a request; gives the answer if it is a good one.

        ``wait`` is what the coordinator may take longer than ``sock_read``, in
        seconds; None for as long as it likes.

        Raises:
          Again: It failed, and may not fail the next time.
          LinkError: It is refused.
        """
        said = {"Content-Type": "application/json"} if isinstance(body, bytes) else {}
        times = self._timeouts
        timeout = aiohttp.ClientTimeout(
            total=None,
            connect=times.connect,
            sock_connect=times.sock_connect,
            sock_read=None if wait is None else times.sock_read + wait,
        )
        failure: Exception | None = None
        try:
            async with self._session().request(
                method,
                self.url + PREFIX + path,
                data=body,
                headers={**said, **(headers or {})},
                allow_redirects=False,
                timeout=timeout,
            ) as answer:
                await answers.check(answer, self.url, self._token)
                self._has_met = True
                yield answer
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failure = answers.failure(error, self.url)
        if failure is not None:  # raised here, without a context: some of aiohttp's
            raise failure  # errors hold the headers that were sent, and so the token

    def _session(self) -> aiohttp.ClientSession:
        """Made late, as it belongs to the loop that runs."""
        if self._opened is None:
            settings: dict[str, Any] = {
                "headers": {
                    "Authorization": f"Bearer {self._token.reveal()}",
                    "User-Agent": "spheroid_jax",
                    "Accept-Encoding": "identity",
                },
                "connector": aiohttp.TCPConnector(
                    ssl=self._context, limit=_CONNECTIONS
                ),
                "cookie_jar": aiohttp.DummyCookieJar(),
                "auto_decompress": False,
                "read_bufsize": _BUFFER,
                "trust_env": False,
            }
            self._opened = aiohttp.ClientSession(**settings)
        return self._opened
