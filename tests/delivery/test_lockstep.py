"""Lockstep delivery accepts everybody."""

import jax.numpy as jnp
import numpy as np
import pytest

from spheroid_jax.delivery import lockstep


@pytest.mark.parametrize(("blocks", "replicas"), [(1, 1), (3, 2)])
def test_every_update_of_a_round_is_accepted(blocks: int, replicas: int) -> None:
    accepted = lockstep(blocks, replicas)
    assert accepted.shape == (blocks, replicas)
    assert accepted.dtype == jnp.bool_
    assert np.all(accepted)
