"""The coordinator: holds the model, gives out work, takes updates in, steps."""

from spheroid_jax.transport.coordinator.board import Settings
from spheroid_jax.transport.coordinator.core import METHOD, Coordinator
from spheroid_jax.transport.coordinator.model import ExchangeState, Model, Rules

__all__ = ["METHOD", "Coordinator", "ExchangeState", "Model", "Rules", "Settings"]
