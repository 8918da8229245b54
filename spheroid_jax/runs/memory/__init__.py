"""What workers have to hold: states by arithmetic, steps by compiling them."""
