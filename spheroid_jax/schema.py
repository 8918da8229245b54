"""What each field of an experiment may hold: one rule a field."""

from collections.abc import Mapping
from typing import Any

from spheroid_jax.config import (
    BOUND_FUNCTIONS,
    BOUND_METHODS,
    FLEET_POLICIES,
    KINDS,
    METHODS,
)
from spheroid_jax.delivery.profiles import PRESETS
from spheroid_jax.diffusion import GRIDS
from spheroid_jax.models import ATTENTIONS, HEADS, LAYOUTS, REMAT_POLICIES
from spheroid_jax.objectives import FILLS
from spheroid_jax.optim.outer import OUTER_OPTIMIZERS
from spheroid_jax.rounds.delayed import PROTOCOLS
from spheroid_jax.rules import (
    Interval,
    Rule,
    corpus,
    matching,
    number,
    of_type,
    one_of,
    tuple_of,
)

COMPUTE_DTYPES = ("float32", "bfloat16")
SHARDINGS = ("replica", "worker", "shared")
PRECISIONS = ("float32", "bf16_8bit")
STARTS = ("ramp", "skip")
DELAYS = ("fixed", "uniform", "per_worker", "trace")
ENCODINGS = ("float32", "bfloat16", "int8", "int4")
DIGESTS = ("xxh3", "sha256", "blake3")
HOSTS = ("loopback", "proxy", "namespaces")
RULES_OF_REPLICAS = ("mean", "trimmed_mean", "median")
SCHEDULES = ("every", "round_robin", "periods")

_COUNT = number(int, Interval(1))
_WHOLE = number(int, Interval(0))
_POSITIVE = number(float, Interval(0, above=True))
_NOT_NEGATIVE = number(float, Interval(0))
_FRACTION = number(float, Interval(0, 1))
_DECAY = number(float, Interval(0, 1, below=True))
# The name becomes a directory's.
_NAME = matching(
    r"[A-Za-z0-9][A-Za-z0-9_.-]*", "must be letters, digits, '_', '-' and '.' only"
)

# Fields of every kind of experiment.
_SHARED: Mapping[str, Rule] = {
    "kind": one_of(tuple(KINDS)),
    "name": _NAME,
    "size": _NAME,
    "seed": number(int, Interval(0, 2**32 - 1)),
}

_TEXT: Mapping[str, Rule] = {
    "data.corpus": corpus,
    "data.mirror": of_type(str),
    "data.seq_len": number(int, Interval(2)),
    "data.stride": _WHOLE,
    "data.batch": _COUNT,
    "data.sharding": one_of(SHARDINGS),
}

_WORKERS: Mapping[str, Rule] = {
    "train.replicas": _COUNT,
    "train.rounds": _COUNT,
    "train.local_steps": _COUNT,
    "train.learning_rate": _POSITIVE,
    "train.warmup_steps": _WHOLE,
    "train.final_lr_fraction": _FRACTION,
    "train.b1": _DECAY,
    "train.b2": _DECAY,
    "train.weight_decay": _NOT_NEGATIVE,
    "train.clip": _NOT_NEGATIVE,
}

_BLOCK_MODEL: Mapping[str, Rule] = {
    "model.blocks": _COUNT,
    "model.layers": _COUNT,
    "model.width": _COUNT,
    "model.heads": _COUNT,
    "model.mlp_ratio": _COUNT,
    "model.layout": one_of(LAYOUTS),
    "model.head": one_of(HEADS),
    "model.target_radius": _POSITIVE,
    "model.noisy_input_std": _NOT_NEGATIVE,
    "model.compute_dtype": one_of(COMPUTE_DTYPES),
    "model.remat": one_of(REMAT_POLICIES),
    "model.attention": one_of(ATTENTIONS),
    "model.rotary": of_type(bool),
    "diffusion.sigma_min": _POSITIVE,
    "diffusion.sigma_max": _POSITIVE,
    "diffusion.p_mean": number(float, Interval()),
    "diffusion.p_std": _POSITIVE,
    "diffusion.sigma_data": _POSITIVE,
    "diffusion.overlap": _NOT_NEGATIVE,
    "diffusion.grid": one_of(GRIDS),
    "train.context_mask": _FRACTION,
    "train.context_fill": one_of(FILLS),
}

