"""Sentences made from the numbers of a run between processes, and nothing else."""

from spheroid_jax.reports.exchange import facts
from spheroid_jax.reports.exchange.facts import Summary
from spheroid_jax.reports.exchange.tables import link, published_entry
from spheroid_jax.reports.published import Published
from spheroid_jax.reports.tables import duration, finite, nats, si


def verdicts(summary: Summary, numbers: Published | None) -> list[str]:
    """What the tables say, sentence by sentence.

    Args:
      summary: as :func:`spheroid_jax.runs.exchange.experiment.run_exchange` makes it.
      numbers: the paper's figures, or None where they aren't at hand.
    """
    return [
        loss_sentence(summary),
        lockstep_sentence(summary),
        bytes_sentence(summary),
        time_sentence(summary),
        hosts_sentence(summary),
        *published_sentences(summary, numbers),
    ]


def loss_sentence(summary: Summary) -> str:
    """From where to where, and who took part."""
    before, after = facts.ce_ends(summary)
    _, ensemble = facts.ce_ends(summary, "ce_ensemble")
    timely, late, expected = facts.participation(summary)
    took = f"{timely} of {expected} updates were in time"
    if timely == expected:
        took = f"full participation: all {expected} updates were in time"
    elif late:
        took += f", {late} more counted later"
    start = (
        f"goes from {nats(before)} to {nats(after)}" if finite(before) else nats(after)
    )
    return (
        f"CE_chain {start} nats/byte in {summary['rounds']} rounds of "
        f"{summary['workers']} workers, CE_ensemble ends at {nats(ensemble)}; {took}."
    )


def lockstep_sentence(summary: Summary) -> str:
    """How far it is from the simulator's run of the same seeds."""
    found = summary["lockstep"]
    largest = found["ce_difference"]
    size = f"{largest:.2g} nats" if finite(largest) else "not a number"
    text = (
        "Beside the lockstep simulator of the same seeds, in one process: the largest "
        f"difference of a CE over the rounds is {size} (round {found['ce_round']}), of "
        f"a parameter at the end {found['params_difference']:.2g}, "
        f"{found['params_relative']:.1e} of the parameters' norm. "
    )
    if found["unequal"]:
        return f"{text}The two needn't be equal: {found['unequal']}."
    if found["problem"]:
        return f"{text}NOT EQUAL: {found['problem']}."
    if rounding := found.get("rounding"):
        return (
            f"{text}Nobody was late and updates are float32, so the two must be equal "
            "but for the order of sums, of which training makes more with every step. "
            "The simulator begun one rounding beside its own first parameters ends "
            f"{rounding['ce_difference']:.2g} nats (round {rounding['ce_round']}) and "
            f"{rounding['params_relative']:.1e} of the norm from itself, and at no "
            f"evaluation was this run further off than {rounding['times']:g} times "
            "what that one had been by then: rounding explains all of it."
        )
    return (
        f"{text}Nobody was late and updates are float32, so the two must be equal, and "
        f"are, to the {found['tolerance']:g} nats that another order of float32 sums "
        "explains: the network changed delivery, not the mathematics."
    )


def bytes_sentence(summary: Summary) -> str:
    """What was moved, and what it is made of."""
    up, down = (facts.total(summary, way) for way in ("up", "down"))
    count = max(1, len(facts.rounds_of(summary)))
    plain = facts.moved(summary["workers"], count, summary["part_params"])
    text = (
        f"Moved: {si(up + down, 'B')}, {si(down, 'B')} to the workers as "
        f"{summary['broadcast']} and {si(up, 'B')} back as {summary['encoding']}, "
        f"{si((up + down) / count, 'B')} a round; {(up + down) / plain:.3f} times the "
        f"{si(plain, 'B')} of float32 parts of {si(summary['part_params'])} parameters,"
        " both ways, for every worker"
        " and round"
    )
    return f"{text}. HTTP's and TCP's own headers aren't counted."


def time_sentence(summary: Summary) -> str:
    """Where the time went."""
    p = facts.phases(summary)
    if not p.rounds:
        return "No round was closed."
    shares = (p.train, p.fetch + p.send, p.wait, p.closing)
    compute, transfer, wait, closing = (f"{x / p.rounds:.0%}" for x in shares)
    rest = max(0.0, summary["fleet_seconds"] - p.rounds)
    return (
        f"The rounds took {duration(p.rounds)}: a worker computes {compute} of it, "
        f"fetches and sends {transfer}, waits {wait}, and closing takes {closing}. "
        f"Starting, compiling, evaluating in between and ending took {duration(rest)} "
        "besides."
    )


def hosts_sentence(summary: Summary) -> str:
    """Where it ran: nobody should take it for several machines."""
    h, shaped = summary["hosts"], link(summary)
    text = f"All {summary['workers'] + 1} processes ran on one machine ({h['network']})"
    if not shaped:
        return f"{text}; no delay, rate or loss was added."
    text = f"{text}, each worker behind a proxy of its own: {shaped}"
    if finite(h["connection_bytes"]):
        text += (
            f", so that one connection carries {si(h['connection_bytes'], 'B/s')} at "
            "most (with loss by Mathis et al. 1997)"
        )
    return f"{text}. The proxy models a link; it isn't one."


def published_sentences(summary: Summary, numbers: Published | None) -> list[str]:
    """The paper's run, and how far the two scales are apart."""
    entry = published_entry(summary, numbers)
    if entry is None:
        return []
    before, after = facts.ce_ends(summary)
    up, down = (facts.total(summary, way) for way in ("up", "down"))
    model = summary["config"]["model"]
    lines = [
        f"The paper: {entry.value}, full participation; here CE_chain {nats(before)} "
        f"to {nats(after)} and {si(up + down, 'B')}. Not the same scale: "
        f"d = {entry.scale.get('width', 'not published')} there, {model['width']} "
        f"here; {entry.scale.get('hardware', 'other hardware')} there, one machine "
        f"here; {entry.scale.get('corpus')} there, {summary['corpus']['name']} here; "
        "batch, length and local steps there aren't published. The numbers can't be "
        "compared."
    ]
    if set_up := facts.PUBLISHED.get(summary["name"]):
        lines.append(
            f"The published {entry.numbers['moved']:g} GB are what {set_up.workers} "
            f"workers move in {set_up.rounds} rounds if whole float32 parts go both "
            f"ways at d = {set_up.width}, L = {facts.LAYERS}: {set_up.moved / 1e9:.2f} "
            "GB by our arithmetic."
        )
    return lines
