"""A front end whose token no stage knows."""

import asyncio
from pathlib import Path

import pytest

from spheroid_jax.fields import ConfigError
from spheroid_jax.runs.serving.frontend import serve_frontend_until_stopped
from spheroid_jax.serving.options.frontend import parse
from spheroid_jax.serving.wire.auth import Credentials, Identity
from spheroid_jax.serving.wire.listening import listen
from spheroid_jax.transport.http.tls import Token
from spheroid_jax.transport.tokens import mint


def test_it_ends_with_what_to_do(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(mint()[0])

    async def main() -> None:
        others = Credentials.shared(Token(mint()[0]))
        listener = await listen("127.0.0.1", 0, others, identity=Identity("stage"))
        options = parse(
            [
                *("--frontend", "--listen=127.0.0.1:0", f"--token-file={token}"),
                f"--stages=127.0.0.1:{listener.port}",
            ]
        )
        try:
            with pytest.raises(ConfigError, match="no stage knows our token: .*same"):
                await asyncio.wait_for(serve_frontend_until_stopped(options), 60)
        finally:
            await listener.close()

    asyncio.run(main())