_BLOCKS: Mapping[str, Rule] = {
    **_BLOCK_MODEL,
    "methods": tuple_of(one_of(METHODS), repr(METHODS)),
    "train.learning_rate_end_to_end": _POSITIVE,
    "train.learning_rate_block_sized": _POSITIVE,
    "outer.name": one_of(OUTER_OPTIMIZERS),
    "outer.learning_rate": _POSITIVE,
    "outer.momentum": _DECAY,
    "eval.every": _COUNT,
    "eval.curve_windows": _COUNT,
    # A window borrows another's context, so that one alone has no scrambled gap.
    "eval.windows": number(int, Interval(2)),
    "eval.batch": _COUNT,
    "eval.mix_draws": _COUNT,
    "checkpoint.every": _COUNT,
    "checkpoint.keep": _COUNT,
    "checkpoint.keep_best": _WHOLE,
    "checkpoint.timeout": _POSITIVE,
    "checkpoint.wait": of_type(bool),
    "checkpoint.digest": one_of(DIGESTS),
    "mesh.block": _WHOLE,
    "mesh.replica": _WHOLE,
    "mesh.fsdp": _WHOLE,
}

_METHOD = matching(r"[a-z][a-z0-9_]*", "must be the name of a recipe")

_DELAYS: Mapping[str, Rule] = {
    "seeds": _COUNT,
    "methods": tuple_of(_METHOD, repr(("adam", "cgad"))),
    "model.layers": _COUNT,
    "model.width": _COUNT,
    "model.heads": _COUNT,
    "model.kv_heads": _COUNT,
    "model.mlp_width": _COUNT,
    "model.compute_dtype": one_of(COMPUTE_DTYPES),
    "model.remat": one_of(REMAT_POLICIES),
    "train.precision": one_of(PRECISIONS),
    "train.keep_inner": of_type(bool),
    "delay.protocol": one_of(PROTOCOLS),
    "delay.start": one_of(STARTS),
    "delay.kind": one_of(DELAYS),
    "delay.tau": _WHOLE,
    "delay.per_worker": tuple_of(_WHOLE, "(0, 1, 2, 4)", distinct=False),
    "delay.trace": of_type(str),
    "sync.fragments": _COUNT,
    "sync.schedule": one_of(SCHEDULES),
    "sync.periods": tuple_of(_COUNT, "(1, 2, 4, 8)", distinct=False),
    "sync.offsets": tuple_of(_WHOLE, "(0, 1, 2, 3)", distinct=False),
    "sync.drop": number(float, Interval(0, 1, below=True)),
    "sync.quorum": _WHOLE,
    "sync.grace": _NOT_NEGATIVE,
    "sync.mixing": _FRACTION,
    "eval.every": _COUNT,
    "eval.windows": _COUNT,
    "eval.batch": _COUNT,
    "eval.last": _COUNT,
}

_LATE: Mapping[str, Rule] = {
    "network.deadline": _NOT_NEGATIVE,
    "network.late": one_of(("drop", "gate")),
    "network.max_age": _COUNT,
    "network.quorum": _WHOLE,
    "network.grace": _NOT_NEGATIVE,
}

_NETWORK: Mapping[str, Rule] = {
    **_BLOCK_MODEL,
    **{name: _DELAYS[name] for name in ("seeds", "methods")},
    **{f"eval.{name}": _COUNT for name in ("every", "windows", "batch", "last")},
    "network.preset": one_of(tuple(PRESETS)),
    "network.profiles": of_type(str),
    "network.trace": of_type(str),
    **_LATE,
}

_EXCHANGE: Mapping[str, Rule] = {
    **_BLOCK_MODEL,
    **_LATE,
    "exchange.workers": _COUNT,
    "exchange.encoding": one_of(ENCODINGS),
    "exchange.broadcast": one_of(("full", *ENCODINGS[1:])),
    "exchange.zstd": number(int, Interval(0, 19)),
    "exchange.rule": one_of(RULES_OF_REPLICAS),
    "exchange.trim": number(float, Interval(0, 0.5, below=True)),
    "exchange.heartbeat": _POSITIVE,
    "exchange.lease": _POSITIVE,
    "exchange.idle": _POSITIVE,
    "exchange.drain": _NOT_NEGATIVE,
    "exchange.quota": _POSITIVE,
    "hosts.kind": one_of(HOSTS),
    "hosts.delay_seconds": _NOT_NEGATIVE,
    "hosts.rate_bits": _NOT_NEGATIVE,
    "hosts.loss": number(float, Interval(0, 1, below=True)),
    "eval.every": _COUNT,
    "eval.windows": _COUNT,
    "eval.batch": _COUNT,
    "checkpoint.keep": number(int, Interval(2)),  # workers may still read the older
    "checkpoint.keep_best": _WHOLE,
    "checkpoint.timeout": _POSITIVE,
}


def _with_float32(value: Any) -> str:
    """Without it there is nothing to compare with."""
    wrong = tuple_of(one_of(ENCODINGS), repr(ENCODINGS))(value)
    return wrong or ("" if "float32" in value else "must have 'float32' among them")


