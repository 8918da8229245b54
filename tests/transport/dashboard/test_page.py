"""The page in a real browser, on a desk and on a phone."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from PIL import Image

from spheroid_jax.transport.dashboard import Viewing
from spheroid_jax.transport.dashboard.page import page
from tests.transport.dashboard.browser import Tab, browser, installed
from tests.transport.dashboard.fake import (
    HOSTILE,
    FakeCoordinator,
    served,
    status,
    worker,
)

needs_browser = pytest.mark.skipif(
    installed() is None, reason="no chromium: apt install chromium"
)
FAST = Viewing(interval=0.05, refresh=5.0, keep_alive=5.0, stall=5.0)
DESK, PHONE = (1200, 800), (360, 740)
GREY = "getComputedStyle(document.querySelector('main')).filter === 'grayscale(1)'"
LIVE = "document.querySelector('#link.live')"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with browser() as address:
        yield address


def look(
    address: str,
    test: Callable[[FakeCoordinator, Tab], Awaitable[None]],
    facts: dict[str, Any] | None = None,
    size: tuple[int, int] = DESK,
    viewing: Viewing = FAST,
    dark: bool = False,
    ready: str = LIVE,
) -> None:
    """Runs a test on the page once it has shown the first status."""

    async def main() -> None:
        coordinator = FakeCoordinator(status() if facts is None else facts)
        async with (
            served(coordinator, viewing) as url,
            Tab.open(address, *size, dark=dark) as tab,
        ):
            await tab.go(url)
            await tab.until(ready)
            await test(coordinator, tab)

    asyncio.run(asyncio.wait_for(main(), 60))


async def assert_fits(tab: Tab, width: int) -> None:
    """Nothing reaches over the right edge, so nobody has to scroll sideways."""
    assert await tab.value("document.documentElement.scrollWidth") <= width
    over = await tab.value(
        "[...document.querySelectorAll('main *, header *')].filter((e) =>"
        f" e.getBoundingClientRect().right > {width} + 0.5).map((e) => e.outerHTML)"
    )
    assert over == []


NUMBERS = (
    # what the status says, as the page puts it
    # counted from 1: twelve are done
    "Round 13 is open",
    "waiting for 2 of 6 updates",
    "12 of 16 rounds done, about 4.0 min to go",  # four of the usual 59.75 s
    "left of 1 min 00 s",
    "Heard this round 4 of 6 6 of 6 workers are here",
    "Awaited: osaka-2 (block 1, training), quito-1 (block 2, sending)",
    "CE of the chain 2.3146 \u2193 0.0573 since round 10",  # 2.3719 before
    "CE of the ensemble 2.2367 \u2193 0.0527 since round 10",  # 2.2894
    "Received from workers 207 MB",
    "Sent to workers 888 MB",
    "Late now: quito-2 (block 2)",
    "0 98 % 2 of 2 round 12",  # blocks; the status says 11, counted from 0
    "2 60 % 1 of 2 round 10",
    "0 84 % 48",  # ages: 48 of 57
    "1 12 % 7",
    "2 4 % 2",
    "12 61 s 6 of 6 0.2 17.2 MB 74.0 MB",  # the newest round, 60.75 s
    "11 61 s 4 of 6, 1 late 0.1 17.2 MB 74.0 MB",  # one of five counted later
    " s ago quito-2: no heartbeat for 30 s",
    "7.4 min ago quito-1: rejected: a norm of 412.7, above 38.1",  # 754 - 311
)


@needs_browser
@pytest.mark.parametrize(
    ("size", "dark"), [(DESK, False), (PHONE, False), (PHONE, True)]
)
def test_the_numbers_are_on_the_page(
    address: str, tmp_path: Path, size: tuple[int, int], dark: bool
) -> None:
    async def test(coordinator: FakeCoordinator, tab: Tab) -> None:
        text = await tab.text()
        for number in NUMBERS:
            assert number in text
        assert re.search(r"\b1[2-9] s ago quito-2", text)  # 754 - 742, and it goes on
        # One line a worker: what counted is accepted of all that were sent, 5 of 11.
        rows = await tab.value(
            "[...document.querySelector('#workers tbody').rows].map((row) =>"
            " [...row.cells].map((cell) => cell.innerText.trim()))"
        )
        late = "quito-2|▲ late|2, 1|41 s ago|45 %|5|6|0|1.4|21.5 MB|148 MB"
        spent = "|60 / 30 / 10 %|AMD Ryzen 7 5800X"  # of 1000 s
        first = [cell.replace("\u00a0", " ") for cell in rows[0]]
        assert "|".join(first[:3]) == "|".join(late.split("|")[:3])
        assert re.fullmatch(r"4\d s ago", first[3])  # the clock goes on
        assert "|".join(first[4:]) == late.split("|", 4)[4] + spent
        assert [row[0] for row in rows[1:]] == [
            "amsterdam-1",
            "amsterdam-2",
            "osaka-1",
            "osaka-2",
            "quito-1",
        ]
        labels = await tab.value(
            "[...document.querySelectorAll('#chart .value')].map((e) => e.textContent)"
        )
        assert labels == ["2.3146", "2.2367"]
        share = await tab.value(
            "(([bar, track]) => bar / track)([...document.querySelectorAll("
            "'#blocks tr:nth-child(3) .track > i, #blocks tr:nth-child(3) .track')]"
            ".map((e) => e.getBoundingClientRect().width).sort((a, b) => a - b))"
        )
        assert share == pytest.approx(0.6, abs=0.02)
        assert await tab.value("document.getElementById('rounds').value") == 12
        assert await tab.value("document.getElementById('rounds').max") == 16
        assert await tab.value("document.title") == "12/16 · open · wan"
        await assert_fits(tab, size[0])
        await assert_drawn(tab, tmp_path / "page.png", size, dark)
        assert tab.complaints == []

    look(address, test, size=size, dark=dark)


async def assert_drawn(tab: Tab, path: Path, size: tuple[int, int], dark: bool) -> None:
    await tab.screenshot(path)
    with Image.open(path) as picture:
        assert picture.width == size[0]
        assert picture.height >= size[1]
        histogram = picture.convert("L").histogram()
        light = sum(histogram[128:]) / sum(histogram)
        ink = light if dark else 1 - light
        assert 0.005 < ink < 0.3  # text and lines on an empty ground
        # The lines of the chart, in their two colours.
        found = {pixel for _, pixel in picture.convert("RGB").getcolors(1 << 20) or []}
        chart = ("#7fb3ff", "#f2a661") if dark else ("#1f5fbf", "#a8480a")
        for colour in chart:
            assert tuple(bytes.fromhex(colour[1:])) in found


@needs_browser
def test_the_page_follows_the_run_without_being_loaded_again(address: str) -> None:
    async def test(coordinator: FakeCoordinator, tab: Tab) -> None:
        await tab.value("window.mark = 'the same page'")
        after = status()
        after["ce"].append({"round": 13, "ce_chain": 2.1807, "ce_ensemble": 2.1144})
        after["workers"] = [*after["workers"][:4], worker("lima-1", 2, "training")]
        coordinator.change(
            round=13,
            state="closing",
            ce=after["ce"],
            workers=after["workers"],
            staleness=[48, 7, 2, 3],
            bytes={"down": 962_000_000, "up": 223_700_000},
            problems=[],
        )
        await tab.until("document.title.startsWith('13/16')")
        text = await tab.text()
        for number in (
            "Closing round 14",
            "13 of 16 rounds done",
            "CE of the chain 2.1807",
            "CE of the ensemble 2.1144",
            "Received from workers 224 MB",
            "Sent to workers 962 MB",
            "Nobody is late.",
            "lima-1",
            "3 5 % 3",  # the new age, 3 of 60
            "Problems None.",
        ):
            assert number in text
        for old in ("quito", "2.3146", "Late now", "left of"):
            assert old not in text
        assert await tab.value("window.mark") == "the same page"
        assert tab.complaints == []

    look(address, test)


@needs_browser
def test_the_clock_goes_on_between_events(address: str) -> None:
    async def test(coordinator: FakeCoordinator, tab: Tab) -> None:
        left = "document.getElementById('left-text').textContent"
        await tab.until(f"{left}.startsWith('Deadline: 40')")  # from 42
        assert coordinator.version == 1
        coordinator.change(opened_seconds=61.0)
        await tab.until(f"{left} === 'The deadline has passed'")
        coordinator.change(deadline=None)
        await tab.until(f"/^Open for 1\\smin/.test({left})")

    look(address, test, viewing=FAST._replace(refresh=60.0))


@needs_browser
@pytest.mark.parametrize("size", [DESK, PHONE])
def test_what_a_worker_says_is_text(address: str, size: tuple[int, int]) -> None:
    facts = status()
    facts["workers"][0]["device"] = HOSTILE
    facts["workers"][1]["device"] = "\u202egpu\u202e </td><script>x()</script>"
    facts["workers"][2]["name"] = "n" * 64
    facts["workers"][3]["state"] = HOSTILE
    facts["problems"] = [{"time": 1.0, "text": HOSTILE}]
    facts["why"] = facts["name"] = HOSTILE
    # A big run has wide numbers.
    facts["rounds_log"].append(
        {
            "round": 12_345,
            "seconds": 5_900.0,
            "heard": 100,
            "expected": 128,
            "bytes_up": 123_000_000_000,
            "bytes_down": 123_000_000_000,
            "age": 12.3,
        }
    )
    facts["blocks"].append(
        {
            "block": 127,
            "workers": 128,
            "heard": 100,
            "participation": 1.0,
            "last_trained": 12_345,
        }
    )

    async def test(coordinator: FakeCoordinator, tab: Tab) -> None:
        await assert_fits(tab, size[0])
        if size == PHONE:
            await tab.value("document.getElementById('all').click()")
        text = await tab.value("document.body.innerText")
        assert text.count(HOSTILE) == 5
        assert "</td><script>x()</script>" in text
        assert await tab.value("document.querySelectorAll('img, td b').length") == 0
        assert await tab.value("document.scripts.length") == 1
        assert await tab.value("document.title") == f"12/16 · open · {HOSTILE}"
        await assert_fits(tab, size[0])
        assert tab.complaints == []

    look(address, test, facts, size)


@needs_browser
def test_the_policy_holds_even_if_markup_came_in(address: str) -> None:
    async def test(coordinator: FakeCoordinator, tab: Tab) -> None:
        await tab.value(
            "document.body.insertAdjacentHTML('beforeend', "
            "'<img src=data:, onerror=\"window.owned=1\">');"
            "document.body.append(Object.assign(document.createElement('script'),"
            " {textContent: 'window.owned = 2'})); 0"
        )
        async with asyncio.timeout(10):
            while len(tab.complaints) < 2:
                await asyncio.sleep(0.05)
        assert all("Content Security Policy" in said for said in tab.complaints)
        assert await tab.value("window.owned") is None

    look(address, test)


EMPTY: dict[str, Any] = {"state": "waiting", "round": 0, "rounds": 16}
UNKNOWN: dict[str, Any] = {
    **EMPTY,
    "state": "odd",
    "why": None,
    "deadline": None,
    "blocks": [{"block": 0, "workers": 0, "participation": None, "last_trained": -1}],
    "workers": [{"name": "w", "state": "waiting", "block": None, "device": None}],
    "ce": [{"round": 0, "ce_chain": 5.0, "ce_ensemble": None}],
    "staleness": [0, 0],
    "rounds_log": [{"round": 0}],
    "problems": [{"text": "no time"}],
    "bytes": {},
}


@needs_browser
@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            EMPTY,
            [
                "Waiting for workers",
                "0 of 16 rounds done",
                "No evaluation yet.",
                "No update was accepted yet.",
                "No round is done yet.",
            ],
        ),
        (
            UNKNOWN,
            ["odd", "CE of the chain 5.0000", "0 \u2013 \u2013 of 0 never", "no time"],
        ),
        (
            {**status(), "state": "finished", "round": 16},
            ["Finished", "16 of 16 rounds done"],
        ),
        ({**status(), "state": "draining"}, ["Draining"]),
        (
            {**status(), "workers": [worker(f"w{i}", i, "gone") for i in range(250)]},
            ["50 more are in /status.", "w199 ✕ gone"],
        ),
    ],
)
def test_every_state_can_be_shown(
    address: str, facts: dict[str, Any], words: list[str]
) -> None:
    async def test(coordinator: FakeCoordinator, tab: Tab) -> None:
        text = await tab.text()
        for word in words:
            assert word in text
        for wrong in ("NaN", "undefined", "null", "Infinity"):
            assert wrong not in text
        assert tab.complaints == []

    look(address, test, dict(facts))


@needs_browser
def test_the_page_says_when_it_is_cut_off_and_comes_back(address: str) -> None:
    async def main() -> None:
        coordinator = FakeCoordinator(status())
        async with Tab.open(address, *DESK) as tab:
            async with served(coordinator, FAST) as url:
                await tab.go(url)
                await tab.until(LIVE)
                await tab.value("window.mark = 'the same page'")
            await tab.until("document.querySelector('#link.lost')")
            assert "✕ Connection lost since" in await tab.text()
            assert await tab.value("document.title") == "✕ 12/16 · open · wan"
            assert await tab.value(GREY)
            assert "CE of the chain 2.3146" in await tab.text()  # the last known
            coordinator.change(round=14)
            port = int(url.rsplit(":", 1)[1])
            async with served(coordinator, FAST, port):
                await tab.until(LIVE)
                assert "14 of 16 rounds done" in await tab.text()
                assert not await tab.value(GREY)
                assert "Connection lost" not in await tab.text()
                assert await tab.value("window.mark") == "the same page"

    asyncio.run(asyncio.wait_for(main(), 60))


@needs_browser
def test_where_too_many_watch_the_page_still_shows_the_numbers(address: str) -> None:
    async def test(coordinator: FakeCoordinator, tab: Tab) -> None:
        assert "Every 5 s: too many watch for more" in await tab.text()
        assert not await tab.value(GREY)
        assert "CE of the chain 2.3146" in await tab.text()
        coordinator.change(round=15)  # it asks again, by and by
        await tab.until("document.title.startsWith('15/16')")

    full = FAST._replace(viewers=0)
    look(address, test, viewing=full, ready="document.querySelector('#link.slow')")


async def shown_columns(tab: Tab) -> list[str]:
    return await tab.value(
        "[...document.querySelector('#workers tbody').rows[0].cells]"
        ".filter((cell) => cell.checkVisibility()).map((cell) => cell.dataset.label)"
    )


@needs_browser
def test_a_phone_shows_the_columns_most_asked_for_and_all_when_asked(
    address: str,
) -> None:
    async def test(coordinator: FakeCoordinator, tab: Tab) -> None:
        few = ["Name", "State", "Block, replica", "Last seen", "Counted"]
        assert await shown_columns(tab) == few
        await tab.value("document.getElementById('all').click()")
        assert len(await shown_columns(tab)) == 13
        await assert_fits(tab, PHONE[0])

    look(address, test, size=PHONE)


@needs_browser
@pytest.mark.parametrize("size", [DESK, PHONE])
def test_long_names_take_no_room_from_words_and_numbers(
    address: str, size: tuple[int, int]
) -> None:
    facts = status()
    facts["workers"] = [
        worker("a" * 31 + "-" + "b" * 32, 0, "training", seen_seconds=3000.0),
        worker("short", 1, "fetching", device="NVIDIA H100 80GB HBM3 " * 4),
    ]

    async def test(coordinator: FakeCoordinator, tab: Tab) -> None:
        await assert_fits(tab, size[0])
        # No heading is broken within a word: each is as wide as its longest word.
        broken = await tab.value(
            "[...document.querySelectorAll('#workers thead th')].filter((th) =>"
            " th.checkVisibility() && th.scrollWidth > th.clientWidth + 1).length"
        )
        assert broken == 0
        lines = await tab.value(
            "[...document.querySelector('#workers tbody').rows[1].cells]"
            ".slice(1, 4).map((td) => Math.round(td.firstChild.getBoundingClientRect()"
            ".height / 17))"  # a line is 18 px on a phone, 23 on a desk
        )
        assert lines == [1, 1, 1]

    look(address, test, facts, size)


@needs_browser
def test_a_value_that_is_no_number_is_told_and_leaves_a_gap(address: str) -> None:
    facts = status()
    facts["ce"][3]["ce_chain"] = float("nan")
    facts["ce"][6]["ce_chain"] = float("inf")

    async def test(coordinator: FakeCoordinator, tab: Tab) -> None:
        text = await tab.text()
        assert "CE of the chain not finite after round 12" in text
        assert "The evaluation after round 12 isn't a finite number" in text
        assert "CE of the ensemble 2.2367" in text
        lines = await tab.value(
            "[...document.querySelectorAll('#chart polyline.chain')]"
            ".map((line) => line.getAttribute('points').split(' ').length)"
        )
        assert lines == [3, 2]  # rounds 0, 2, 4 and 8, 10
        facts["ce"].append({"round": 14, "ce_chain": 2.9, "ce_ensemble": 2.2})
        coordinator.change(ce=facts["ce"])
        await tab.until("!document.querySelector('#alerts li')")
        # Worse by more than a little: 2.9 where the best was 2.3719.
        rise = "↑ 0.5281 since round 10; best 2.3719"
        assert rise in await tab.text()
        assert await tab.value("document.querySelector('#trend-chain.bad') !== null")

    look(address, test, facts)


@needs_browser
def test_a_disk_that_refuses_is_told_loudly_and_once(address: str) -> None:
    async def test(coordinator: FakeCoordinator, tab: Tab) -> None:
        assert await tab.value("document.querySelector('#alerts li')") is None
        await tab.value(
            "window.said = 0; new MutationObserver(() => window.said++).observe("
            "document.querySelector('[aria-live]'), {childList: true, subtree: true,"
            " characterData: true}); 0"
        )
        coordinator.change(writable=False, state="closing", why="can't save: no space")
        await tab.until("document.querySelector('#alerts li')")
        text = await tab.text()
        assert "The coordinator's disk refuses to write: make room." in text
        assert "can't save: no space" in text
        assert (await tab.value("document.title")).startswith("! 12/16")
        coordinator.change(round=13)
        await tab.until("document.title.startsWith('! 13/16')")
        assert await tab.value("window.said") == 1  # to who listens to the page
        coordinator.change(writable=True)
        await tab.until("!document.querySelector('#alerts li')")

    look(address, test)


@needs_browser
def test_who_is_gone_who_starts_and_who_is_refused(address: str) -> None:
    facts = status()
    facts["workers"] = [
        worker("here", 0, "training"),
        worker("fresh", None, "gone", accepted=0, seen_seconds=20.0),
        worker("lost", None, "gone", seen_seconds=50.0),
        worker("old", None, "gone", seen_seconds=90_000.0),
        worker("poor", 1, "waiting", reason="a norm of 412.7, above 38.1"),
    ]

    async def test(coordinator: FakeCoordinator, tab: Tab) -> None:
        text = await tab.text()
        assert "Gone: lost Refused" in text  # not who is about to begin, nor of old
        assert "Refused: poor: a norm of 412.7, above 38.1" in text
        assert "2 of 5 workers are here" in text
        assert "fresh ○ starting" in text
        names = "[...document.querySelectorAll('#workers tbody th')]"
        order = await tab.value(f"{names}.map((th) => th.textContent)")
        assert order == ["lost", "here", "poor", "fresh", "old"]
        coordinator.change(state="finished", round=16)
        await tab.until("document.title.startsWith('16/16')")
        assert "Gone:" not in await tab.text()
        assert await tab.value("document.querySelector('#workers .bad')") is None

    look(address, test, facts)


@needs_browser
def test_while_nobody_is_there_no_deadline_is_shown(address: str) -> None:
    async def test(coordinator: FakeCoordinator, tab: Tab) -> None:
        shown = "document.getElementById('left').checkVisibility()"
        assert await tab.value(shown)
        coordinator.change(state="waiting", why="no worker is there")
        await tab.until("document.title.includes('waiting')")
        assert not await tab.value(shown)

    look(address, test)


@needs_browser
def test_old_problems_are_folded_away(address: str) -> None:
    facts = status()
    facts["problems"] = [{"time": 10.0 * i, "text": f"trouble {i}"} for i in range(9)]

    async def test(coordinator: FakeCoordinator, tab: Tab) -> None:
        text = await tab.text()
        assert text.index("trouble 8") < text.index("trouble 6") < text.index("6 older")
        assert "trouble 5" not in text
        await tab.value("document.querySelector('#older-problems summary').click()")
        assert "trouble 0" in await tab.text()

    look(address, test, facts)


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2.2 defines it."""
    channels = [byte / 255 for byte in bytes.fromhex(colour[1:])]
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", [0, 1])
def test_every_colour_of_text_stands_out(scheme: int) -> None:
    roots = re.findall(r":root \{(.*?)\}", page()[0], flags=re.DOTALL)
    assert len(roots) == 2  # light and dark
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", roots[scheme]))
    ground = luminance(colours["paper"])
    for name in ("ink", "soft", "chain", "ensemble", "good", "bad"):
        high, low = sorted((luminance(colours[name]), ground), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, name


def test_the_page_asks_nobody_else() -> None:
    text = page()[0]
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[\w/]*", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not a request


def test_a_client_without_a_browser_gets_the_same_page() -> None:
    async def main() -> None:
        async with (
            served(FakeCoordinator(status())) as url,
            aiohttp.ClientSession() as client,
            client.get(url) as answer,
        ):
            assert "JavaScript" in await answer.text()  # and is told of /status
            assert 'href="status"' in await answer.text()

    asyncio.run(asyncio.wait_for(main(), 20))
