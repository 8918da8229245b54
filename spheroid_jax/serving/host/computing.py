"""What a host needs of who computes for it."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from spheroid_jax.serving.host.engine import Made, Work
from spheroid_jax.serving.stages import Stage


class Shape(NamedTuple):
    """A program to compile: rows and positions, padded, and what is static."""

    rows: int
    positions: int
    fill: str
    answer: str = "last"


class Computes(Protocol):
    """What is used of an :class:`~spheroid_jax.serving.host.engine.Engine`."""

    @property
    def stage(self) -> Stage:
        """Whose steps it computes."""

    def places(self, count: int) -> int:
        """Padded positions."""

    def compute(self, works: Sequence[Work], fill: str, answer: str) -> list[Made]:
        """Computes a batch."""

    def warm(self, batch: int, count: int, fill: str, answer: str) -> None:
        """Compiles a program."""
