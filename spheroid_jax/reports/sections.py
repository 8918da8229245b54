"""The parts of a run's report; each is pure text made from the summary.

A summary holds what was trained: a method or a result that isn't there is left out of
every sentence and table.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spheroid_jax.reports.labels import METHOD_OF, RESULTS, label
from spheroid_jax.reports.published import Published
from spheroid_jax.reports.tables import Table, duration, gib, nats, si, signed

Summary = Mapping[str, Any]

LEVEL = 0.0005  # nats; below it two methods are called level, as the table shows them
LEAK_BELOW = 0.5  # nats by which a leaking block's local CE lies below the chain's
LEAK_GAP = 0.1  # nats of scrambled-context gap that a leaking block stays under

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
        "method. The byte entropy of order k is that of the split itself, given the k "
        "bytes before."
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


def blocks(summary: Summary) -> list[str]:
    """The table of the blocks and how to read it; empty without BlockTrain."""
    results = summary["results"]
    if "local_ce" not in results:
        return []
    columns = (summary["sigma_ranges"], summary["grid"])
    rows = [
        [str(b), f"{low:.4g} to {high:.4g}", f"{level:.4g}", nats(ce), signed(gap)]
        for b, ((low, high), level, ce, gap) in enumerate(
            zip(*columns, results["local_ce"], results["scrambled_gap"], strict=True)
        )
    ]
    header = ["block", "sigma", "sigma in the chain", "local CE", "scrambled gap"]
    return [
        "## Blocks",
        Table(header, rows, "rlrrr").markdown(),
        "Local CE is measured on truly noised targets; the gap is what a block loses "
        "when its clean context is replaced by another window's. "
        + (leakage(summary) or _no_leakage(results["scrambled_gap"])),
    ]


def leakage(summary: Summary) -> str:
    """A warning if blocks read their target out of the noisy input, else nothing."""
    results = summary["results"]
    chain, local = results.get("ce_chain"), results.get("local_ce")
    if local is None:
        return ""
    leaking = [
        str(block)
        for block, (ce, gap) in enumerate(
            zip(local, results["scrambled_gap"], strict=True)
        )
        if ce is not None
        and gap is not None
        and gap < LEAK_GAP
        # A chain without a finite value has collapsed as far as one can.
        and ce < (math.inf if not _finite(chain) else chain) - LEAK_BELOW
    ]
    if not leaking:
        return ""
    plural = len(leaking) > 1
    return (
        f"WARNING, target leakage: block{'s' * plural} {', '.join(leaking)} "
        f"{'predict' if plural else 'predicts'} far better than the chain and "
        f"{'do' if plural else 'does'}n't miss {'their' if plural else 'its'} context, "
        "so the target is read out of the noisy input. "
        "Raise diffusion.sigma_min, or lower model.target_radius."
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
        if ours is None or theirs is None:
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
    if not _finite(ce) or ce is None or ce > 700:  # where exp overflows
        return [nats(ce), nats(None), nats(None)]
    perplexity = math.exp(ce)
    digits = ".2f" if perplexity < 1e4 else ".3g"
    return [nats(ce), f"{perplexity:{digits}}", nats(ce / math.log(2))]


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _no_leakage(gaps: Sequence[float | None]) -> str:
    known = [gap for gap in gaps if gap is not None]
    if not known:
        return "The gaps are not finite."
    least = nats(min(known))
    if min(known) >= LEAK_GAP:
        return f"No sign of target leakage: every block loses {least} nats or more."
    return (
        f"The smallest gap is {least} nats: that block hardly uses its context, though "
        "it isn't far below the chain either."
    )


def _ours(summary: Summary, key: str) -> str:
    if key == "adamw_gib":
        rows = summary.get("memory", [])
        return f"{gib(rows[0]['adamw_gib'])} GiB" if rows else ""
    ce = summary["results"].get(key)
    return f"CE {nats(ce)}" if ce is not None else ""
