"""Who works on what: slots of blocks, given to workers that come and go.

Nobody moves without need, and no block is left alone: not while another has two
workers, and with fewer workers than blocks not for long, since those go round.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class Slot(NamedTuple):
    """A place in a round; it decides data and randomness, whoever holds it.

    Attributes:
      block: from 0.
      replica: which of the block's, from 0.
    """

    block: int
    replica: int


def assign(
    workers: Sequence[str],
    held: Mapping[str, Slot],
    blocks: int,
    replicas: int,
    last_trained: Sequence[int],
    *,
    pinned: Collection[str] = (),
) -> dict[str, Slot]:
    """Gives every worker a slot, as far as there are slots.

    With at least as many workers as blocks, every block has one, and the largest and
    the smallest number of a block's workers differ by no more than one above what
    they have to (0 if the workers divide evenly, else 1). As few workers move as that
    allows. With fewer workers than blocks, those blocks are taken that were trained
    least recently. A worker's replica number is the lowest that is free when it comes
    to the block, and stays.

    Args:
      workers: that are there, in order of joining; the last ones wait if there are
        more than slots.
      held: what they hold; workers that are gone and slots that don't exist (any
        more) don't count.
      blocks: B.
      replicas: slots of each block.
      last_trained: for each block the last round in which it was trained, -1 for
        never.
      pinned: workers that mustn't move now, such as those in the middle of a round.
        Then promises hold as far as the others can keep them.

    Returns:
      {worker: slot}, in order of joining; no slot twice.
    """
    _check(workers, blocks, replicas, last_trained)
    kept = _kept(workers, held, blocks, replicas, pinned)
    by_age = sorted(range(blocks), key=lambda block: (last_trained[block], block))
    if len(workers) < blocks:
        kept = _rotated(workers, kept, by_age, pinned)
    else:
        _fill(workers, kept, by_age, replicas)
        _level(workers, kept, by_age, pinned)
    return {worker: kept[worker] for worker in workers if worker in kept}


def _check(
    workers: Sequence[str], blocks: int, replicas: int, last_trained: Sequence[int]
) -> None:
    if blocks < 1 or replicas < 1:
        raise ValueError(f"blocks={blocks}, replicas={replicas}: have at least one")
    if len(last_trained) != blocks:
        raise ValueError(f"last_trained={last_trained}: give {blocks}, one a block")
    if len(set(workers)) != len(workers):
        raise ValueError(f"workers={list(workers)}: name each once")


def _kept(
    workers: Sequence[str],
    held: Mapping[str, Slot],
    blocks: int,
    replicas: int,
    pinned: Collection[str],
) -> dict[str, Slot]:
    """What is held by right; of two with one slot the pinned or the earlier has it."""
    kept: dict[str, Slot] = {}
    taken: set[Slot] = set()
    for worker in sorted(workers, key=lambda worker: worker not in pinned):
        slot = held.get(worker)
        if slot is None or slot in taken:
            continue
        if 0 <= slot.block < blocks and 0 <= slot.replica < replicas:
            kept[worker] = slot
            taken.add(slot)
    return kept


def _rotated(
    workers: Sequence[str],
    kept: Mapping[str, Slot],
    by_age: Sequence[int],
    pinned: Collection[str],
) -> dict[str, Slot]:
    """Fewer workers than blocks: each one of the blocks that have waited longest."""
    slots = {worker: slot for worker, slot in kept.items() if worker in pinned}
    busy = {slot.block for slot in slots.values()}
    free = len(workers) - len(slots)
    chosen = [block for block in by_age if block not in busy][:free]
    for worker in workers:
        if worker not in slots and worker in kept and kept[worker].block in chosen:
            slots[worker] = kept[worker]
            chosen.remove(kept[worker].block)
    for worker in workers:
        if worker not in slots:
            slots[worker] = Slot(chosen.pop(0), 0)
    return slots


def _fill(
    workers: Sequence[str],
    slots: dict[str, Slot],
    by_age: Sequence[int],
    replicas: int,
) -> None:
    """Places those who have no slot, where the fewest are."""
    for worker in workers:
        if worker in slots:
            continue
        block = _emptiest(slots, by_age)
        if _counts(slots)[block] == replicas:
            return
        slots[worker] = _lowest(slots, block)


def _level(
    workers: Sequence[str],
    slots: dict[str, Slot],
    by_age: Sequence[int],
    pinned: Collection[str],
) -> None:
    """Moves workers, the latest to have joined first, until blocks are level enough."""
    allowed = 1 if len(slots) % len(by_age) == 0 else 2
    while True:
        counts = _counts(slots)
        movable = [worker for worker in workers if worker in slots.keys() - set(pinned)]
        if not movable:
            return
        # From the fullest block that anybody can leave, the last trained if several.
        rank = {block: (counts[block], by_age.index(block)) for block in by_age}
        worker = max(movable, key=lambda w: (rank[slots[w].block], workers.index(w)))
        most = counts[slots[worker].block]
        block = _emptiest(slots, by_age)
        alone = counts[block] == 0 and most >= 2
        if most - counts[block] <= allowed and not alone:
            return
        slots[worker] = _lowest(slots, block)


def _counts(slots: Mapping[str, Slot]) -> Counter[int]:
    return Counter(slot.block for slot in slots.values())


def _emptiest(slots: Mapping[str, Slot], by_age: Sequence[int]) -> int:
    """The block with the fewest workers; among equals that which waited longest."""
    counts = _counts(slots)
    return min(by_age, key=lambda block: counts[block])


def _lowest(slots: Mapping[str, Slot], block: int) -> Slot:
    """The free slot of a block with the lowest number."""
    taken = {slot.replica for slot in slots.values() if slot.block == block}
    return Slot(block, next(i for i in range(len(taken) + 1) if i not in taken))
