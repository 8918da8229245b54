"""The coordinator's dashboard: a page for people, numbers for programs."""

from spheroid_jax.transport.dashboard.app import Viewing, add_dashboard

__all__ = ["Viewing", "add_dashboard"]
