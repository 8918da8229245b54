"""The delay bound on smooth functions whose gradient is known."""
