"""Parameters, bytes and FLOPs of a model, from its shape alone.

As in :mod:`spheroid_jax.models.flops`, FLOPs are those of matmuls, two per
multiply-add. Nothing here imports JAX: a plan needs no accelerator.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from spheroid_jax.serving.errors import ServingError

KINDS = ("blocktrain", "autoregressive")
SIGMA_FEATURES = 32  # sines and cosines of the noise level, see models.interface


@dataclasses.dataclass(frozen=True)
class ModelSize:
    """What of a model decides what serving it takes.

    Attributes:
      width: d.
      layers: in total; ``blocks`` divides it.
      blocks: B, the units that are placed on hosts: blocks of BlockTrain, equal cuts
        of the autoregressive model.
      heads: of attention; divides ``width``.
      mlp_width: hidden width of the MLP.
      places: T, positions that the model knows.
      kind: one of ``KINDS``. BlockTrain's stages hold a whole interface each, and so do
        those of the autoregressive pipeline, as both are served here.
      vocabulary: V.
      tied: whether the head is tied to the byte table.
      parameter_bytes: of a stored parameter: 4 float32, 2 half precision.
      compute_bytes: of an activation and of an entry of the KV cache.
    """

    width: int
    layers: int
    blocks: int
    heads: int
    mlp_width: int
    places: int
    kind: str = "blocktrain"
    vocabulary: int = 256
    tied: bool = False
    parameter_bytes: int = 4
    compute_bytes: int = 4

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("kind", "tied"):
                continue
            if not isinstance(value, int) or value < 1:
                raise ServingError(
                    f"{field.name} is {value!r}; give a whole number from 1"
                )
        if self.kind not in KINDS:
            raise ServingError(f"kind is {self.kind!r}; use one of {', '.join(KINDS)}")
        if self.layers % self.blocks:
            raise ServingError(
                f"layers is {self.layers}, which {self.blocks} blocks don't divide; "
                f"give a multiple of {self.blocks}"
            )
        if self.width % self.heads:
            raise ServingError(
                f"width is {self.width}, which {self.heads} heads don't divide; "
                f"give a multiple of {self.heads}"
            )

    @classmethod
    def of_config(cls, config: Mapping[str, Any], **changes: Any) -> "ModelSize":
        """The size of a configuration of kind ``blocks``; ``changes`` override fields.

        Args:
          config: as a ``config.json`` holds it, or a ConfigDict.
          changes: fields of this class.
        """
        try:
            model, data = config["model"], config["data"]
            values = {
                "width": model["width"],
                "layers": model["blocks"] * model["layers"],
                "blocks": model["blocks"],
                "heads": model["heads"],
                "mlp_width": model["mlp_ratio"] * model["width"],
                "places": data["seq_len"],
                "tied": model["head"] == "tied",
                "compute_bytes": 4 if model["compute_dtype"] == "float32" else 2,
            }
        except KeyError as error:
            raise ServingError(
                f"the configuration has no {error.args[0]}: serving takes one of kind "
                "blocks, such as configs/b3_l4.py"
            ) from None
        return cls(**{**values, **changes})

    def as_kind(self, kind: str) -> "ModelSize":
        """The same depth and width, as the other kind."""
        return dataclasses.replace(self, kind=kind)

    @property
    def layer_parameters(self) -> int:
        """Of one layer; 12 d² + 13 d at the usual MLP of 4 d."""
        d, m = self.width, self.mlp_width
        attention = 4 * d * d + 4 * d
        mlp = 2 * d * m + m + d
        return attention + mlp + 4 * d  # two norms

    @property
    def interface_parameters(self) -> int:
        """Byte table, positions, projections, norm and head."""
        d, vocabulary = self.width, self.vocabulary
        noisy = d * d + SIGMA_FEATURES * d if self.kind == "blocktrain" else 0
        head = 1 if self.tied else d * vocabulary
        entry = vocabulary * d + self.places * d + d * d
        return entry + noisy + 2 * d + head + vocabulary

    @property
    def parameters(self) -> int:
        """Of the model; its stages hold the interface once each."""
        return self.layers * self.layer_parameters + self.interface_parameters

    def layers_of(self, blocks: int) -> int:
        """Layers of so many blocks."""
        return blocks * self.layers // self.blocks

    def interfaces(self, blocks: int) -> int:
        """Interfaces on a host of so many blocks: BlockTrain's stages are one block."""
        return blocks if self.kind == "blocktrain" else 1

    def stage_bytes(self, blocks: int) -> int:
        """Parameters of so many blocks on one host, in bytes."""
        layers = self.layers_of(blocks) * self.layer_parameters
        interface = self.interfaces(blocks) * self.interface_parameters
        return self.parameter_bytes * (layers + interface)

    def cache_bytes(self, blocks: int, rows: int = 1) -> int:
        """Keys and values of all places, in bytes, for ``rows`` requests."""
        entry = 2 * self.width * self.compute_bytes
        return rows * self.layers_of(blocks) * self.places * entry

    def activation_bytes(self, rows: int, positions: int) -> int:
        """A step's work space in bytes: an estimate of what lives at once.

        The stream and what attention and the MLP add to it, attention scores over all
        places, two float32 arrays of logits.
        """
        d, m = self.width, self.mlp_width
        position = (8 * d + m) * self.compute_bytes
        scores = 4 * self.heads * self.places
        return rows * positions * (position + scores + 8 * self.vocabulary)

    def step_flops(self, blocks: int, rows: int, positions: int) -> float:
        """Forward FLOPs of a step through so many blocks on one host.

        Attention is counted as computed: over all places of the cache.
        """
        d, m = self.width, self.mlp_width
        layer = 2 * (4 * d * d + 2 * d * m) + 4 * self.places * d
        enter = (2 if self.kind == "blocktrain" else 1) * 2 * d * d
        # BlockTrain's block also turns its prediction into an embedding.
        leave = (2 if self.kind == "blocktrain" else 1) * 2 * d * self.vocabulary
        interface = self.interfaces(blocks) * (enter + leave)
        return float(rows * positions * (self.layers_of(blocks) * layer + interface))

    def step_bytes(self, blocks: int, rows: int) -> float:
        """Bytes that a step reads of memory: the stage's weights, its rows' cache."""
        return float(self.stage_bytes(blocks) + self.cache_bytes(blocks, rows))

    def bucket(self, positions: int) -> int:
        """Positions that are computed for so many: a power of two, T at most."""
        return min(self.places, 1 << max(0, positions - 1).bit_length())
