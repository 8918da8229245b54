"""Attention by the compiler or by a fused kernel, whichever can work.

cuDNN's flash attention needs a GPU, half precision and heads of certain widths, and
fails on anything else; XLA's attention runs everywhere. Shapes: N sequences, S
positions, h heads of width w.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

ATTENTIONS = ("auto", "xla", "cudnn")
_HALF = ("bfloat16", "float16")
# cuDNN takes heads of 256 from Hopper on; 128 is what Ampere takes as well.
_WIDEST = 128
_OLDEST = (8, 0)  # compute capability: Ampere


def unfused(head_width: int, dtype: DTypeLike, *, gpu: bool) -> str:
    """Why cuDNN's attention can't be used, or an empty string.

    Args:
      head_width: w, channels of one head.
      dtype: of queries, keys and values.
      gpu: whether there is a GPU that has it, see :func:`has_fused_attention`.
    """
    if not gpu:
        return "there is no NVIDIA GPU of the Ampere generation or newer with cuDNN"
    if jnp.dtype(dtype).name not in _HALF:
        return f"it takes {' and '.join(_HALF)}, not {jnp.dtype(dtype).name}"
    if head_width % 8 or head_width > _WIDEST:
        return (
            f"heads must be multiples of 8 wide and at most {_WIDEST},"
            f" and are {head_width}"
        )
    return ""


def has_fused_attention() -> bool:
    """Whether JAX runs on a GPU whose cuDNN has flash attention."""
    if jax.default_backend() != "gpu":
        return False
    device = jax.local_devices()[0]
    capability = str(getattr(device, "compute_capability", ""))
    numbers = [int(n) for n in capability.split(".") if n.isdigit()]
    # Under ROCm this is a name such as gfx90a.
    return len(numbers) == len(capability.split(".")) and tuple(numbers) >= _OLDEST


def choose_attention(
    asked: str, head_width: int, dtype: DTypeLike, *, masked: bool, gpu: bool
) -> Literal["xla", "cudnn"]:
    """The implementation for ``asked``, one of ``ATTENTIONS``.

    ``auto`` takes cuDNN's for plainly causal attention where it can work: with a mask
    of its own it would have to be given as a bias of all pairs.

    Raises:
      ValueError: cuDNN's was asked for and can't work, or there is no such name.
    """
    if asked not in ATTENTIONS:
        raise ValueError(f"attention is {asked!r}; use one of {', '.join(ATTENTIONS)}")
    if asked == "xla":
        return "xla"
    why = unfused(head_width, dtype, gpu=gpu)
    if asked == "cudnn":
        if why:
            raise ValueError(f"attention is 'cudnn', but {why}; use auto")
        return "cudnn"
    return "xla" if why or masked else "cudnn"


def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *,
    implementation: str = "auto",
) -> Array:
    """Attention (N, S, h, w), causal where no mask is given.

    Args:
      query: (N, S, h, w).
      key: (N, S, g, w); g divides h, queries in groups share a key and a value.
      value: (N, S, g, w).
      mask: true where attention is allowed, bool (S, S).
      implementation: one of ``ATTENTIONS``.
    """
    chosen = choose_attention(
        implementation,
        query.shape[-1],
        query.dtype,
        masked=mask is not None,
        gpu=has_fused_attention(),
    )
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        mask=None if mask is None else mask[None, None],
        is_causal=mask is None,
        implementation=chosen,
    )
