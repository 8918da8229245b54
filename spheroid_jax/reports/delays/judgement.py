"""A claim and what became of it."""

from typing import Literal, NamedTuple

LARGE = 8  # outer updates; the published recipe is said to fail from 4 or 8 on
TAU, KIND, DROP = "delay.tau", "delay.kind", "sync.drop"
Outcome = Literal["yes", "no", "part", "unsure"]
_SAID = {
    "yes": "Reproduced at this scale",
    "no": "Not reproduced at this scale",
    "part": "Reproduced in part at this scale",
    "unsure": "Can't be judged here",
}


class Judgement(NamedTuple):
    """A claim, what became of it, and the numbers that decide."""

    claim: str
    outcome: Outcome
    because: str

    def __str__(self) -> str:
        """One or two sentences."""
        return f"{_SAID[self.outcome]}: {self.claim}. {self.because}"
