"""A configuration that makes no sense is refused by name, all faults at once."""

import math

import pytest
from ml_collections import ConfigDict

from spheroid_jax import config, fields
from spheroid_jax.schema import RULES
from spheroid_jax.validation import ConfigError, problems, validate


def changed(start: str = "blocks", **values: object) -> ConfigDict:
    """A kind's default with fields set, ``__`` for the dot, types unchecked."""
    c = config.KINDS[start]()
    with c.ignore_type():
        for name, value in values.items():
            *sections, last = name.split("__")
            section = c
            for part in sections:
                section = section[part]
            section[last] = value
    return c


EVERY = [
    (kind, field, value)
    for kind, start in config.KINDS.items()
    for field, value in fields.leaves(start()).items()
]


@pytest.mark.parametrize("kind", config.KINDS)
def test_the_default_is_sound_on_one_device(kind: str) -> None:
    assert problems(config.KINDS[kind](), 1) == []


@pytest.mark.parametrize("kind", config.KINDS)
def test_every_field_has_one_rule(kind: str) -> None:
    by_value = ("recipes.", "kinds.", "outer.recipe")
    ruled = {f for k, f, _ in EVERY if k == kind and not f.startswith(by_value)}
    assert set(RULES[kind]) == ruled


@pytest.mark.parametrize(("kind", "field"), [(k, f) for k, f, _ in EVERY])
def test_every_field_refuses_a_value_of_another_type(kind: str, field: str) -> None:
    wrong = changed(kind, **{field.replace(".", "__"): None})
    assert [line for line in problems(wrong, 1) if line.startswith(f"{field}=None ")]


NUMBERS = [(k, f) for k, f, value in EVERY if isinstance(value, int | float)]


@pytest.mark.parametrize(("kind", "field"), NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "8"])
def test_every_number_refuses_what_is_no_finite_number(
    kind: str, field: str, value: object
) -> None:
    wrong = changed(kind, **{field.replace(".", "__"): value})
    assert any(
        line.startswith(f"{field}={value} must be") for line in problems(wrong, 1)
    )


@pytest.mark.parametrize("kind", ["blocks", "network", "exchange", "encodings"])
def test_a_share_that_cuts_no_window_is_refused(kind: str) -> None:
    share = {"train__context_mask": 0.05, "data__batch": 8}
    (line,) = problems(changed(kind, **share), 1)
    assert line == (
        "train.context_mask=0.05 cuts no window of data.batch=8: "
        "use 0.125 or more, or 0"
    )
    share["train__context_mask"] = 0.125
    assert problems(changed(kind, **share), 1) == []


def test_a_bool_is_no_whole_number() -> None:
    assert problems(changed(seed=True), 1) == ["seed=True must be a whole number"]


# field, a refused value, and an accepted one next to it where there is one
EDGES = [
    ("seed", -1, 0),
    ("seed", 2**32, 2**32 - 1),
    ("model.blocks", 0, 1),
    ("model.layers", 0, 1),
    ("model.width", 0, 4),
    ("model.heads", 0, 1),
    ("model.mlp_ratio", 0, 1),
    ("model.target_radius", 0.0, 1e-3),
    ("model.noisy_input_std", -0.1, 0.0),
    ("diffusion.sigma_min", 0.0, 0.002),
    ("diffusion.p_std", 0.0, 1.0),
    ("diffusion.sigma_data", 0.0, 0.1),
    ("diffusion.overlap", -0.1, 0.0),
    ("data.seq_len", 1, 2),
    ("data.stride", -1, 0),
    ("data.batch", 0, 1),
    ("train.replicas", 0, 1),
    ("train.rounds", 0, 2),
    ("train.local_steps", 0, 2),
    ("train.learning_rate", 0.0, 1e-9),
    ("train.learning_rate_end_to_end", -1e-3, 1e-3),
    ("train.learning_rate_block_sized", 0.0, 1e-3),
    ("train.warmup_steps", -1, 0),
    ("train.final_lr_fraction", 1.1, 1.0),
    ("train.final_lr_fraction", -0.1, 0.0),
    ("train.b1", 1.0, 0.0),
    ("train.b2", 1.0, 0.999),
    ("train.weight_decay", -0.1, 0.0),
    ("train.clip", -1.0, 0.0),
    ("train.context_mask", 1.1, 1.0),
    ("train.context_mask", -0.1, 0.0),
    ("outer.learning_rate", 0.0, 0.7),
    ("outer.momentum", 1.0, 0.0),
    ("eval.every", 0, 1),
    ("eval.curve_windows", 0, 16),
    ("eval.windows", 0, 16),
    ("eval.batch", 0, 1),
    ("eval.mix_draws", 0, 1),
    ("checkpoint.every", 0, 1),
    ("checkpoint.keep", 0, 1),
    ("checkpoint.keep_best", -1, 0),
    ("checkpoint.timeout", 0.0, 0.1),
    ("mesh.block", -1, 0),
    ("mesh.replica", -1, 0),
    ("mesh.fsdp", -1, 0),
]


