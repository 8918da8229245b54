"""The exchange over HTTP: what the coordinator serves and what a worker asks.

``server`` builds and runs the application, ``routes`` answers. ``bodies`` reads what
peers send, ``uploads`` keeps what has come of an update, ``downloads`` sends the files
of items, ``limits`` says how much and how slowly a peer may talk. ``client`` is the
worker's side.
"""
