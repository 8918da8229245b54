"""Fields of block training between a coordinator and workers on a real network."""

from ml_collections import ConfigDict

from spheroid_jax.config import sections


def exchange() -> ConfigDict:
    """Returns the configuration of a coordinator and its workers, at its defaults."""
    c = sections.start("exchange", "wan")

    c.model = sections.block_model()
    c.model.layers = 2
    c.model.remat = "none"
    c.diffusion = sections.diffusion()
    c.data = sections.data()

    # Slots: replicas per block; who has none waits as a spare.
    c.train = sections.late_train(4e-3, rounds=60)
    c.train.replicas = 2
    sections.unknown_context(c.train)

    c.network = ConfigDict()
    c.network.deadline = 0.0  # seconds after which a round closes; 0 = none
    c.network.late = "drop"  # drop | gate: late updates are lost | count later
    c.network.max_age = 8  # rounds after which a late update is too old; gate only
    c.network.quorum = 0  # updates of each block that close a round; 0 = all
    c.network.grace = 0.0  # seconds that a round stays open beyond its quorum

    c.exchange = ConfigDict()
    c.exchange.workers = 1  # that must be there before the first round opens
    c.exchange.encoding = "bfloat16"  # float32 | bfloat16 | int8 | int4, of updates
    c.exchange.broadcast = "full"  # full | bfloat16 | int8 | int4, of what changed
    c.exchange.zstd = 0  # level of compression on top; 0 = none
    c.exchange.rule = "mean"  # mean | trimmed_mean | median, of a block's replicas
    c.exchange.trim = 0.2  # share left out at each end; trimmed_mean only
    c.exchange.heartbeat = 5.0  # seconds between a worker's signs of life
    c.exchange.lease = 20.0  # seconds of silence after which its slot is given away
    c.exchange.idle = 20.0  # seconds without a byte after which a transfer is cut
    c.exchange.drain = 30.0  # seconds to let uploads end when asked to stop
    c.exchange.quota = 64.0  # GiB that uploads may take on the coordinator's disk

    # Where experiments.run starts the processes; nobody else looks at it.
    c.hosts = ConfigDict()
    # loopback: all on one host. proxy: an address of 127.0.0.0/8 each, and a proxy
    # beside each worker. namespaces: a network namespace each, and such proxies; where
    # those aren't permitted, addresses, and the report says so.
    c.hosts.kind = "loopback"  # loopback | proxy | namespaces
    c.hosts.delay_seconds = 0.0  # of each worker's link, each way; not for loopback
    c.hosts.rate_bits = 0.0  # bits per second of it, each way; 0 = any
    c.hosts.loss = 0.0  # share of its segments that get lost

    c.outer = sections.outer()
    c.outer.recipe = "sgd learning_rate=1.0"  # the outer optimizer; docs/optim.md

    c.eval = ConfigDict()
    c.eval.every = 1  # rounds between points of the curve
    c.eval.windows = 64  # validation windows of a point
    c.eval.batch = 32  # windows per compiled evaluation step

    c.checkpoint = ConfigDict()
    c.checkpoint.keep = 2  # newest checkpoints kept; workers read from them
    c.checkpoint.keep_best = 0  # besides, those of the lowest CE on validation
    c.checkpoint.timeout = 1800.0  # seconds after which a save has failed
    return c


def encodings() -> ConfigDict:
    """Returns the configuration of a comparison of encodings, at its defaults."""
    c = sections.start("encodings", "update_encodings")
    c.seeds = 3  # from seed on; each trains once with every encoding
    c.encodings = ("float32", "bfloat16", "int8", "int4")  # float32 is compared with
    c.zstd = 3  # level of the compression that each is also measured with
    c.both_ways = True  # also with what changed going down in the same encoding

    c.model = sections.block_model()
    c.model.layers = 2
    c.model.remat = "none"
    c.diffusion = sections.diffusion()
    c.data = sections.data()
    c.train = sections.late_train(4e-3, rounds=60)
    c.train.replicas = 2
    sections.unknown_context(c.train)

    c.outer = sections.outer()
    c.outer.recipe = "sgd learning_rate=1.0"  # the outer optimizer; docs/optim.md

    c.eval = ConfigDict()
    c.eval.every = 1  # rounds between points of the curve
    c.eval.windows = 64  # validation windows of a point
    c.eval.batch = 32  # windows per compiled evaluation step
    return c
