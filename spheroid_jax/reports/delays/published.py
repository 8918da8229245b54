"""The published numbers of CGAD beside those of a run, as not comparable."""

from spheroid_jax.reports.delays.summary import Sweep
from spheroid_jax.reports.delays.tables import cell_text, panels
from spheroid_jax.reports.published import PUBLISHED, load_published
from spheroid_jax.reports.tables import NOTHING, Table

CGAD = PUBLISHED.with_name("published_cgad.json")


def published(sweep: Sweep) -> list[str]:
    """A title, a warning, the table and its source."""
    title, numbers = "## Published numbers", load_published(CGAD)
    if numbers is None:
        return [title, "Not available: third_party/ of the source tree isn't here."]
    rows = [
        [entry.what, entry.value or NOTHING, entry.tag, _ours(sweep, entry.ours)]
        for entry in numbers.entries
    ]
    tags = "; ".join(f"{tag}: {meaning}" for tag, meaning in numbers.tags.items())
    return [
        title,
        "**Different scale, not comparable**: other models, text, tokens (nats per "
        "token of a vocabulary of about 50 000 there, chance 10.83; nats per byte "
        "here) and settings, most of them unpublished. For orientation only.",
        Table(["what", "published", "tag", "this run"], rows, "lllr").markdown(),
        f"Source: {numbers.source}. Tags: {tags}.",
    ]


def _ours(sweep: Sweep, key: str) -> str:
    """The cell that ``method@tau`` names, in the first panel that has it."""
    method, _, tau = key.partition("@")
    if not tau or sweep.x != "delay.tau":
        return ""
    method = sweep.published_nesterov or "" if method == "nesterov" else method
    for panel in panels(sweep):
        if cell := sweep.line(method, panel).get(float(tau)):
            return cell_text(cell, sweep.chance, narrow=False)
    return ""
