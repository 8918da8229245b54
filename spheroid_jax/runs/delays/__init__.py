"""Outer optimizers under delay: one compiled program a method, runs as its axes."""
