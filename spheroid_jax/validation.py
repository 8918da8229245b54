"""Whether a configuration makes sense, decided before anything is compiled.

Each field has a rule (:mod:`spheroid_jax.rules`); each combination of fields that can
be wrong has a function here. All problems are found at once, and each is one line that
names the dotted field, its value and the cure.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
from ml_collections import ConfigDict

from spheroid_jax.config import KINDS, delayed
from spheroid_jax.delay_validation import (
    delay_problems,
    exchange_problems,
    network_problems,
)
from spheroid_jax.delivery.fleet import parse_profile
from spheroid_jax.diffusion import NoiseLevels
from spheroid_jax.fields import ConfigError, leaves, overridden, suggestion, unknown
from spheroid_jax.models.attention import has_fused_attention, unfused
from spheroid_jax.objectives import cut_windows
from spheroid_jax.optim.recipes import RecipeError, parse_recipe
from spheroid_jax.rounds.mesh import MeshShape, misfit
from spheroid_jax.schema import OUTER_RULES, RULES
from spheroid_jax.sweep_schema import SWEEP_RULES

__all__ = ["ConfigError", "problems", "validate"]

# Below this probability of a block's noise levels, float32 tells too few of them apart.
_LEAST_BLOCK_PROBABILITY = 1e-4


def validate(config: ConfigDict, device_count: int | None = None) -> None:
    """Checks a configuration, with or without a ``sweep`` section.

    Args:
      config: the configuration.
      device_count: devices to lay the mesh on; by default those that JAX has.

    Raises:
      ConfigError: one line with every problem, separated by ``"; "``.
    """
    devices = jax.device_count() if device_count is None else device_count
    if found := problems(config, devices):
        raise ConfigError("; ".join(found))


def problems(config: ConfigDict, device_count: int) -> list[str]:
    """Returns every problem of ``config`` on ``device_count`` devices, a line each."""
    values = leaves(config)
    kind = str(values.get("kind"))
    if kind not in RULES:
        return [f"kind={kind} is unknown: {suggestion(kind, RULES)}"]
    rules = dict(RULES[kind])
    if "sweep" in config:
        rules |= SWEEP_RULES[kind]
    rules |= {field: _recipe for field in values if _is_recipe(kind, field)}
    rules |= {field: _worker for field in values if _is_worker(kind, field)}
    found = [unknown(field, rules) for field in values if field not in rules]
    faulty = set()
    for field, rule in rules.items():
        if field not in values:
            start = KINDS[kind].__name__
            complaint = f"{field} is missing: begin with spheroid_jax.config.{start}()"
        elif wrong := rule(values[field]):
            complaint = f"{field}={values[field]} {wrong}"
        else:
            continue
        faulty.add(field)
        found.append(complaint)
    values["devices"] = device_count
    for fields, combination in _COMBINATIONS:
        if values.keys() >= set(fields) and not faulty.intersection(fields):
            line = combination(*(values[field] for field in fields))
            found += [line] if line else []
    if kind == "delays" and not faulty:
        found += delay_problems(values)
    if kind == "network" and not faulty:
        found += network_problems(values)
    if kind == "exchange" and not faulty:
        found += exchange_problems(values)
    if "sweep" in config and not faulty.intersection(
        [*SWEEP_RULES[kind], values.get("sweep.axis")]
    ):
        found += _sweep_problems(config, device_count, found)
    return found


def _is_recipe(kind: str, field: str) -> bool:
    if kind in ("exchange", "encodings"):
        return field == "outer.recipe"
    return kind in ("delays", "network") and field.startswith("recipes.")


def _is_worker(kind: str, field: str) -> bool:
    return kind == "fleet" and field.startswith("kinds.")


def _worker(text: Any) -> str:
    """The rule of a kind of worker: it can be read."""
    if not isinstance(text, str):
        return "must be text"
    try:
        parse_profile(text)
    except ValueError as error:
        return f"can't be used: {error}"
    return ""


def _recipe(text: Any) -> str:
    """The rule of a recipe: it can be read, and what it sets itself is in range."""
    if not isinstance(text, str):
        return "must be text"
    try:
        recipe = parse_recipe(text, dict(delayed().outer))
    except RecipeError as error:
        return f"can't be used: {error}"
    for name, value in {**recipe.numbers, **recipe.choices}.items():
        given = f"{name}=" in text and name in OUTER_RULES
        if given and (wrong := OUTER_RULES[name](value)):
            return f"can't be used: {name}={value} {wrong}"
    return ""


def _sweep_problems(
    config: ConfigDict, device_count: int, known: Iterable[str]
) -> list[str]:
    """Problems of the cells, each an experiment of its own, that the base has not."""
    axis, found = config.sweep.axis, []
    # Regimes of a network have names, and are shown in the order of their cells.
    named = config.kind == "network" and not config.sweep.log_x
    if not named and not isinstance(leaves(config)[axis], int | float):
        found.append(f"sweep.axis={axis} holds no number: choose a field that does")
    for index, cell in enumerate(config.sweep.cells):
        try:
            changed = overridden(config, cell)
        except ConfigError as error:
            wrong = [str(error)]
        else:
            wrong = [x for x in problems(changed, device_count) if x not in known]
            wrong = wrong or _logarithm(axis, leaves(changed)[axis], config.sweep.log_x)
        found += [f"sweep.cells[{index}] {cell!r}: {line}" for line in wrong]
    return found


def _logarithm(axis: str, x: Any, log_x: bool) -> list[str]:
    if not log_x or not isinstance(x, int | float) or x > 0:
        return []
    return [f"{axis}={x} has no logarithm: set sweep.log_x=false"]


def _heads(width: int, heads: int) -> str:
    if width % heads == 0:
        return ""
    cure = _around(heads, (n for n in range(1, width + 1) if width % n == 0))
    return f"model.heads={heads} does not divide model.width={width}: use {cure}"


def _widths(widths: tuple[int, ...], head_width: int) -> str:
    wrong = [width for width in widths if width % head_width]
    if not wrong:
        return ""
    near = max(head_width, wrong[0] - wrong[0] % head_width)
    return (
        f"model.widths has {wrong[0]}, no multiple of model.head_width={head_width}: "
        f"use {near}"
    )


def _group(largest: int, replicas: int) -> str:
    if largest <= replicas:
        return ""
    return (
        f"fleet.largest_group={largest} is more than fleet.replicas={replicas}: "
        "lower it"
    )


def _needed(needed: int, largest: int) -> str:
    if needed <= largest:
        return ""
    return (
        f"fleet.needed={needed} updates never come from "
        f"fleet.largest_group={largest} replicas: raise the latter"
    )


def _sigmas(low: float, high: float) -> str:
    if low < high:
        return ""
    cure = "exchange them" if low > high else "raise diffusion.sigma_max"
    return f"diffusion.sigma_min={low} must be below diffusion.sigma_max={high}: {cure}"


def _probability(
    low: float, high: float, p_mean: float, p_std: float, blocks: int
) -> str:
    noise = NoiseLevels(low, high, p_mean, p_std)
    mass = float(noise.cdf(high) - noise.cdf(low))
    if low >= high or mass / blocks >= _LEAST_BLOCK_PROBABILITY:
        return ""
    return (
        f"diffusion.sigma_min={low} to diffusion.sigma_max={high} holds only {mass:.1g}"
        f" of the noise levels for model.blocks={blocks}: widen the range, or bring"
        f" diffusion.p_mean={p_mean} and diffusion.p_std={p_std} nearer to it"
    )


def _whole_batches(field: str) -> Callable[[int, int], str]:
    """Windows that don't fill the last compiled batch would be left out unseen."""

    def check(windows: int, batch: int) -> str:
        if windows % batch == 0:
            return ""
        cure = _around(windows, range(batch, windows + batch, batch))
        return f"{field}={windows} is not a multiple of eval.batch={batch}: use {cure}"

    return check


