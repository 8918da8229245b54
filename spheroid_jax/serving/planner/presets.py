"""The shape and the hosts of the paper's serving row, as far as they are public."""

import math

from spheroid_jax.serving.decoding import Method
from spheroid_jax.serving.planner.cluster import Cluster, Host
from spheroid_jax.serving.planner.itinerary import Request
from spheroid_jax.serving.planner.placement import Load, place
from spheroid_jax.serving.planner.predict import Wire, latency_for, predict
from spheroid_jax.serving.planner.size import ModelSize

# 12 d² + 13 d a layer: the narrowest multiple of 1024 above 4096 at which 3 blocks of
# whole layers come to 75.80 B parameters within 0.1 %. The paper gives neither.
PAPER = ModelSize(
    width=10240,
    layers=60,
    blocks=3,
    heads=80,
    mlp_width=40960,
    places=2048,
    parameter_bytes=2,
    compute_bytes=2,
)

# Peaks of the data sheets, so no host is faster than this: half precision without
# sparsity. GPU memory of a data sheet's GB is about as many GiB.
HOSTS = (
    # NVIDIA GH200 Grace Hopper Superchip data sheet: 96 GB HBM3, 4 TB/s, 990 TFLOP/s.
    Host("GH200", memory=96, bandwidth=4000, flops=990),
    # NVIDIA A100 80GB PCIe data sheet: 80 GB HBM2e, 1935 GB/s, 312 TFLOP/s.
    Host("A100-a", memory=80, bandwidth=1935, flops=312),
    Host("A100-b", memory=80, bandwidth=1935, flops=312),
)
WIRE = Wire(float_bytes=2)
LOAD = Load(slots=16, max_batch=8, positions=128)


def paper_latency(
    rate: float,
    size: ModelSize = PAPER,
    link_rate: float = math.inf,
    output: int = 128,
) -> float:
    """Seconds one way at which the autoregressive pipeline makes ``rate`` bytes/s.

    It is the one number that is fitted: the paper doesn't say how far the hosts are
    from each other.
    """
    size = size.as_kind("autoregressive")
    cluster = Cluster.even(HOSTS, 0.0, link_rate)
    placed = place(size, cluster, LOAD)
    request = Request(1, output, Method("token"))
    return latency_for(predict(size, cluster, placed, request, wire=WIRE), output, rate)
