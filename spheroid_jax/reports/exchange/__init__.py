"""Reports of runs between processes: what the network cost, and what it changed."""
