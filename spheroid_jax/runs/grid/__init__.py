"""Grids of compiled runs: outer optimizers at settings, with all their seeds."""
