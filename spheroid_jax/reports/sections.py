"""The parts of a run's report; each is pure text made from the summary.

A summary holds what was trained: a method or a result that isn't there is left out of
every sentence and table.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spheroid_jax.reports.labels import METHOD_OF, RESULTS, label
from spheroid_jax.reports.published import Published
from spheroid_jax.reports.tables import Table, duration, finite, gib, nats, si

Summary = Mapping[str, Any]

LEVEL = 0.0005  # nats; below it two methods are called level, as the table shows them

_WIDE = (
    *("method", "layers per worker", "params", "train FLOPs", "bytes seen"),
    *("learning rate", "CE nats/byte", "PPL", "bits/byte"),
)
_NARROW = (  # so that the table fits a terminal of 80 columns
    *("method", "layers", "params", "FLOPs", "bytes", "rate", "nats", "PPL", "bits"),
)
_REFERENCES = ("end_to_end", "block_sized")


def run_name(summary: Summary) -> str:
    """Name and size, as on the command line."""
    return f"{summary['name']}:{summary['size']}"


def headline(summary: Summary) -> str:
    """One or two sentences: who is lower, by how much."""
    found = _results(summary)
    corpus = summary["corpus"]["name"]
    if "ce_chain" not in found:
        scores = [f"the {_the(r)} reaches {nats(ce)}" for r, ce in found.items()]
        text = f"{' and '.join(scores) or 'no result'} nats/byte on {corpus}."
        return text[0].upper() + text[1:]
    text = (
        f"BlockTrain's chain reaches {nats(found['ce_chain'])} nats/byte on {corpus}"
        f"{_against(found, 'ce_chain')}."
    )
    if "ce_ensemble" in found:
        text += (
            f" The ensemble of its blocks reaches {nats(found['ce_ensemble'])}"
            f"{_against(found, 'ce_ensemble')}."
        )
    return text


def corpus(summary: Summary) -> str:
    """What was trained and evaluated on."""
    c = summary["corpus"]
    line = (
        f"Corpus: **{c['name']}** ({c['source']}), {c['train_bytes']:,} bytes to train "
        f"on and {c['valid_bytes']:,} to validate on, SHA-256 `{c['sha256']}`."
    )
    return "\n".join([line, *(f"\n> Note: {note}" for note in c["notes"])])


def main_table(summary: Summary, *, narrow: bool = False) -> Table:
    """A row for every result, and the corpus entropies for orientation.

    Args:
      summary: the summary.
      narrow: whether the names of the columns are the short ones of the screen.
    """
    header = _NARROW if narrow else _WIDE
    rows, told = [], set()
    for result, ce in _results(summary).items():
        method = METHOD_OF[result]
        facts = summary["methods"].get(method, {}) if method not in told else {}
        told.add(method)  # the results of one training share its facts
        rows.append([label(result), *_facts(facts), *_scores(ce)])
    for order, entropy in enumerate(summary["corpus"]["entropies"]):
        rows.append([f"byte entropy, order {order}", *[""] * 5, *_scores(entropy)])
    return Table(header, rows, "lrrrrrrrr")


def fairness(summary: Summary) -> str:
    """How far the comparison is one at equal cost, in numbers."""
    methods = summary["methods"]
    lines = [
        "CE is teacher-forced, on the same slice of the validation split for every "
        "method. The byte entropy of order k is that of the split given the k bytes "
        "before, from its own counts: on a small split that is too low."
    ]
    if {"blocktrain", "end_to_end"} <= methods.keys():
        ours, theirs = methods["blocktrain"], methods["end_to_end"]
        times = [
            f"{ours[key] / theirs[key]:.2f} times the {what}"
            for key, what in (
                ("params", "parameters"),
                ("train_flops", "training FLOPs"),
                ("bytes_seen", "training bytes"),
                ("steps", "updates of each parameter"),
            )
        ]
        lines.append(
            f"BlockTrain takes {', '.join(times[:-1])} and {times[-1]} of the "
            "end-to-end reference."
        )
    lines.append(
        f"One run, seed {summary['seed']}; the learning rates are the ones listed, and "
        "this run doesn't tell whether they are the best of their methods."
    )
    return "\n".join(lines)


def curves(summary: Summary, records: Sequence[Mapping[str, Any]]) -> str:
    """What the picture can't say, and the comparison at equal bytes seen."""
    text = (
        "The curves are taken on `eval.curve_windows` windows and the table on "
        "`eval.windows`, so their ends may differ from it."
    )
    whole = [r for r in records if r["method"] == "end_to_end" and r.get("ce")]
    if not whole or "blocktrain" not in summary["methods"]:
        return text
    seen = whole[-1]["bytes_seen"]
    reached = [
        r
        for r in records
        if r["method"] == "blocktrain" and r["bytes_seen"] <= seen and r.get("ce_chain")
    ]
    if not reached:
        return text
    then, rounds = reached[-1], summary["methods"]["blocktrain"]["rounds"]
    early = ", its learning rate yet to decay" if then["round"] < rounds else ""
    return (
        f"{text}\nAt equal bytes seen, the {si(seen)} of the end-to-end reference's "
        f"whole training, BlockTrain is in round {then['round']} of {rounds}: CE_chain "
        f"{nats(then['ce_chain'])} and CE_ensemble {nats(then.get('ce_ensemble'))} "
        f"against {nats(whole[-1]['ce'])}{early}."
    )


