"""What a stage says of programs that aren't compiled when it begins to serve."""

from spheroid_jax.runs.serving.stage import not_warm
from spheroid_jax.serving.host.serve import shapes
from spheroid_jax.serving.options.stage import warm_shapes
from spheroid_jax.serving.stages import block_stages, layer_stages
from tests.serving.naive_chain import GRID, denoiser, reference

BLOCK = block_stages(denoiser(), GRID)[1]  # of 12 places
LAYERS = layer_stages(reference(2), 2)[0]


def test_what_is_missing_is_a_flag_that_makes_it_warm() -> None:
    flag = not_warm(BLOCK, [(1, "given")])
    assert "12:drafted" in flag
    warm = warm_shapes(flag)
    assert (1, "given") in warm  # what was asked for already stays
    assert not_warm(BLOCK, warm) == ""
    assert {shape.fill for shape in shapes(BLOCK, warm, 1)} == {"given", "drafted"}


def test_a_reference_reads_texts_and_single_bytes() -> None:
    flag = not_warm(LAYERS, [(1, "given")])
    assert {"1", "12"} <= set(flag.split(","))
    assert ":" not in flag  # nothing is drafted
    assert not_warm(LAYERS, warm_shapes(flag)) == ""
