"""Draws the dashboard for the documentation, from a status made up for the tests.

python -m tests.transport.dashboard.picture docs/images/dashboard.png
"""

import asyncio
import sys
from pathlib import Path

from tests.transport.dashboard.browser import Tab, browser
from tests.transport.dashboard.fake import FakeCoordinator, served, status

_WIDTH = 1200


async def _draw(address: str, path: Path) -> None:
    async with (
        served(FakeCoordinator(status())) as url,
        Tab.open(address, _WIDTH, 800) as tab,
    ):
        await tab.go(url)
        await tab.until("document.querySelector('#link.live')")
        await tab.screenshot(path)


if __name__ == "__main__":
    with browser() as address:
        asyncio.run(asyncio.wait_for(_draw(address, Path(sys.argv[1])), 60))