def memory(summary: Summary) -> list[str]:
    """The table of active AdamW state; empty without BlockTrain."""
    rows = summary.get("memory", [])
    if not rows:
        return []
    full = max(row["params"] for row in rows)
    cells = [
        [
            row["what"],
            si(row["params"]),
            gib(row["adamw_gib"]),
            f"{row['params'] / full:.0%}",
        ]
        for row in rows
    ]
    header = ["active AdamW state of", "params", "GiB", "share"]
    return [
        "## Memory",
        Table(header, cells, "lrrr").markdown(),
        "16 bytes a parameter: itself, its gradient and two moments, in float32. "
        "Computed from shapes; activations are not in it.",
    ]


def published(summary: Summary, numbers: Published | None) -> list[str]:
    """The paper's numbers beside ours."""
    title = "## Published numbers"
    if numbers is None:
        return [title, "Not available: third_party/ of the source tree isn't here."]
    rows = [
        [entry.what, entry.value, entry.tag, _ours(summary, entry.ours)]
        for entry in numbers.entries
    ]
    tags = "; ".join(f"{tag}: {meaning}" for tag, meaning in numbers.tags.items())
    return [
        title,
        "**Different scale, not comparable**: other model sizes, data, hardware and "
        "training lengths, most of them unpublished. For orientation only.",
        Table(["what", "published", "tag", "this run"], rows, "lllr").markdown(),
        f"Source: {numbers.source}. Tags: {tags}.",
    ]


def again(summary: Summary) -> list[str]:
    """How to run it again, and where it ran."""
    methods = summary["methods"].items()
    spent = [f"{name} {duration(facts['seconds'])}" for name, facts in methods]
    facts = [f"- {name}: {value}" for name, value in summary["environment"].items()]
    return [
        "## Run it again",
        f"```\n{summary['command']}\n```",
        f"It took {duration(summary['seconds'])} here ({', '.join(spent)}). "
        "All fields are in `config.json`, all points of the curves in `metrics.jsonl`, "
        "and everything of this page in `summary.json`.",
        "\n".join(facts),
    ]


def _results(summary: Summary) -> dict[str, float | None]:
    """Cross-entropies of the summary by result, in the order of the table."""
    found = summary["results"]
    return {result: found[result] for result in RESULTS if result in found}


def _the(result: str) -> str:
    """A reference in the middle of a sentence."""
    return label(result)[0].lower() + label(result)[1:]


def _against(found: Mapping[str, float | None], result: str) -> str:
    """ ", 0.0125 below the end-to-end reference (1.5312) and ..."."""
    ours = found[result]
    parts = []
    for reference in _REFERENCES:
        theirs = found.get(reference)
        if not finite(ours) or not finite(theirs):
            continue
        how = f"{nats(abs(ours - theirs))} {'below' if ours < theirs else 'above'}"
        how = "level with" if abs(ours - theirs) < LEVEL else how
        parts.append(f"{how} the {_the(reference)} ({nats(theirs)})")
    return "".join(f"{', ' if i == 0 else ' and '}{p}" for i, p in enumerate(parts))


def _facts(facts: Mapping[str, Any]) -> Sequence[str]:
    if not facts:
        return [""] * 5
    return [
        str(facts["layers_per_worker"]),
        si(facts["params"]),
        si(facts["train_flops"]),
        si(facts["bytes_seen"]),
        f"{facts['learning_rate']:g}",
    ]


def _scores(ce: float | None) -> Sequence[str]:
    """CE in nats, perplexity per byte, bits per byte."""
    if not finite(ce) or ce > 700:  # where exp overflows
        return [nats(ce), nats(None), nats(None)]
    perplexity = math.exp(ce)
    digits = ".2f" if perplexity < 1e4 else ".3g"
    return [nats(ce), f"{perplexity:{digits}}", nats(ce / math.log(2))]


def _ours(summary: Summary, key: str) -> str:
    if key == "adamw_gib":
        rows = summary.get("memory", [])
        return f"{gib(rows[0]['adamw_gib'])} GiB" if rows else ""
    ce = summary["results"].get(key)
    return f"CE {nats(ce)}" if ce is not None else ""