_ENCODINGS: Mapping[str, Rule] = {
    **_BLOCK_MODEL,
    "seeds": _COUNT,
    "encodings": _with_float32,
    "zstd": number(int, Interval(1, 19)),
    "both_ways": of_type(bool),
    **{f"eval.{name}": _COUNT for name in ("every", "windows", "batch")},
}

# Of the outer optimizers of delayed runs; a recipe's own settings obey them too.
OUTER_RULES: Mapping[str, Rule] = {
    "learning_rate": _POSITIVE,
    "momentum": _DECAY,
    "b1": _DECAY,
    "b2": _DECAY,
    "eps": _POSITIVE,
    "alpha": _NOT_NEGATIVE,
    "tau_cut": _POSITIVE,
    "exponent": _NOT_NEGATIVE,
    "period": _COUNT,
    "tau_c": _POSITIVE,
}

_BOUND_METHOD = tuple_of(one_of(BOUND_METHODS), repr(("adam", "cgad")))


def _with_adam(value: Any) -> str:
    """Without age-blind Adam nothing could be said about the gate."""
    wrong = _BOUND_METHOD(value)
    return wrong or ("" if "adam" in value else "must have 'adam' among them: add it")


_BOUND: Mapping[str, Rule] = {
    "seeds": _COUNT,
    "methods": _with_adam,
    "functions": tuple_of(one_of(BOUND_FUNCTIONS), repr(BOUND_FUNCTIONS)),
    "train.replicas": _COUNT,
    "train.rounds": _COUNT,
    "train.noise": _NOT_NEGATIVE,
    "delay.tau_max": tuple_of(_COUNT, "(1, 2, 4, 8)"),
    "delay.kinds": tuple_of(one_of(("fixed", "uniform")), "('fixed', 'uniform')"),
    "outer.learning_rates": tuple_of(_POSITIVE, "(0.01, 0.1)"),
    "outer.alpha": _POSITIVE,
    "eval.last": number(float, Interval(0, 1, above=True)),
}

_MEMORY: Mapping[str, Rule] = {
    **{
        field: _BLOCKS[field]
        for field in (
            *("model.blocks", "model.layers", "model.mlp_ratio", "model.head"),
            *("model.compute_dtype", "model.remat"),
        )
    },
    "model.widths": tuple_of(_COUNT, "(512, 1024)"),
    "model.head_width": _COUNT,
    "data.seq_len": _TEXT["data.seq_len"],
    "data.batch": _COUNT,
    "train.local_steps": _COUNT,
    "compile.up_to": _WHOLE,
}

_FLEET: Mapping[str, Rule] = {
    "policies": tuple_of(one_of(FLEET_POLICIES), repr(FLEET_POLICIES)),
    "fleet.blocks": _COUNT,
    "fleet.replicas": _COUNT,
    "fleet.hours": _POSITIVE,
    "fleet.part_bytes": _COUNT,
    "fleet.needed": _COUNT,
    "fleet.timely": number(float, Interval(0, 1, above=True)),
    "fleet.largest_group": number(int, Interval(1, 256)),
    "train.local_steps": _COUNT,
    "network.profiles": of_type(str),
    "network.deadline": _POSITIVE,
    "network.max_age": number(int, Interval(1, 64)),
    "network.quorum_share": number(float, Interval(0, 1, above=True)),
    "network.grace": _NOT_NEGATIVE,
}

# By kind of experiment: the rule of every field.
RULES: Mapping[str, Mapping[str, Rule]] = {
    "blocks": {**_SHARED, **_TEXT, **_WORKERS, **_BLOCKS},
    "delays": {
        **_SHARED,
        **_TEXT,
        **_WORKERS,
        **_DELAYS,
        **{f"outer.{name}": rule for name, rule in OUTER_RULES.items()},
    },
    "network": {
        **_SHARED,
        **_TEXT,
        **_WORKERS,
        **_NETWORK,
        **{f"outer.{name}": rule for name, rule in OUTER_RULES.items()},
    },
    "exchange": {
        **_SHARED,
        **_TEXT,
        **_WORKERS,
        **_EXCHANGE,
        **{f"outer.{name}": rule for name, rule in OUTER_RULES.items()},
    },
    "encodings": {
        **_SHARED,
        **_TEXT,
        **_WORKERS,
        **_ENCODINGS,
        **{f"outer.{name}": rule for name, rule in OUTER_RULES.items()},
    },
    "bound": {
        **_SHARED,
        **{f"outer.{n}": OUTER_RULES[n] for n in ("momentum", "b1", "b2", "eps")},
        "outer.tau_cut": OUTER_RULES["tau_cut"],
        **_BOUND,
    },
    "memory": {**_SHARED, **_MEMORY},
    "fleet": {**_SHARED, **_FLEET},
}