def _mesh(
    block: int,
    replica: int,
    fsdp: int,
    blocks: int,
    replicas: int,
    batch: int,
    devices: int,
) -> str:
    return misfit(MeshShape(block, replica, fsdp), devices, blocks, replicas, batch)


def _context(share: float, batch: int) -> str:
    if not share or cut_windows(share, batch):
        return ""
    return (
        f"train.context_mask={share} cuts no window of data.batch={batch}: use"
        f" {1 / batch:.3g} or more, or 0"
    )


def _attention(asked: str, width: int, heads: int, dtype: str) -> str:
    if asked != "cudnn" or width % heads:
        return ""
    why = unfused(width // heads, dtype, gpu=has_fused_attention())
    return f"model.attention=cudnn can't be used: {why}: use auto" if why else ""


def _around(target: int, candidates: Iterable[int]) -> str:
    """The candidates next to ``target`` on either side, in words."""
    ordered = sorted(candidates)
    below = [n for n in ordered if n < target][-1:]
    above = [n for n in ordered if n > target][:1]
    return " or ".join(str(n) for n in below + above)


_COMBINATIONS: tuple[tuple[tuple[str, ...], Callable[..., str]], ...] = (
    (("model.width", "model.heads"), _heads),
    (("model.widths", "model.head_width"), _widths),
    (("fleet.largest_group", "fleet.replicas"), _group),
    (("fleet.needed", "fleet.largest_group"), _needed),
    (("diffusion.sigma_min", "diffusion.sigma_max"), _sigmas),
    (
        (
            "diffusion.sigma_min",
            "diffusion.sigma_max",
            "diffusion.p_mean",
            "diffusion.p_std",
            "model.blocks",
        ),
        _probability,
    ),
    (("eval.windows", "eval.batch"), _whole_batches("eval.windows")),
    (("eval.curve_windows", "eval.batch"), _whole_batches("eval.curve_windows")),
    (
        (
            "mesh.block",
            "mesh.replica",
            "mesh.fsdp",
            "model.blocks",
            "train.replicas",
            "data.batch",
            "devices",
        ),
        _mesh,
    ),
    (("train.context_mask", "data.batch"), _context),
    (
        ("model.attention", "model.width", "model.heads", "model.compute_dtype"),
        _attention,
    ),
)
