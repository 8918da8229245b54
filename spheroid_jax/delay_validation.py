"""Combinations of fields that a delayed run can't be made of."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from spheroid_jax.fields import suggestion

Values = Mapping[str, Any]


def delay_problems(values: Values) -> list[str]:
    """Returns every problem of the fields of a delayed run, a line each.

    Args:
      values: by dotted field; each obeys its own rule.
    """
    return [line for check in _CHECKS if (line := check(values))]


def network_problems(values: Values) -> list[str]:
    """Returns every problem of the fields of a run over a network, a line each."""
    return [line for check in _NETWORK_CHECKS if (line := check(values))]


def synced_in_parts(values: Values) -> bool:
    """Whether fragments of the model are synced each by itself."""
    return (
        values["sync.fragments"] > 1
        or values["sync.drop"] > 0
        or values["sync.quorum"] > 0
        or values["sync.mixing"] > 0
    )


def _methods(v: Values) -> str:
    known = [field.removeprefix("recipes.") for field in v if field[:8] == "recipes."]
    for name in v["methods"]:
        if name not in known:
            return f"methods has {name!r}, no recipe: {suggestion(name, known)}"
    return ""


def _fragment_methods(v: Values) -> str:
    if synced_in_parts(v):
        return ""
    recipes = {name: v.get(f"recipes.{name}", "") for name in v["methods"]}
    alone = [n for n, recipe in recipes.items() if recipe.split()[:1] == ["pa_cgad"]]
    if not alone:
        return ""
    return f"methods has {alone[0]!r}, which needs fragments: set sync.fragments=4"


def _heads(v: Values) -> str:
    width, heads, kv = (v[f"model.{x}"] for x in ("width", "heads", "kv_heads"))
    # That heads divide the width at all is checked for every kind of experiment.
    if width % heads == 0 and width % (2 * heads):
        return (
            f"model.heads={heads} does not cut model.width={width} into heads of an "
            "even width: use another number"
        )
    if heads % kv:
        return f"model.kv_heads={kv} does not divide model.heads={heads}: use {heads}"
    return ""


def _rounds(v: Values) -> str:
    rounds, every, last = v["train.rounds"], v["eval.every"], v["eval.last"]
    if rounds % every:
        below = max(rounds - rounds % every, every)
        return (
            f"train.rounds={rounds} is not a multiple of eval.every={every}: "
            f"use {below} or {below + every}"
        )
    if last > rounds // every:
        return (
            f"eval.last={last} is more than the {rounds // every} points there are: "
            "lower it or eval.every"
        )
    return ""


def _per_worker(v: Values) -> str:
    count = len(v["delay.per_worker"])
    if v["delay.kind"] != "per_worker" or count == v["train.replicas"]:
        return ""
    return (
        f"delay.per_worker has {count} delays for train.replicas="
        f"{v['train.replicas']}: give one for each worker"
    )


def _trace(v: Values) -> str:
    if v["delay.kind"] == "trace" and not v["delay.trace"].strip():
        return "delay.kind=trace needs a file: set delay.trace=PATH"
    if v["delay.kind"] != "trace" and v["delay.trace"]:
        return f"delay.trace is not used by delay.kind={v['delay.kind']}: leave it out"
    return ""


def _skip(v: Values) -> str:
    if v["delay.kind"] not in ("fixed", "uniform"):
        return ""
    if v["delay.tau"] < v["train.rounds"]:
        return ""
    return (
        f"delay.tau={v['delay.tau']} is not below train.rounds={v['train.rounds']}: "
        "nothing so old could arrive, lower it or train longer"
    )


def _fragments(v: Values) -> str:
    if not synced_in_parts(v):
        return ""
    if v["delay.protocol"] != "in_flight":
        return "sync.* needs updates on their way: set delay.protocol=in_flight"
    if v["delay.kind"] not in ("fixed", "trace"):
        return f"sync.* can't use delay.kind={v['delay.kind']}: use fixed"
    period = _period(v)
    if v["delay.kind"] == "fixed" and v["delay.tau"] >= period:
        return (
            f"delay.tau={v['delay.tau']} must be below the {period} rounds between two "
            "syncs of a fragment, or it would be sent twice: lower it"
        )
    if v["sync.fragments"] > v["model.layers"]:
        return (
            f"sync.fragments={v['sync.fragments']} is more than "
            f"model.layers={v['model.layers']}: lower it"
        )
    return ""


def _period(v: Values) -> int:
    """The fewest rounds between two syncs of one fragment."""
    schedule = v["sync.schedule"]
    if schedule == "periods":
        return min(v["sync.periods"])
    return v["sync.fragments"] if schedule == "round_robin" else 1


def _periods(v: Values) -> str:
    if not synced_in_parts(v) or v["sync.schedule"] != "periods":
        return ""
    for field in ("sync.periods", "sync.offsets"):
        if len(v[field]) != v["sync.fragments"]:
            return (
                f"{field} has {len(v[field])} numbers for sync.fragments="
                f"{v['sync.fragments']}: give one for each fragment"
            )
    return ""


def _quorum(v: Values) -> str:
    if v["sync.quorum"] <= v["train.replicas"]:
        return ""
    return (
        f"sync.quorum={v['sync.quorum']} is more than train.replicas="
        f"{v['train.replicas']}: no round would end, lower it"
    )


_CHECKS: tuple[Callable[[Values], str], ...] = (
    _methods,
    _fragment_methods,
    _heads,
    _rounds,
    _per_worker,
    _trace,
    _skip,
    _fragments,
    _periods,
    _quorum,
)


def _source(v: Values) -> str:
    if not (v["network.profiles"] and v["network.trace"]):
        return ""
    return "network.profiles and network.trace exclude each other: leave one out"


def _deadline(v: Values) -> str:
    if v["network.deadline"] or v["network.late"] == "drop" or v["network.quorum"]:
        return ""
    return (
        "network.late=gate without a deadline: nothing is ever late, set "
        "network.deadline or network.quorum"
    )


def _network_quorum(v: Values) -> str:
    quorum, replicas = v["network.quorum"], v["train.replicas"]
    if quorum > replicas:
        return (
            f"network.quorum={quorum} is more than train.replicas={replicas}: lower it"
        )
    if v["network.grace"] and not quorum:
        return (
            f"network.grace={v['network.grace']} needs a quorum: set network.quorum=1"
        )
    return ""


def _max_age(v: Values) -> str:
    if v["network.late"] != "gate" or v["network.max_age"] < v["train.rounds"]:
        return ""
    return (
        f"network.max_age={v['network.max_age']} is not below train.rounds="
        f"{v['train.rounds']}: nothing so old could arrive, lower it"
    )


_NETWORK_CHECKS: tuple[Callable[[Values], str], ...] = (
    _methods,
    _rounds,
    _source,
    _deadline,
    _network_quorum,
    _max_age,
)


def _lease(v: Values) -> str:
    heartbeat, lease = v["exchange.heartbeat"], v["exchange.lease"]
    if lease >= 2 * heartbeat:
        return ""
    return (
        f"exchange.lease={lease} leaves no room for a lost sign of life every "
        f"exchange.heartbeat={heartbeat} s: use {3 * heartbeat:g}"
    )


def _workers(v: Values) -> str:
    slots = v["model.blocks"] * v["train.replicas"]
    if v["exchange.workers"] <= slots:
        return ""
    return (
        f"exchange.workers={v['exchange.workers']} never have work at once with "
        f"{slots} slots (model.blocks x train.replicas): use {slots}"
    )


def _robust(v: Values) -> str:
    rule, replicas = v["exchange.rule"], v["train.replicas"]
    if rule == "mean" or replicas >= 3:
        return ""
    return (
        f"exchange.rule={rule} of train.replicas={replicas} can't outvote anybody: "
        "use 3 replicas at least, or mean"
    )


def _trim(v: Values) -> str:
    trim, replicas = v["exchange.trim"], v["train.replicas"]
    if v["exchange.rule"] != "trimmed_mean" or int(trim * replicas) >= 1:
        return ""
    return (
        f"exchange.trim={trim} of train.replicas={replicas} leaves nothing out: use "
        f"{math.ceil(100 / replicas) / 100:g}"
    )


def _links(v: Values) -> str:
    shaped = [f"hosts.{name}" for name in ("delay_seconds", "rate_bits", "loss")]
    wrong = [field for field in shaped if v[field]]
    if v["hosts.kind"] != "loopback" or not wrong:
        return ""
    return (
        f"{wrong[0]}={v[wrong[0]]:g} shapes a link, and hosts.kind=loopback has none: "
        "use proxy or namespaces"
    )


_EXCHANGE_CHECKS: tuple[Callable[[Values], str], ...] = (
    _deadline,
    _network_quorum,
    _max_age,
    _lease,
    _workers,
    _robust,
    _trim,
    _links,
)


def exchange_problems(values: Values) -> list[str]:
    """Returns every problem of a coordinator's fields, a line each."""
    return [line for check in _EXCHANGE_CHECKS if (line := check(values))]
