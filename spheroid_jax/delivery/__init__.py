"""What arrives when: the virtual network."""

from spheroid_jax.delivery.lockstep import lockstep

__all__ = ["lockstep"]
