"""A headless Chromium, spoken to by its DevTools protocol: no package is needed."""

import asyncio
import base64
import contextlib
import itertools
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # which can't be had as root or in most containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


def installed() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.contextmanager
def browser() -> Iterator[str]:
    """Address of a running browser's DevTools."""
    program = installed()
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        log = Path(folder, "log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [program, *_FLAGS, f"--user-data-dir={folder}/profile", "about:blank"],
                stdout=output,
                stderr=output,
            )
        try:
            yield asyncio.run(asyncio.wait_for(_address(process, log), 60))
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


async def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    while process.poll() is None:
        if found := re.search(r"listening on (ws://\S+)", log.read_text("utf-8")):
            return found[1]
        await asyncio.sleep(0.05)
    raise RuntimeError(f"{process.args} ended: {log.read_text('utf-8')[-500:]}")


class Tab:
    """A page of the browser.

    Attributes:
      complaints: what its console had to say: errors, warnings, exceptions, and what
        the policy refused.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse):
        self._socket, self._numbers = socket, itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._session = ""
        self.complaints: list[str] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls, address: str, width: int, height: int, dark: bool = False
    ) -> AsyncIterator[Self]:
        """A new tab, empty yet."""
        async with (
            aiohttp.ClientSession() as client,
            client.ws_connect(address, max_msg_size=0) as socket,
        ):
            tab = cls(socket)
            reader = asyncio.create_task(tab._read())
            made = await tab.call("Target.createTarget", url="about:blank")
            target = made["targetId"]
            attached = await tab.call(
                "Target.attachToTarget", targetId=target, flatten=True
            )
            tab._session = attached["sessionId"]
            for domain in ("Runtime", "Log", "Page"):
                await tab.call(f"{domain}.enable")
            await tab.size(width, height)
            scheme = "dark" if dark else "light"
            await tab.call(
                "Emulation.setEmulatedMedia",
                features=[{"name": "prefers-color-scheme", "value": scheme}],
            )
            try:
                yield tab
            finally:
                tab._session = ""
                await tab.call("Target.closeTarget", targetId=target)
                reader.cancel()

    async def call(self, method: str, **given: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        message = {"id": number, "method": method, "params": given}
        if self._session:
            message["sessionId"] = self._session
        await self._socket.send_json(message)
        said = await asyncio.wait_for(answer, 30)
        assert "error" not in said, (method, said)
        return said["result"]

    async def size(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    async def go(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression comes to."""
        said = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True
        )
        assert "exceptionDetails" not in said, (expression, said)
        return said["result"].get("value")

    async def until(self, expression: str, wait: float = 20.0) -> None:
        """Returns when it is true."""
        async with asyncio.timeout(wait):
            while not await self.value(f"Boolean({expression})"):
                await asyncio.sleep(0.05)

    async def text(self) -> str:
        """The text as a reader sees it, with single spaces."""
        return " ".join((await self.value("document.body.innerText")).split())

    async def screenshot(self, path: Path) -> None:
        """The whole page, to its end."""
        image = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(image["data"]))

    async def _read(self) -> None:
        async for message in self._socket:
            said = message.json()
            if answer := self._answers.pop(said.get("id", 0), None):
                answer.set_result(said)
            elif said.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(str(said["params"]["exceptionDetails"]))
            elif said.get("method") == "Runtime.consoleAPICalled":
                self.complaints.append(str(said["params"]["args"]))
            elif said.get("method") == "Log.entryAdded":
                self.complaints.append(said["params"]["entry"]["text"])
