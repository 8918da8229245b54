"""The tables of a run between processes."""

from collections.abc import Mapping
from typing import Any

from spheroid_jax.reports.exchange import facts
from spheroid_jax.reports.exchange.facts import Summary
from spheroid_jax.reports.published import Entry, Published
from spheroid_jax.reports.tables import NOTHING, Table, finite, nats, si

UNKNOWN = "not published"


def rounds_table(summary: Summary, *, narrow: bool = False) -> Table:
    """A line a round: time, updates, bytes, losses, and the simulator's."""
    ours = {point["round"]: point for point in summary["ce"]}
    theirs = {point["round"]: point for point in summary["lockstep"]["ce"]}
    rounding = summary["lockstep"].get("rounding", {"ce": []})
    beside = {point["round"]: point for point in rounding["ce"]}
    records = {record["round"]: record for record in facts.rounds_of(summary)}
    rows = []
    for round_ in sorted({*ours, *records}):
        one, other = ours.get(round_, {}), theirs.get(round_, {})
        rows.append(
            [
                str(round_),
                *_told(records.get(round_)),
                nats(one.get("ce_chain")),
                nats(one.get("ce_ensemble")),
                nats(other.get("ce_chain")),
                _apart(one.get("ce_chain"), other.get("ce_chain")) if round_ else "",
                _apart(beside.get(round_, {}).get("ce_chain"), other.get("ce_chain"))
                if round_
                else "",
            ]
        )
    header = [
        *("round", "seconds", "closing", "in time", "late", "up", "down"),
        *("CE_chain", "CE_ensemble", "simulator", "difference", "by rounding"),
    ]
    kept = list(range(len(header)))
    if narrow:
        kept = [0, 1, 3, 5, 6, 7, *((10, 11) if beside else (9, 10))]
    elif not beside:
        kept = kept[:-1]
    header = [header[i] for i in kept]
    rows = [[row[i] for i in kept] for row in rows]
    return Table(header, rows, "r" * len(header))


def _told(record: Mapping[str, Any] | None) -> list[str]:
    if record is None:
        return [""] * 6
    return [
        f"{record['seconds']:.1f}",
        f"{record['closing_seconds']:.1f}",
        f"{record['timely']}/{record['expected']}",
        str(record["heard"] - record["timely"]),
        si(record["bytes_up"], "B"),
        si(record["bytes_down"], "B"),
    ]


def _apart(one: float | None, other: float | None) -> str:
    if not finite(one) or not finite(other):
        return NOTHING
    return f"{abs(one - other):.1e}"


def phases_table(summary: Summary) -> Table:
    """Where the time of the rounds went."""
    p = facts.phases(summary)
    count = max(1, len(facts.rounds_of(summary)))
    rows = [
        [what, f"{seconds:.1f}", f"{seconds / count:.2f}", _share(seconds, p.rounds)]
        for what, seconds in (
            ("compute: local steps", p.train),
            ("transfer: fetching", p.fetch),
            ("transfer: sending", p.send),
            ("closing: aggregating, stepping, saving", p.closing),
            ("waiting for others, packing", p.wait),
            ("all rounds", p.rounds),
        )
    ]
    header = ["a worker's time", "seconds", "a round", "share"]
    return Table(header, rows, "lrrr")


def _share(seconds: float, of: float) -> str:
    return f"{seconds / of:.0%}" if of else NOTHING


def workers_table(summary: Summary) -> Table:
    """A line a worker."""
    rows = []
    for name, m in sorted(summary["members"].items()):
        seconds = [f"{m['phases'][p]:.1f}" for p in ("train", "fetch", "send")]
        counts = [str(m[key]) for key in ("accepted", "late", "rejected")]
        rows.append(
            [name, *counts, *seconds, si(m["up"], "B"), si(m["down"], "B"), m["device"]]
        )
    header = [
        *("worker", "accepted", "late", "rejected", "trained, s", "fetched, s"),
        *("sent, s", "up", "down", "device"),
    ]
    return Table(header, rows, "lrrrrrrrrl")


def published_entry(summary: Summary, numbers: Published | None) -> Entry | None:
    """The paper's run of this name, if there is one."""
    entries = numbers.of(summary["name"]) if numbers else {}
    return next(iter(entries.values()), None)


def published_table(summary: Summary, numbers: Published | None) -> Table | None:
    """The paper's run and this one; None where there is none of the paper's."""
    entry = published_entry(summary, numbers)
    if entry is None:
        return None
    before, after = facts.ce_ends(summary)
    timely, _, expected = facts.participation(summary)
    model, corpus = summary["config"]["model"], summary["corpus"]
    up, down = (facts.total(summary, way) for way in ("up", "down"))
    set_up = facts.PUBLISHED.get(summary["name"])
    workers = f"{set_up.workers} (derived)" if set_up else UNKNOWN
    rows = [
        ["result", entry.value, f"CE_chain {nats(before)} to {nats(after)} nats/byte"],
        ["bytes moved", f"{entry.numbers['moved']:g} GB", si(up + down, "B")],
        ["participation", "full", f"{timely / max(1, expected):.0%}"],
        ["workers", workers, str(summary["workers"])],
        ["rounds", entry.scale.get("rounds", UNKNOWN), _rounds(summary)],
        ["width d", entry.scale.get("width", UNKNOWN), str(model["width"])],
        ["layers a block", str(facts.LAYERS), str(model["layers"])],
        [
            "corpus",
            entry.scale.get("corpus", UNKNOWN),
            f"{corpus['name']}, {si(corpus['train_bytes'], 'B')} to train on",
        ],
        [
            "hosts",
            entry.scale.get("hardware", UNKNOWN),
            f"{summary['hosts']['network']}, {summary['environment']['device']}",
        ],
        ["link", UNKNOWN, link(summary) or "none"],
    ]
    return Table(["", f"the paper [{entry.tag}]", "this run"], rows, "lll")


def _rounds(summary: Summary) -> str:
    return f"{summary['rounds']} x {summary['local_steps']} steps"


def link(summary: Summary) -> str:
    """The workers' links, in words; empty where there are none."""
    h = summary["hosts"]
    if h["kind"] == "loopback":
        return ""
    rate = f"{h['rate_bits'] / 1e6:g} Mbit/s" if h["rate_bits"] else "any rate"
    return f"{h['delay_seconds'] * 1e3:g} ms each way, {rate}, {h['loss']:.1%} loss"
