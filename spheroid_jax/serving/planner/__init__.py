"""What serving a model takes, and how fast it will be, before anything is bought.

Pure functions: :func:`place` puts blocks on hosts, :func:`predict` tells the seconds
and bytes of a method's trips.
"""

from spheroid_jax.serving.planner.cluster import (
    GIB,
    Cluster,
    Host,
    Link,
    parse_host,
    read_cluster,
)
from spheroid_jax.serving.planner.itinerary import Request, Trip, itinerary
from spheroid_jax.serving.planner.placement import Load, Placed, place, placed_on
from spheroid_jax.serving.planner.predict import (
    Prediction,
    Wire,
    latency_for,
    predict,
    step_seconds,
)
from spheroid_jax.serving.planner.size import KINDS, ModelSize

__all__ = [
    "GIB",
    "KINDS",
    "Cluster",
    "Host",
    "Link",
    "Load",
    "ModelSize",
    "Placed",
    "Prediction",
    "Request",
    "Trip",
    "Wire",
    "itinerary",
    "latency_for",
    "parse_host",
    "place",
    "placed_on",
    "predict",
    "read_cluster",
    "step_seconds",
]
