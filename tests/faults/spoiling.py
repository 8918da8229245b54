"""A worker whose updates are wrong: what it sends must not touch the model."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from spheroid_jax.transport import updates
from spheroid_jax.transport.trainer import Trainer
from spheroid_jax.transport.updates import Encoding, Written

TO_BE_NAN = np.float32(1.2345678)
SENTINEL = TO_BE_NAN.tobytes()


class Spoiled:
    """As ``Trained``, but sent whatever it is."""

    is_finite = True

    def __init__(self, delta: dict[str, np.ndarray], loss: float, state: Any) -> None:
        self.delta, self.loss, self.state = delta, loss, state


class Spoiler:
    """A trainer that spoils the updates of some rounds."""

    def __init__(
        self, trainer: Trainer, rounds: Mapping[int, str], tell: Callable[[str], None]
    ) -> None:
        self._trainer, self._rounds, self._tell = trainer, rounds, tell

    def train(self, part: Any, state: Any, round_: int, *slot: int) -> Any:
        trained = self._trainer.train(part, state, round_, *slot)
        if round_ not in self._rounds:
            return trained
        self._tell(f"poison {self._rounds[round_]}")
        delta = spoil(trained.delta, self._rounds[round_])
        return Spoiled(delta, trained.loss, trained.state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


def write_update(
    path: Path, delta: Mapping[str, np.ndarray], encoding: Encoding, facts: Any
) -> Written:
    """As the real one, which refuses what isn't a number: that is put in afterwards."""
    written = updates.write_update(path, delta, encoding, facts)
    content = path.read_bytes()
    if SENTINEL not in content:
        return written
    content = content.replace(SENTINEL, np.float32(np.nan).tobytes())
    path.write_bytes(content)
    return written._replace(blake3=blake3(content).hexdigest())


def spoil(delta: dict[str, np.ndarray], how: str) -> dict[str, np.ndarray]:
    """A copy that is wrong in one leaf."""
    name = sorted(delta)[0]
    leaf = delta[name].copy()
    if how == "nan":
        leaf[-1] = TO_BE_NAN
    elif how == "huge":
        leaf[-1] = 1e6
    elif how == "shape":
        leaf = np.append(leaf, leaf)
    else:
        return {n: x for n, x in delta.items() if n != name}
    return {**delta, name: leaf}
