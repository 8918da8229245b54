"""Made-up summaries in the shape that a run writes."""

from typing import Any

import pytest


@pytest.fixture
def run_summary() -> dict[str, Any]:
    """Three methods whose numbers are easy to check by hand."""
    return {
        "format": 1,
        "name": "b3_l4",
        "size": "quick",
        "command": "python -m experiments.run --config=configs/b3_l4.py:quick",
        "seed": 7,
        "corpus": {
            "name": "wikitext-2-raw",
            "sha256": "ab" * 32,
            "train_bytes": 10_780_437,
            "valid_bytes": 1_120_192,
            "source": "the hub",
            "entropies": [3.2, 2.46, 2.01],
            "notes": ["no test split", "12 carriage returns"],
        },
        "params": 1_230_000,
        "train_flops": 3.1e15,
        "seconds": 250.4,
        "methods": {
            "blocktrain": facts(4, 1_230_000, 3.15e15, 2_457_600, 2e-3, 130.0),
            "end_to_end": facts(12, 1_000_000, 3.0e15, 819_200, 4e-3, 80.0),
            "block_sized": facts(4, 430_000, 1.0e15, 819_200, 2e-3, 30.0),
        },
        "results": {
            "ce_chain": 1.5881,
            "ce_ensemble": 1.5034,
            "ce_first": 1.5901,
            "ce_mix": 1.5702,
            "ppl_chain": 4.8944,
            "bpb_chain": 2.2911,
            "local_ce": [1.56, 1.5, 1.41],
            "scrambled_gap": [3.2, 2.9, 1.75],
            "end_to_end": 1.5062,
            "block_sized": 1.6651,
        },
        "sigma_ranges": [[2.0711, 10.0], [1.3436, 2.0711], [1.0, 1.3436]],
        "grid": [10.0, 2.0711, 1.3436],
        "memory": [
            {"what": "one worker", "params": 430_000, "adamw_gib": 0.0064075},
            {"what": "the full stack", "params": 1_230_000, "adamw_gib": 0.0183284},
        ],
        "environment": {"jax": "0.10.2", "device": "cpu", "python": "3.11.7"},
        "config": {"model": {"layers": 4}},
    }


def facts(
    layers: int, params: int, flops: float, seen: int, rate: float, seconds: float
) -> dict[str, Any]:
    return {
        "layers_per_worker": layers,
        "params": params,
        "train_flops": flops,
        "bytes_seen": seen,
        "learning_rate": rate,
        "seconds": seconds,
        "rounds": 20,
        "steps": 400,
    }


@pytest.fixture
def sweep_summary(run_summary: dict[str, Any]) -> dict[str, Any]:
    """A sweep over layers, one cell without its end-to-end reference."""
    return {
        "format": 1,
        "name": "depth_sweep",
        "size": "quick",
        "command": "python -m experiments.sweep --config=configs/depth_sweep.py:quick",
        "seconds": 3725.0,
        "corpus": run_summary["corpus"],
        "x": "model.layers",
        "series": ["ce_chain", "ce_ensemble", "end_to_end"],
        "log_x": True,
        "cells": [
            cell(1, 2.728, 2.5, 2.1),
            cell(4, 2.196, 2.1, None),
            cell(12, 2.25, 2.05, 2.11),
        ],
    }


def cell(
    layers: int, chain: float, ensemble: float, end_to_end: float | None
) -> dict[str, Any]:
    label = f"blocks={12 // layers}-layers={layers}"
    results = {"ce_chain": chain, "ce_ensemble": ensemble, "local_ce": [1.0, 2.0]}
    if end_to_end is not None:
        results["end_to_end"] = end_to_end
    return {
        "label": label,
        "settings": {"model.blocks": 12 // layers, "model.layers": layers},
        "results": results,
        "seconds": 100.0 * layers,
        "summary": f"cells/{label}/summary.json",
    }
