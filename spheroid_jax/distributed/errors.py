"""What goes wrong between processes."""

CURE = (
    "nothing is lost but the round in progress: start every process again with --resume"
)


class DistributedError(RuntimeError):
    """Processes can't run together; one line with the cure."""
