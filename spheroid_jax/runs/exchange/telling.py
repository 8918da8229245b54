"""What a coordinator says of its run as it starts."""

from pathlib import Path

from ml_collections import ConfigDict

from spheroid_jax import data
from spheroid_jax.runs.exchange.options import CoordinatorOptions
from spheroid_jax.runs.opening import corpus_lines
from spheroid_jax.transport.coordinator.board import Board

_NO_DEADLINE = (
    "NOTE: rounds have no deadline: one worker that hangs and still gives signs of "
    "life holds up all others. Set network.deadline, unless all workers are yours"
)


def opening(config: ConfigDict, corpus: data.Corpus, workdir: Path) -> list[str]:
    """What is trained, on what, and what becomes of those who are late."""
    m, t, e = config.model, config.train, config.exchange
    late = {"drop": "late updates are dropped", "gate": "late updates count later"}
    deadline = config.network.deadline
    ends = f"rounds of at most {deadline:g} s, " if deadline else ""
    return [
        *(f"NOTE: {note}" for note in corpus.notes),
        f"{config.name} ({config.size}) in {workdir}",
        *corpus_lines(corpus)[:1],
        f"{m.blocks} blocks x {t.replicas} replicas, {t.rounds} rounds x "
        f"{t.local_steps} steps; {ends}{late[config.network.late]}; updates as "
        f"{e.encoding}",
        *([] if deadline else [_NO_DEADLINE]),
    ]


def stopping(board: Board) -> str:
    """What a coordinator still waits for that is asked to stop."""
    if board.state == "closing":
        return f"stops once round {board.round + 1} is saved"
    sending = sum(m.doing == "sending" for m in board.members.live())
    if board.state == "finished" or not sending:
        return "stops"
    what = "the upload" if sending == 1 else f"the {sending} uploads"
    drain = board.settings.drain
    verb = "is" if sending == 1 else "are"
    return f"stops once {what} on the way {verb} in, in {drain:g} s at most"


def welcome(options: CoordinatorOptions, port: int, board: Board) -> str:
    """Where it listens, and the commands with which a worker joins."""
    scheme = "https" if options.context else "http"
    host = "localhost" if options.host in ("127.0.0.1", "::1") else options.host
    if host in ("0.0.0.0", "::"):
        host = "THIS-HOST"
    url = f"{scheme}://{host}:{port}"
    ca = " --ca=PEM (if the certificate is your own)" if options.context else ""
    done = board.round
    state = f"goes on after round {done}" if done else "waits for workers"
    if done >= board.settings.rounds:
        state = f"all {done} rounds are done; tells so to workers who ask"
    lines = [
        state,
        f"dashboard: {url}/",
        "a worker joins with a token of its own:",
        f"  (umask 077; python -m experiments.tokens --workdir={options.workdir} "
        "--add=NAME > NAME.token)",
        f"  python -m experiments.worker --coordinator={url} --token-file=NAME.token"
        f"{ca}",
    ]
    if options.bucket is not None:
        lines.append(
            f"or with --coordinator={options.bucket.address.url} --name=NAME instead"
        )
    return "\n".join(lines)
