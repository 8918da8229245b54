"""The metrics, read by Prometheus' own parser."""

import asyncio
import re
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from spheroid_jax.transport.dashboard.metrics import exposition
from tests.transport.dashboard.fake import (
    HOSTILE,
    FakeCoordinator,
    served,
    status,
    worker,
)

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(facts: dict[str, Any]) -> Samples:
    return read(exposition(facts).decode())


def read(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


def test_every_number_of_the_status() -> None:
    found = samples(status())
    assert value(found, "spheroid_round") == 12
    assert value(found, "spheroid_rounds_planned") == 16
    assert value(found, "spheroid_run_seconds") == 754
    assert value(found, "spheroid_round_open_seconds") == 18
    assert value(found, "spheroid_round_deadline_seconds") == 60
    assert value(found, "spheroid_bytes_total", direction="down") == 888e6
    assert value(found, "spheroid_bytes_total", direction="up") == 206.5e6
    assert value(found, "spheroid_updates_total", verdict="accepted") == 57
    assert value(found, "spheroid_updates_total", verdict="late") == 8
    assert value(found, "spheroid_updates_total", verdict="rejected") == 1
    for block, share in enumerate((0.975, 0.85, 0.6)):
        label = str(block)
        assert value(found, "spheroid_participation_ratio", block=label) == share
        assert value(found, "spheroid_block_workers", block=label) == 2
    assert value(found, "spheroid_block_heard", block="0") == 2
    assert value(found, "spheroid_block_last_trained_round", block="2") == 9
    states = {"waiting": 3, "fetching": 0, "training": 1, "sending": 1, "late": 1}
    for state, count in {**states, "gone": 0, "other": 0}.items():
        assert value(found, "spheroid_workers", state=state) == count
    assert value(found, "spheroid_ce_nats", kind="chain") == 2.3146
    assert value(found, "spheroid_ce_nats", kind="ensemble") == 2.2367
    assert value(found, "spheroid_ce_round") == 12
    assert value(found, "spheroid_last_round_seconds") == 60.75
    assert value(found, "spheroid_last_round_updates", kind="expected") == 6
    assert value(found, "spheroid_last_round_updates", kind="heard") == 6
    assert value(found, "spheroid_state", spheroid_state="open") == 1
    assert value(found, "spheroid_state", spheroid_state="closing") == 0


def test_ages_are_a_histogram() -> None:
    found = samples(status())  # 48 of age 0, 7 of age 1, 2 of age 2
    name = "spheroid_staleness_rounds"
    for le, count in {"0.0": 48, "1.0": 55, "2.0": 57, "+Inf": 57}.items():
        assert value(found, f"{name}_bucket", le=le) == count
    assert value(found, f"{name}_count") == 57
    assert value(found, f"{name}_sum") == 7 + 2 * 2


def test_reading_counts_nothing() -> None:
    facts = status()
    assert exposition(facts) == exposition(facts)


def test_totals_of_the_coordinator_outlive_its_workers() -> None:
    facts = {**status(), "workers": [], "updates": {"accepted": 91, "late": 4}}
    found = samples(facts)
    assert value(found, "spheroid_updates_total", verdict="accepted") == 91
    assert ("spheroid_updates_total", (("verdict", "rejected"),)) not in found


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"state": "odd", "deadline": None, "staleness": [], "ce": [], "workers": []},
        {"ce": [{"round": 0, "ce_chain": 2.0, "ce_ensemble": None}]},
        {"blocks": [{"block": 0, "participation": None}], "time": float("nan")},
    ],
)
def test_what_is_not_known_has_no_sample(facts: dict[str, Any]) -> None:
    found = samples(facts)
    assert all(sample == sample for sample in found.values())
    assert ("spheroid_ce_nats", (("kind", "ensemble"),)) not in found
    assert ("spheroid_round_deadline_seconds", ()) not in found
    assert ("spheroid_participation_ratio", (("block", "0"),)) not in found
    assert value(found, "spheroid_workers", state="training") == 0


