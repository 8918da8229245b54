"""Block training over a virtual network."""
