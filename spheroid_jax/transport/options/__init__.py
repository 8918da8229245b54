"""Command lines of the exchange's programs, read before anything that takes long.

Nothing here imports JAX: a mistake is told at once.
"""
