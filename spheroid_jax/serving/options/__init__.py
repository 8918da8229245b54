"""What the command lines of programs that serve say.

Nothing here imports JAX: a mistake is told at once.
"""
