"""Who asks a front end too often is put off, and nobody else is."""

import asyncio
import dataclasses

import aiohttp

from spheroid_jax.transport.http.rates import Rate
from tests.serving.frontend.fakes import LIMITS, House, house

NAMES = {"token-of-ann-0123456": "ann", "token-of-bob-0123456": "bob"}
SELDOM = dataclasses.replace(
    LIMITS, asks=Rate(0.01, 3), stranger_asks=Rate(0.01, 4), hold=0.05
)


async def status(
    it: House, path: str, token: str = "", source: str = "127.0.0.1"
) -> tuple[int, str | None]:
    """Status and Retry-After of an answer; each by a connection of its own."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connector = aiohttp.TCPConnector(local_addr=(source, 0))
    url = f"http://127.0.0.1:{it.running.port}{path}"
    async with (
        aiohttp.ClientSession(connector=connector, headers=headers) as http,
        http.get(url) as answer,
    ):
        body = await answer.json() if path != "/metrics" else {}
        if answer.status == 429:
            assert body["error"]["code"] == "busy"
        return answer.status, answer.headers.get("Retry-After")


def test_a_client_that_asks_too_often_is_put_off_and_no_other() -> None:
    async def main() -> None:
        ann, bob = NAMES
        async with house(name_of=NAMES.get, limits=SELDOM) as it:
            for _ in range(3):
                assert await status(it, "/v1/models", ann) == (200, None)
            assert await status(it, "/v1/models", ann) == (429, "100")
            assert await status(it, "/v1/models", bob) == (200, None)

    asyncio.run(main())


def test_strangers_put_off_neither_clients_nor_another_address() -> None:
    async def main() -> None:
        async with house(name_of=NAMES.get, limits=SELDOM) as it:
            for path, expected in (("/healthz", 200), ("/v1/models", 401)) * 2:
                assert (await status(it, path))[0] == expected
            assert await status(it, "/healthz") == (429, "100")
            assert (await status(it, "/v1/models", "wrong-token-012345"))[0] == 401
            assert (await status(it, "/healthz", source="127.0.0.2"))[0] == 200
            for token in NAMES:
                assert (await status(it, "/v1/models", token))[0] == 200

    asyncio.run(main())


def test_who_needs_no_token_is_never_put_off() -> None:
    async def main() -> None:
        async with house(limits=dataclasses.replace(SELDOM, connections=120)) as it:
            asked = [status(it, "/v1/models") for _ in range(80)]
            assert await asyncio.gather(*asked) == [(200, None)] * 80

    asyncio.run(main())
