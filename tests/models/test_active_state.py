"""The paper's active-state table, from the shapes of our own layers."""

from collections.abc import Callable
from typing import Any

import jax
import pytest

from spheroid_jax.memory import active_state, active_states
from spheroid_jax.models import BlockDenoiser

WIDTH = 512
# What the published figures leave for the interface (spec section 7).
PAPER_INTERFACE = 2 * WIDTH**2 + 355 * WIDTH


def paper_size(denoiser: Callable[..., BlockDenoiser], layers: int, blocks: int) -> Any:
    model = denoiser(
        layers={"width": WIDTH, "heads": 8, "mlp_width": 2048, "layers": layers},
        width=WIDTH,
        seq_len=256,
    )
    return jax.eval_shape(lambda key: model.init(key, blocks), jax.random.key(0))


def size(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    ("layers", "gib"), [(1, 0.0575), (2, 0.1045), (4, 0.198), (12, 0.574)]
)
def test_active_adamw_state_is_the_published_one(
    layers: int, gib: float, denoiser: Callable[..., BlockDenoiser]
) -> None:
    block = size(paper_size(denoiser, layers, 1)["blocks"])
    assert block == layers * (12 * WIDTH**2 + 13 * WIDTH)
    row = active_state("paper", block + PAPER_INTERFACE)
    assert row.adamw_gib == pytest.approx(gib, abs=6e-4)


def test_rows_are_one_worker_its_interface_and_the_full_stack(
    denoiser: Callable[..., BlockDenoiser],
) -> None:
    shapes = paper_size(denoiser, 4, 3)
    worker, interface, full = active_states(shapes, 3)
    layers = 4 * (12 * WIDTH**2 + 13 * WIDTH)
    assert interface.params == size(shapes["interface"])
    assert worker.params == layers + interface.params
    assert full.params == 3 * layers + interface.params
    # 16 bytes each: the parameter, its gradient and two moments.
    assert worker.adamw_gib == worker.params * 16 / 2**30
    # Ours has learnt positions and a head of its own: a little above the paper's.
    assert 0.198 < worker.adamw_gib < 0.205
    assert full.adamw_gib / worker.adamw_gib == pytest.approx(2.87, abs=0.02)