def test_workers_add_no_series_whatever_they_say() -> None:
    few, many = status(), status()
    many["workers"] = [
        worker(f"w{i}", i % 3, HOSTILE if i % 2 else f"state{i}", device=HOSTILE)
        for i in range(500)
    ]
    assert samples(few).keys() == samples(many).keys()
    assert value(samples(many), "spheroid_workers", state="other") == 500
    assert b"A100" not in exposition(many)
    many["staleness"] = list(range(1000))
    many["blocks"] = [{"block": i, "workers": 1} for i in range(100_000)]
    found = samples(many)
    assert len(found) < 3000
    count = sum(range(1000))
    assert value(found, "spheroid_staleness_rounds_bucket", le="+Inf") == count


def test_counters_start_at_zero_with_the_process_and_totals_do_not() -> None:
    async def main() -> None:
        coordinator = FakeCoordinator(status())  # twelve rounds before this process
        async with served(coordinator) as url, aiohttp.ClientSession() as client:

            async def found() -> Samples:
                async with client.get(f"{url}/metrics") as answer:
                    return read(await answer.text())

            begun = await found()
            for name in ("bytes", "updates"):
                counts = [
                    v
                    for (n, _), v in begun.items()
                    if n.startswith(f"spheroid_{name}_total")
                ]
                assert counts
                assert not any(counts)
            assert value(begun, "spheroid_staleness_rounds_count") == 0
            assert value(begun, "spheroid_run_bytes", direction="up") == 206.5e6
            assert value(begun, "spheroid_run_updates", verdict="late") == 8
            workers = status()["workers"]
            workers[0]["accepted"] += 2
            coordinator.change(
                workers=workers,
                bytes={"down": 888_000_500, "up": 206_500_000},
                staleness=[49, 7, 2, 1],
            )
            later = await found()
            assert value(later, "spheroid_bytes_total", direction="down") == 500
            assert value(later, "spheroid_bytes_total", direction="up") == 0
            assert value(later, "spheroid_updates_total", verdict="accepted") == 2
            assert value(later, "spheroid_staleness_rounds_count") == 2
            assert value(later, "spheroid_staleness_rounds_sum") == 3
            assert value(later, "spheroid_run_bytes", direction="down") == 888_000_500

    asyncio.run(asyncio.wait_for(main(), 20))


# As "promtool check metrics" asks: of names, and of what each type may be called.
_ABBREVIATED = {"s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "m", "h", "d"}
_OTHER_UNITS = {"minutes", "hours", "days", "milliseconds", "kilobytes", "bits"}
_TYPES = {"counter", "gauge", "histogram", "summary"}


@pytest.mark.parametrize("facts", [status(), {}])
def test_names_and_types_are_as_prometheus_wants_them(facts: dict[str, Any]) -> None:
    types: dict[str, str] = {}
    helped = set()
    for line in exposition(facts).decode().splitlines():
        if line.startswith("# HELP "):
            _, _, name, text = line.split(" ", 3)
            assert name not in helped
            assert text.endswith(".")
            helped.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types
            types[name] = kind
    assert helped == types.keys()
    for name, kind in types.items():
        assert re.fullmatch(r"spheroid(_[a-z]+)+", name)
        words = {*name.split("_")}
        assert not words & (_ABBREVIATED | _OTHER_UNITS | _TYPES)
        assert kind in ("counter", "gauge", "histogram")
        assert name.endswith("_total") == (kind == "counter")
        assert not name.endswith(("_bucket", "_count", "_sum", "_created"))
    for family in text_string_to_metric_families(exposition(facts).decode()):
        for sample in family.samples:
            assert ("le" in sample.labels) == sample.name.endswith("_bucket")


def test_a_disk_that_refuses_can_be_told_from_one_that_takes() -> None:
    assert value(samples({**status(), "writable": True}), "spheroid_writable") == 1
    assert value(samples({**status(), "writable": False}), "spheroid_writable") == 0


def test_the_route_has_prometheus_type_of_content() -> None:
    async def main() -> None:
        coordinator = FakeCoordinator(status())
        async with served(coordinator) as url, aiohttp.ClientSession() as client:
            # A header that no parser of versions understands must do no harm.
            odd = {"Accept": "text/plain; version=odd; escaping=x, */*;q="}
            async with client.get(f"{url}/metrics", headers=odd) as answer:
                assert answer.status == 200
                expected = "text/plain; version=0.0.4; charset=utf-8"
                assert answer.headers["Content-Type"] == expected
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert value(read(await answer.text()), "spheroid_round") == 12

    asyncio.run(asyncio.wait_for(main(), 20))