@pytest.mark.parametrize(("field", "refused", "accepted"), EDGES)
def test_ranges_end_where_they_should(
    field: str, refused: float, accepted: float
) -> None:
    name = field.replace(".", "__")
    (line,) = problems(changed(**{name: refused}), 8)
    assert line.startswith(f"{field}={refused} must be ")
    assert problems(changed(**{name: accepted}), 8) == []


@pytest.mark.parametrize(
    ("field", "value", "cure"),
    [
        ("methods", ("blocktrain", "endtoend"), "did you mean end_to_end?"),
        ("methods", (), "such as ('blocktrain'"),
        ("methods", ("blocktrain", "blocktrain"), "leave one out"),
        ("methods", ("blocktrain", 1.5), "must be text"),
        ("model.layout", "algined", "did you mean aligned?"),
        ("model.head", "united", "did you mean untied?"),
        ("model.compute_dtype", "float16", "did you mean bfloat16?"),
        ("model.remat", "dot", "did you mean dots?"),
        ("model.attention", "cuda", "did you mean cudnn?"),
        ("diffusion.grid", "edges", "upper_edges"),
        ("train.context_fill", "draw", "did you mean drawn?"),
        ("data.sharding", "workers", "did you mean worker?"),
        ("outer.name", "adam", "use sgd or nesterov"),
        ("data.corpus", "wikitext-2", "did you mean wikitext-2-raw?"),
        ("data.corpus", "text.txt", "file:PATH"),
        ("data.corpus", "file:", "file:PATH"),
        ("name", "a/b", "letters"),
        ("name", "", "letters"),
        ("size", "..", "letters"),
    ],
)
def test_names_are_refused_with_the_nearest_one(
    field: str, value: object, cure: str
) -> None:
    (line,) = problems(changed(**{field.replace(".", "__"): value}), 1)
    assert line.startswith(f"{field}={value} ")
    assert cure in line


@pytest.mark.parametrize("value", ["auto", "embedded", "wikitext-103-raw", "file:a b"])
def test_corpora(value: str) -> None:
    assert problems(changed(data__corpus=value), 1) == []


@pytest.mark.parametrize(
    ("changes", "devices", "expected"),
    [
        (
            {"model__heads": 5},
            1,
            "model.heads=5 does not divide model.width=64: use 4 or 8",
        ),
        (
            {"model__width": 6, "model__heads": 7},
            1,
            "model.heads=7 does not divide model.width=6: use 6",
        ),
        (
            {"diffusion__sigma_min": 10.0, "diffusion__sigma_max": 1.0},
            1,
            "diffusion.sigma_min=10.0 must be below diffusion.sigma_max=1.0:"
            " exchange them",
        ),
        (
            {"diffusion__sigma_min": 10.0},
            1,
            "diffusion.sigma_min=10.0 must be below diffusion.sigma_max=10.0:"
            " raise diffusion.sigma_max",
        ),
        (
            {"eval__windows": 250},
            1,
            "eval.windows=250 is not a multiple of eval.batch=16: use 240 or 256",
        ),
        (
            {"eval__curve_windows": 5},
            1,
            "eval.curve_windows=5 is not a multiple of eval.batch=16: use 16",
        ),
        (
            {"mesh__block": 2},
            8,
            "mesh.block=2 mesh.replica=1 mesh.fsdp=1 does not fit: mesh.block does not"
            " divide model.blocks=3, use mesh.block=3 mesh.replica=1 mesh.fsdp=1"
            " (3 of 8 devices)",
        ),
        (
            {"mesh__block": 3, "mesh__replica": 4, "train__replicas": 6},
            8,
            "mesh.block=3 mesh.replica=4 mesh.fsdp=1 does not fit: mesh.replica does"
            " not divide train.replicas=6, it needs 12 devices and there are 8,"
            " use mesh.block=3 mesh.replica=2 mesh.fsdp=1 (6 of 8 devices)",
        ),
        (
            {"mesh__block": 3},
            1,
            "mesh.block=3 mesh.replica=1 mesh.fsdp=1 does not fit: it needs 3 devices"
            " and there are 1, use mesh.block=1 mesh.replica=1 mesh.fsdp=1"
            " (1 of 1 devices)",
        ),
        (
            {"mesh__fsdp": 8, "data__batch": 19},
            8,
            "mesh.block=1 mesh.replica=1 mesh.fsdp=8 does not fit: mesh.fsdp does not"
            " divide data.batch=19 (16 and 24 would do), use mesh.block=1"
            " mesh.replica=1 mesh.fsdp=1 (1 of 8 devices)",
        ),
        (
            {"model__attention": "cudnn"},
            1,
            "model.attention=cudnn can't be used: there is no NVIDIA GPU of the Ampere"
            " generation or newer with cuDNN: use auto",
        ),
    ],
)
def test_combinations_name_the_nearest_that_fits(
    changes: dict[str, object], devices: int, expected: str
) -> None:
    assert problems(changed(**changes), devices) == [expected]


