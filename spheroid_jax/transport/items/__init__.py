"""Items of a checkpoint on their way: published by the one, fetched by the other.

An item is immutable and known by its digest, which vouches for its index, which
vouches for every piece of its data. So it doesn't matter where a piece comes from.
"""
