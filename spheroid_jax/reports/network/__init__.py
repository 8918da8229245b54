"""Reports of block training over a virtual network."""
