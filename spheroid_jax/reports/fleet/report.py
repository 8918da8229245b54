"""The end of a run of kind ``fleet``: its tables, its picture and its sentences.

``summary.json``, ``report.md`` and ``fleet.png``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spheroid_jax.reports import sections
from spheroid_jax.reports.files import write_atomic
from spheroid_jax.reports.fleet.plot import plot_fleet
from spheroid_jax.reports.fleet.verdicts import LABELS, how_many, shares, verdicts
from spheroid_jax.reports.report import REPORT, wrap, write_summary
from spheroid_jax.reports.tables import NOTHING, Table, duration, si

PICTURE = "fleet.png"
Summary = Mapping[str, Any]


def write_report(workdir: Path, summary: Summary) -> None:
    """Writes the three files.

    Args:
      workdir: the run's directory.
      summary: as :func:`spheroid_jax.runs.fleet.experiment.run_fleet` makes it.
    """
    write_summary(workdir, summary)
    plot_fleet(summary, workdir / PICTURE)
    write_atomic(workdir / REPORT, render_report(summary))


def render(summary: Summary) -> str:
    """Tables and sentences for the screen."""
    parts = [policy_table(summary, narrow=True).text()]
    parts.append("\n".join(map(wrap, verdicts(summary))))
    return "\n".join(parts)


def render_report(summary: Summary) -> str:
    """The text of ``report.md``."""
    settings = summary["config"]["fleet"]
    parts = [
        f"# {sections.run_name(summary)}",
        "## What it shows",
        "\n".join(f"- {line}" for line in verdicts(summary)),
        f"![Participation, staleness and timely rounds]({PICTURE})",
        "## Policies",
        policy_table(summary).markdown(),
        _policies(summary),
        "## Participation by block",
        block_table(summary).markdown(),
        "Updates accepted, of those begun; in brackets those accepted in the round in "
        "which they began.",
        "## Participation by kind of worker",
        kind_table(summary).markdown(),
        "Updates accepted, of those begun; in brackets the kind's share of all that "
        "are accepted. Kinds are ours, and not measured.",
        "## Staleness",
        age_table(summary).markdown(),
        "Rounds between an update's beginning and its arrival; shares of all accepted.",
        "## The coordinator's line",
        line_table(summary).markdown(),
        "Bytes are counts times the size of a part, "
        f"{settings['part_bytes']:,} bytes either way; what a worker sent of an update "
        "that it then gave up is not in them. Rates are means of whole rounds. All "
        "lines full: every worker takes the model at its own line's rate when a round "
        "opens, as the clock supposes.",
        "## Replicas for timely rounds",
        timely_table(summary).markdown(),
        _groups(summary),
        "## Kinds",
        "\n".join(
            f"- {name}, {kind['workers']:,} workers: `{kind['profile']}`"
            for name, kind in summary["kinds"].items()
        ),
        "## Run it again",
        f"```\n{summary['command']}\n```",
        f"It took {duration(summary['seconds'])} here.",
        "\n".join(f"- {k}: {v}" for k, v in summary["environment"].items()),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def policy_table(summary: Summary, *, narrow: bool = False) -> Table:
    """A line for each policy; ``narrow`` fits a screen."""
    largest = summary["config"]["fleet"]["largest_group"]
    rows = []
    for row in summary["rows"]:
        ends = [row["timely"]["replicas"], row["timely_fresh"]["replicas"]]
        cells = [
            LABELS[row["policy"]],
            str(row["rounds"]),
            f"{row['round_seconds']:.0f}",
            f"{row['accepted_of_begun']:.1%}",
            f"{row['mean_age']:.2f}",
            f"{row['useful_share']:.1%}",
            si(row["accepted"] / row["hours"]),
        ]
        wide = [f"{row['online_share']:.1%}", f"{row['busy_share']:.1%}"]
        counts = [how_many(end, largest) for end in ends]
        rows.append([*cells, *([] if narrow else wide), *counts[: 1 if narrow else 2]])
    header = [
        *("policy", "rounds", "s/round", "accepted", "age", "useful", "updates/h"),
        *([] if narrow else ("there", "busy")),
        *(("replicas",) if narrow else ("replicas", "replicas, fresh only")),
    ]
    return Table(header, rows, "l" + "r" * (len(header) - 1))


def block_table(summary: Summary) -> Table:
    """Participation of each block."""
    columns = [
        [
            f"{accepted:.1%} ({fresh:.1%})"
            for accepted, fresh in zip(
                shares(row["per_block"]["accepted"], row["per_block"]["begun"]),
                shares(row["per_block"]["fresh"], row["per_block"]["begun"]),
                strict=True,
            )
        ]
        for row in summary["rows"]
    ]
    names = [str(block) for block in range(summary["config"]["fleet"]["blocks"])]
    return _by_policy(summary, "block", names, columns)


def kind_table(summary: Summary) -> Table:
    """Participation of each kind of worker."""
    columns = []
    for row in summary["rows"]:
        accepted, begun = row["per_kind"]["accepted"], row["per_kind"]["begun"]
        of_all = shares(accepted, [row["accepted"]] * len(accepted))
        columns.append(
            [
                f"{own:.1%} ({part:.1%})" if n else NOTHING
                for own, part, n in zip(
                    shares(accepted, begun), of_all, begun, strict=True
                )
            ]
        )
    names = [
        f"{name} ({kind['workers'] / summary['workers']:.0%})"
        for name, kind in summary["kinds"].items()
    ]
    return _by_policy(summary, "kind (of all workers)", names, columns)


def age_table(summary: Summary) -> Table:
    """Accepted updates by age."""
    columns = [
        [f"{n / max(1, sum(row['ages'])):.2%}" if n else NOTHING for n in row["ages"]]
        for row in summary["rows"]
    ]
    names = [str(age) for age in range(len(summary["rows"][0]["ages"]))]
    return _by_policy(summary, "age", names, columns)


def line_table(summary: Summary) -> Table:
    """Bytes and rates at the coordinator, out and in."""
    rows = []
    for row in summary["rows"]:
        c = row["coordinator"]
        for way in ("out", "in"):
            rows.append(
                [
                    LABELS[row["policy"]],
                    way,
                    si(c[way]["bytes"], "B"),
                    si(c[way]["mean_bits_per_second"], "bit/s"),
                    si(c[way]["peak_bits_per_second"], "bit/s"),
                    si(c["lines_bits_per_second"], "bit/s") if way == "out" else "",
                ]
            )
    header = ["policy", "way", "bytes", "mean", "busiest round", "all lines full"]
    return Table(header, rows, "llrrrr")


def timely_table(summary: Summary) -> Table:
    """Share of timely (group, round) by the size of a group."""
    rows_of = summary["rows"]
    largest = summary["config"]["fleet"]["largest_group"]
    found = {
        row[name]["replicas"]
        for row in rows_of
        for name in ("timely", "timely_fresh")
        if row[name]["replicas"] is not None
    }
    powers = {2**n for n in range(largest.bit_length()) if 2**n <= largest}
    sizes = sorted(powers | found | {n - 1 for n in found if n > 1})
    columns = [
        [
            f"{row['timely']['share'][n - 1]:.1%} "
            f"({row['timely_fresh']['share'][n - 1]:.1%})"
            for n in sizes
        ]
        for row in rows_of
    ]
    return _by_policy(summary, "replicas K", [str(n) for n in sizes], columns)


def _by_policy(
    summary: Summary, what: str, names: list[str], columns: list[list[str]]
) -> Table:
    header = [what, *(LABELS[row["policy"]] for row in summary["rows"])]
    rows = [list(cells) for cells in zip(names, *columns, strict=True)]
    return Table(header, rows, "l" + "r" * len(columns))


def _policies(summary: Summary) -> str:
    n = summary["config"]["network"]
    return (
        f"A round closes after {n['deadline']:g} s at the latest. drop: late updates "
        "are lost, and their workers begin again. gate: they go on, and are accepted "
        f"in a later round, at most {n['max_age']} later. quorum + grace: as gate, and "
        f"a round closes {n['grace']:g} s after {n['quorum_share']:.0%} of every "
        "block's workers have arrived. Useful: time spent on updates that were "
        "accepted, of the time that workers are there; busy: on any update."
    )


def _groups(summary: Summary) -> str:
    settings = summary["config"]["fleet"]
    worst = [
        f"{LABELS[row['policy']]} "
        f"{how_many(row['timely']['replicas_worst'], settings['largest_group'])}"
        for row in summary["rows"]
    ]
    return (
        "The workers of each block are divided into groups of K, in the order in which "
        "they were drawn, for every K up to "
        f"{settings['largest_group']}; a group is timely in a round if at least "
        f"{settings['needed']} of its updates were accepted, in brackets without late "
        f"ones. So that every block reaches {settings['timely']:.0%}: "
        f"{', '.join(worst)}. Rounds are those of the whole fleet: a coordinator that "
        "has one such group alone might close some sooner."
    )
