"""Draws the dashboard of a coordinator that runs, for the documentation.

python -m tests.transport.dashboard.picture http://localhost:8470/ dashboard.png
    [JAVASCRIPT]    what to wait for, such as a worker that is late
"""

import asyncio
import sys
from pathlib import Path

from tests.transport.dashboard.browser import Tab, browser

_SIZE = 1280, 900
_WAIT = 300.0  # seconds


async def _draw(address: str, url: str, path: Path, wanted: str) -> None:
    async with Tab.open(address, *_SIZE) as tab:
        await tab.go(url)
        await tab.until("document.querySelector('#link.live')", _WAIT)
        await tab.until(wanted, _WAIT)
        await tab.screenshot(path)


if __name__ == "__main__":
    with browser() as address:
        wanted = sys.argv[3] if len(sys.argv) > 3 else "true"
        asyncio.run(_draw(address, sys.argv[1], Path(sys.argv[2]), wanted))
