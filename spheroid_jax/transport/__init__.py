"""The real network: a coordinator that holds the model, and workers that come and go.

The same round as everywhere: parts go out, pseudo-gradients come back, an outer
optimizer steps. What is particular to a network of machines that fail is here: names
and tokens, transfers that go on where they broke off, what is written to disk before
it is promised, and who works on what. ``docs/protocol.md`` says what goes over the
wire.
"""
