"""What is served, as far as stages tell: which of them belong together."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Part:
    """What a stage says it holds.

    Attributes:
      fingerprint: the same for all stages of a model, of one round of its training.
      name: of the model, for people and for requests.
      kind: ``blocktrain`` or ``autoregressive``.
      index: which of the stages it is.
      count: of all stages.
      places: T of the model.
      slots: texts that it can hold at once.
    """

    fingerprint: str
    name: str
    kind: str
    index: int
    count: int
    places: int
    slots: int

    @property
    def model(self) -> "Model":
        """The model that it is a part of."""
        return Model(self.fingerprint, self.name, self.kind, self.count, self.places)


@dataclasses.dataclass(frozen=True)
class Model:
    """What is served; attributes as of :class:`Part`."""

    fingerprint: str
    name: str
    kind: str
    count: int
    places: int


def part_of(facts: Mapping[str, Any]) -> Part:
    """A stage's facts, checked.

    Raises:
      ValueError: it is no stage, or says what can't be; one line.
    """
    try:
        part = Part(
            str(facts["fingerprint"]),
            str(facts["name"]),
            str(facts["kind"]),
            int(facts["index"]),
            int(facts["count"]),
            int(facts["places"]),
            int(facts["slots"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"it doesn't say what it holds ({error!r}): is it a stage of this version?"
        ) from None
    if not 0 <= part.index < part.count or part.places < 1 or part.slots < 1:
        raise ValueError(f"it says that it holds {part}, which can't be")
    return part


def chosen(parts: Iterable[Part], current: Model | None) -> Model | None:
    """The model to serve: the one until now while it has a stage, or is whole.

    Stages of different models, or of different rounds of one, are never mixed. When
    all stages are started again with a newer model, the newer one takes over once it
    is whole and the older isn't.

    Args:
      parts: of the stages that are up.
      current: the model until now.
    """
    held: dict[Model, set[int]] = {}
    for part in parts:
        held.setdefault(part.model, set()).add(part.index)
    whole = [model for model, blocks in held.items() if len(blocks) == model.count]
    if current in held and (current in whole or not whole):
        return current
    if whole:
        return whole[0]
    if current is not None or not held:
        return current
    return max(held, key=lambda model: len(held[model]))