def test_a_noise_range_that_the_log_normal_never_reaches_is_refused() -> None:
    far = {"diffusion__sigma_min": 50.0, "diffusion__sigma_max": 80.0}
    (line,) = problems(changed(**far), 1)
    assert "diffusion.p_mean=-1.2" in line
    # Two blocks around the mean of ln sigma hold much of it, and so do they all.
    assert problems(changed(**far, diffusion__p_mean=math.log(60.0)), 1) == []
    assert (
        problems(changed(diffusion__sigma_min=0.002, diffusion__sigma_max=80.0), 1)
        == []
    )


def test_a_mesh_that_fits_is_accepted() -> None:
    assert problems(changed(mesh__block=3, train__replicas=2, mesh__replica=2), 6) == []


def test_a_faulty_field_does_not_hide_other_problems_nor_repeat_itself() -> None:
    found = problems(changed(model__heads=0, eval__windows=9, model__head="x"), 1)
    assert len(found) == 3
    assert {line.partition("=")[0] for line in found} == {
        "model.heads",
        "model.head",
        "eval.windows",
    }


def test_fields_that_are_missing_unknown_or_no_section() -> None:
    c = changed(train__round=8)
    del c.eval.every
    with c.ignore_type():
        c.outer = 3
    found = problems(c, 1)
    assert "there is no field train.round: did you mean train.rounds?" in found
    assert "eval.every is missing: begin with spheroid_jax.config.default()" in found
    assert any(line.startswith("outer is a section, not a field") for line in found)


def test_validate_raises_one_line_with_every_problem() -> None:
    c = changed(train__rounds=0, model__heads=5)
    with pytest.raises(ConfigError) as caught:
        validate(c, device_count=1)
    assert str(caught.value) == "; ".join(problems(c, 1))
    assert str(caught.value).count("; ") == 1
    assert "\n" not in str(caught.value)


def test_validate_counts_the_devices_of_jax() -> None:
    # The tests run on eight devices.
    c = changed(model__blocks=8, mesh__block=8)
    validate(c)
    with pytest.raises(ConfigError, match=r"it needs 16 devices and there are 8"):
        validate(changed(model__blocks=16, mesh__block=16))


def sweep(**values: object) -> ConfigDict:
    c = config.default()
    c.sweep = ConfigDict(
        {
            "axis": "model.layers",
            "cells": ("model.layers=1", "model.layers=2 train.rounds=30"),
            "log_x": True,
            "series": ("ce_chain", "end_to_end"),
        }
        | values
    )
    return c


def test_a_sweep_is_sound() -> None:
    assert problems(sweep(), 1) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"axis": "model.layer"}, ["sweep.axis=model.layer is unknown: did you mean"]),
        ({"axis": "model.layout"}, ["sweep.axis=model.layout holds no number"]),
        ({"cells": ()}, ["sweep.cells=() must be a tuple that isn't empty"]),
        ({"cells": "model.layers=1"}, ["sweep.cells=model.layers=1 must be a tuple"]),
        ({"cells": (1, 2)}, ["sweep.cells=(1, 2) has element 1, which must be text"]),
        (
            {"cells": ("model.layers=0", "model.heads=5", "layers=1", "model.layers")},
            [
                "sweep.cells[0] 'model.layers=0': model.layers=0 must be at least 1",
                "sweep.cells[1] 'model.heads=5': model.heads=5 does not divide",
                "sweep.cells[2] 'layers=1': there is no field layers: did you mean"
                " model.layers?",
                "sweep.cells[3] 'model.layers': 'model.layers' sets nothing",
            ],
        ),
        (
            {"axis": "data.stride", "cells": ("data.stride=0", "data.stride=8")},
            ["sweep.cells[0] 'data.stride=0': data.stride=0 has no logarithm"],
        ),
        ({"cells": ("sweep.log_x=false",)}, ["sweep.cells[0] 'sweep.log_x=false': "]),
        ({"log_x": 1}, ["sweep.log_x=1 must be true or false"]),
        ({"series": ("ce chain",)}, ["sweep.series=('ce chain',) has element"]),
        ({"colour": "red"}, ["there is no field sweep.colour"]),
    ],
)
def test_a_sweep_is_refused_by_cell(
    values: dict[str, object], expected: list[str]
) -> None:
    found = problems(sweep(**values), 1)
    assert len(found) == len(expected)
    for line, start in zip(found, expected, strict=True):
        assert line.startswith(start)


def test_a_fault_of_the_base_is_not_repeated_by_every_cell() -> None:
    c = sweep()
    c.eval.windows = 9
    assert len(problems(c, 1)) == 1


def test_an_axis_that_the_base_lacks_is_one_problem() -> None:
    c = sweep()
    del c.model.layers
    found = problems(c, 1)
    assert found == [
        "model.layers is missing: begin with spheroid_jax.config.default()"
    ]
