"""Numbers as bytes: a chunk of an update in float32, bfloat16, int8 or int4.

Bits a number, without zstd: 32, 16, 8.125 and 4.125. int8 and int4 are rounded, in
blocks of 256 and 128 numbers, to multiples of a scale of the block, which is its
largest magnitude over 127 or 7. Shorter blocks of int4 cost more than they give: on
trained updates, 64 numbers a block lose a tenth less, but zstd then saves 0.2 bits
less, which is worth more than that in precision. What is sent is at least eight times
smaller than float32 with zstd; see ``benchmarks/update_encoding.py``. int4's scales are
bfloat16, since float16's range ends at 6e-8, where deltas don't.

All rounding is to nearest, ties to even, so that the same numbers are always the same
bytes. A chunk is encoded by itself and can be read by itself.
"""

from typing import NamedTuple

import ml_dtypes
import numpy as np
import zstandard

KINDS = ("float32", "bfloat16", "int8", "int4")
ZSTD_LEVELS = range(23)  # 0: off
# What isn't float32 takes magnitudes up to here only, far from where scales overflow.
LARGEST = 2.0**126
# The most that a frame of zstd may need to be decoded; chunks are smaller.
_WINDOW = 1 << 21


class _Blocks(NamedTuple):
    """How whole numbers stand for a block of numbers."""

    length: int  # numbers
    top: int  # the largest code, for the block's largest magnitude
    scale: np.dtype


_BLOCKS = {
    "int8": _Blocks(256, 127, np.dtype("<f4")),
    "int4": _Blocks(128, 7, np.dtype(ml_dtypes.bfloat16)),
}


class UpdateError(ValueError):
    """An update that can't be written, read or used; one line."""


class Encoding(NamedTuple):
    """How numbers are written: ``kind`` of ``KINDS``, ``zstd`` a level, 0 for off."""

    kind: str = "float32"
    zstd: int = 0


def check(encoding: Encoding) -> None:
    """Raises ValueError for an encoding that there isn't."""
    kind, level = encoding
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(
            f"encoding kind is {str(kind)[:80]!r}: take one of {', '.join(KINDS)}"
        )
    if type(level) is not int or level not in ZSTD_LEVELS:
        raise ValueError(
            f"zstd level is {str(level)[:80]}: take 0 (off) to {ZSTD_LEVELS[-1]}"
        )


