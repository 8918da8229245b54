"""What the benchmarks share: fair timing, one table, one JSON file."""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from spheroid_jax.reports.tables import Table


def parser(description: str) -> argparse.ArgumentParser:
    """An argument parser with the options that every benchmark takes."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--json", metavar="FILE", help="also write {rows, ratios} here")
    result.add_argument("--repeats", type=int, default=7, help="timings of each row")
    return result


def alternate(
    functions: Mapping[str, Callable[[], Any]], repeats: int
) -> dict[str, list[float]]:
    """Seconds of each function, called in turn so that drift hits all alike.

    Each is called once before, to compile. Results are waited for.
    """
    for function in functions.values():
        jax.block_until_ready(function())
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            began = time.perf_counter()
            jax.block_until_ready(function())
            seconds[name].append(time.perf_counter() - began)
    return seconds


def paired_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Median of the ratios of timings taken side by side."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def matmul_peak(size: int = 2048, repeats: int = 5) -> float:
    """The machine's measured float32 matmul rate in FLOP/s, the best of a few."""
    a = jax.random.normal(jax.random.key(0), (size, size))
    multiply = jax.jit(lambda x: x @ x)
    return 2 * size**3 / min(alternate({"": lambda: multiply(a)}, repeats)[""])


def report(
    rows: Sequence[Mapping[str, Any]],
    ratios: Mapping[str, float],
    file: str | None,
) -> None:
    """Prints rows as a table and ratios below it, and writes both to ``file``."""
    columns = list(rows[0])
    cells = [[str(row[column]) for column in columns] for row in rows]
    align = ["l" if isinstance(rows[0][column], str) else "r" for column in columns]
    print(Table(columns, cells, "".join(align)).text(), end="")
    for name, value in ratios.items():
        print(f"{name}: {value:.3f}")
    if file:
        Path(file).write_text(
            json.dumps({"rows": list(rows), "ratios": dict(ratios)}, indent=2) + "\n"
        )
