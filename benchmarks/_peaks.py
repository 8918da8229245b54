"""Published peaks of accelerators, to say which share of one a program reaches."""

import jax

# Dense bfloat16 matmul FLOP/s of one device by what JAX calls it (`device_kind`), from
# the makers' data sheets, without sparsity. The longest name that fits counts.
BF16_PEAKS = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,  # SXM
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H200": 989e12,  # SXM
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA GH200": 989e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,  # v5e
    "TPU v5e": 197e12,
    "TPU v5": 459e12,  # v5p
    "TPU v5p": 459e12,
}


def peak_of(kind: str) -> float | None:
    """Peak of a device kind in FLOP/s, or None where it is not known, as on a CPU."""
    names = [name for name in BF16_PEAKS if _begins(kind, name)]
    return BF16_PEAKS[max(names, key=len)] if names else None


def _begins(kind: str, name: str) -> bool:
    """Whole words: `NVIDIA A100-SXM4-80GB` begins with `NVIDIA A100`."""
    follows = kind[len(name) : len(name) + 1]
    return kind.startswith(name) and not follows.isalnum()


def model_flops_utilisation(
    flops_per_second: float, kind: str | None = None, devices: int = 1
) -> float | None:
    """MFU: the model's own FLOP/s over the peak of the devices that made them.

    The model's FLOPs are those of :mod:`spheroid_jax.models.flops`, without what is
    computed again for the backward pass (PaLM, arXiv 2204.02311, appendix B).

    Args:
      flops_per_second: of the model, all devices together.
      kind: by default that of JAX's first device.
      devices: how many.

    Returns:
      A share of 1, or None where the peak is not known.
    """
    peak = peak_of(jax.devices()[0].device_kind if kind is None else kind)
    return None if peak is None else flops_per_second / (devices * peak)