def plain_size(kind: str, count: int) -> int:
    """Bytes of ``count`` numbers before zstd."""
    if kind == "float32":
        return 4 * count
    if kind == "bfloat16":
        return 2 * count
    blocks = _BLOCKS[kind]
    codes = count if kind == "int8" else -(-count // 2)
    return codes + -(-count // blocks.length) * blocks.scale.itemsize


def largest_size(encoding: Encoding, count: int) -> int:
    """The most bytes that ``encode`` returns for ``count`` numbers."""
    size = plain_size(encoding.kind, count)
    # zstd's own bound on what doesn't compress, rounded up.
    return size if encoding.zstd == 0 else size + size // 128 + 512


def encode(values: np.ndarray, encoding: Encoding) -> bytes:
    """Encodes numbers.

    Args:
      values: (n,) float32, n > 0. float32 takes anything, NaN too. The other kinds
        make nonsense of what isn't finite or is over ``LARGEST``; see ``fault``.
      encoding: checked.
    """
    kind, level = encoding
    if kind == "float32":
        plain = _planes(values.astype("<f4", copy=False), level)
    elif kind == "bfloat16":
        plain = _planes(values.astype(ml_dtypes.bfloat16), level)
    else:
        plain = _encode_blocks(values, kind)
    if level == 0:
        return plain
    return zstandard.ZstdCompressor(level=level, write_checksum=False).compress(plain)


def decode(data: bytes, count: int, encoding: Encoding) -> np.ndarray:
    """Returns what ``encode`` was given, as precise as its kind: (count,) float32.

    Whatever ``data`` is, no more memory is taken than ``count`` numbers need. Bytes
    that no encoder made may decode to NaN or infinity.

    Raises:
      UpdateError: ``data`` isn't ``count`` numbers in this encoding.
    """
    kind, level = encoding
    size = plain_size(kind, count)
    plain = _decompress(data, size) if level else data
    if len(plain) != size:
        raise UpdateError(f"{len(plain)} bytes where {count} numbers take {size}")
    if kind == "float32":
        return _joined(plain, np.dtype("<f4"), level).astype(np.float32, copy=False)
    if kind == "bfloat16":
        return _joined(plain, np.dtype(ml_dtypes.bfloat16), level).astype(np.float32)
    return _decode_blocks(plain, count, kind)


def fault(values: np.ndarray, kind: str) -> str:
    """Why numbers can't be sent in an encoding of this kind; empty if they can."""
    top = float(np.max(np.abs(values), initial=0.0))
    if not np.isfinite(top):
        return "a value that is NaN or infinite"
    if kind != "float32" and top > LARGEST:
        return f"a value of magnitude {top:.3g}, over {kind}'s {LARGEST:.3g}"
    return ""


def _planes(values: np.ndarray, level: int) -> bytes:
    """Bytes of numbers; for zstd, all their first bytes, then all their second, ....

    That puts the exponents side by side: bfloat16 takes a tenth less.
    """
    if level == 0:
        return values.tobytes()
    return values.view(np.uint8).reshape(len(values), -1).T.tobytes()


def _joined(plain: bytes, dtype: np.dtype, level: int) -> np.ndarray:
    """The inverse of ``_planes``."""
    if level == 0:
        return np.frombuffer(plain, dtype)
    planes = np.frombuffer(plain, np.uint8).reshape(dtype.itemsize, -1)
    return np.ascontiguousarray(planes.T).view(dtype)[:, 0]


def _encode_blocks(values: np.ndarray, kind: str) -> bytes:
    length, top, dtype = _BLOCKS[kind]
    padded = np.zeros((-(-len(values) // length), length), np.float32)
    padded.reshape(-1)[: len(values)] = values
    largest = np.maximum(padded.max(axis=1), -padded.min(axis=1))
    scales = (largest / np.float32(top)).astype(dtype)
    # A scale of zero: the block is zeros, or too small for a scale: 0 * code is 0.
    divisors = scales.astype(np.float32)
    divisors[divisors == 0] = np.inf
    padded /= divisors[:, np.newaxis]
    np.rint(padded, out=padded)
    # Scales under 1e-38 have few bits: the largest number may be beyond the last code.
    np.clip(padded, -top, top, out=padded)
    codes = padded.astype(np.int8).reshape(-1)
    if kind == "int4":
        nibbles = codes.view(np.uint8) & 15
        codes = (nibbles[0::2] | (nibbles[1::2] << 4)).view(np.int8)
    kept = len(values) if kind == "int8" else -(-len(values) // 2)
    return scales.tobytes() + codes[:kept].tobytes()


def _decode_blocks(plain: bytes, count: int, kind: str) -> np.ndarray:
    length, _, dtype = _BLOCKS[kind]
    blocks = -(-count // length)
    scales = np.frombuffer(plain, dtype, blocks).astype(np.float32)
    codes = np.frombuffer(plain, np.int8, offset=blocks * dtype.itemsize)
    if kind == "int4":
        pairs = np.empty((len(codes), 2), np.int8)
        pairs[:, 0] = (codes << 4) >> 4  # the shift back carries the sign
        pairs[:, 1] = codes >> 4
        codes = pairs.reshape(-1)[:count]
    padded = np.zeros((blocks, length), np.float32)
    padded.reshape(-1)[:count] = codes
    with np.errstate(over="ignore", invalid="ignore"):  # scales that no encoder made
        padded *= scales[:, np.newaxis]
    return padded.reshape(-1)[:count]


def _decompress(data: bytes, size: int) -> bytes:
    """The content of one frame of zstd, which must say that it is ``size`` bytes."""
    try:
        # Before it is decoded: that takes as much memory as the frame asks for.
        claimed = zstandard.frame_content_size(data)
        if claimed != size:
            raise UpdateError(f"zstd of {claimed} bytes where there must be {size}")
        return zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompress(
            data, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        said = " ".join(str(error).split())[:200]
        raise UpdateError(f"bytes that aren't zstd ({said})") from error
