"""A stage as a process: what waits, what is computed together, where it goes then."""
