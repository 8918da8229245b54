"""Late and missing workers: how much does keeping late updates win back?

Source: BlockTrain (arXiv 2606.24722), whose quality falls with participation: CE 2.151
at 90 % (mild), 2.595 at 42 % (WAN), 5.638 at 0 % (bad edge), with updates after the
deadline dropped. Here each regime runs with ``drop`` and with ``gate``, where a late
worker is heard in a later round and its update is weighed by its age. Two cells close
a round by a quorum instead of a deadline; their rounds are fewer or more, so that they
end at about the same simulated time. The network is simulated: seconds and bytes are
counted, not waited for. What we measured is in the README.

    python -m experiments.sweep --config=configs/async_regimes.py:quick  # minutes
    python -m experiments.sweep --config=configs/async_regimes.py:small  # an hour
"""

from ml_collections import ConfigDict

from spheroid_jax import config
from spheroid_jax.fields import Sizes, at_size

# Age-blind ones first: with "drop" nothing is late, and the others are the same.
AGE_BLIND = ("mean", "nesterov", "adam")
WEIGHED = ("mean_weighted", "cgad")
ALL = ("mean", "mean_weighted", "nesterov", "nesterov_weighted", "adam", "cgad")

SIZES: Sizes = {
    "quick": {
        "model.width": 64,
        "model.heads": 2,
        "model.target_radius": 0.25,
        "data.seq_len": 64,
        "data.batch": 4,
        "train.rounds": 15,
        "seeds": 1,
    },
    "small": {
        "model.width": 64,
        "model.heads": 2,
        "model.target_radius": 0.25,
        "data.seq_len": 64,
        "data.batch": 4,
        "train.rounds": 40,
        "seeds": 3,
    },
}


def _cell(preset: str, late: str, methods: tuple[str, ...], more: str = "") -> str:
    names = ",".join(methods)
    return f"network.preset={preset} network.late={late} methods={names} {more}".strip()


def _by_quorum(rounds: int) -> tuple[str, str]:
    """The first update of each block and 0.3 s more; and three updates of four.

    Under the preset ``wan`` a round then takes 1.35 s and 3.0 s on average instead of
    2 s (clock alone, three fleets of 400 rounds), and rounds are scaled by that: other
    programs to compile, which ``quick`` has no time for (``rounds`` is 0).
    """
    gate = "network.deadline=8.0 network.quorum"
    return (
        _cell(
            "wan", "gate", WEIGHED, f"{gate}=1 network.grace=0.3 {_rounds(rounds, 1.5)}"
        ),
        _cell("wan", "gate", WEIGHED, f"{gate}=3 {_rounds(rounds, 0.67)}"),
    )


def _rounds(rounds: int, factor: float) -> str:
    return f"train.rounds={5 * round(rounds * factor / 5)}" if rounds else ""


def get_config(size: str = "quick") -> ConfigDict:
    """Returns the sweep at one of ``SIZES``.

    Raises:
      ConfigError: if there is no such size.
    """
    c = config.network()
    c.name = "async_regimes"
    c.methods = ALL
    rounds = SIZES["small"]["train.rounds"] if size == "small" else 0
    c.sweep = config.delay_cells(
        "network.preset",
        (
            _cell("lockstep", "drop", AGE_BLIND),
            _cell("mild", "drop", AGE_BLIND),
            _cell("mild", "gate", ALL),
            _cell("wan", "drop", AGE_BLIND),
            _cell("wan", "gate", ALL),
            _cell("bad_edge", "drop", AGE_BLIND),
            _cell("bad_edge", "gate", ALL),
            *_by_quorum(rounds),
        ),
        panel="network.late",
    )
    return at_size(c, SIZES, size)
