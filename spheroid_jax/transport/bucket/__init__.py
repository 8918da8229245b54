"""The same round through an object store, for those who outgrow one coordinator host.

Workers read the model from a bucket and write their updates to it; the coordinator
reads updates from it. Only objects are put, read, listed and deleted. See
``docs/bucket.md``.
"""
