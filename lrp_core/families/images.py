"""Families of models that read images as a class token and patches: the record that describes them, and ViT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from closelook.lrp_core.families.base import Family
from closelook.lrp_core.families.layout import ONE_LABEL
from closelook.lrp_core.records.capabilities import UNCENTRED, Capability
from closelook.lrp_core.records.kinds import IMAGE_CLASSIFIER


@dataclass(frozen=True, kw_only=True)
class ImageFamily(Family):
    """The description of a family of image models; `token_embedding` is the convolution that embeds patches."""

    embeddings: str = ""  # path of the module that adds positions to the class token and the patches
    class_token: str = "cls_token"  # its parameter [1, 1, D]
    positions: str = "position_embeddings"  # its parameter [1, T, D]

    @property
    def title(self) -> str:
        return f"{self.name} models"

    @property
    def capabilities(self) -> frozenset[Capability]:
        """As of other families, and UNCENTRED: gradients are taken at pixels, which no norm follows directly."""
        return (super().capabilities | {UNCENTRED}).difference(self.lacks)

    def most_tokens(self, config: Any) -> int:
        """The number of tokens of an image: one for the class and one for each patch."""
        (height, width), (of_patch, across) = both(config.image_size), both(config.patch_size)
        return 1 + (height // of_patch) * (width // across)


def both(size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) from a config value that is one number or a pair."""
    if isinstance(size, int):
        return size, size
    height, width = size
    return height, width


#: The head reads the class token after the final norm; there is no pooler.
VIT = ImageFamily(
    name="vit",
    kind=IMAGE_CLASSIFIER,
    blocks="vit.layers",
    embeddings="vit.embeddings",
    token_embedding="vit.embeddings.patch_embeddings.projection",
    norm="layer",
    norm_order="pre",
    final_norm="vit.layernorm",
    unembedding="classifier",
    attention="attention",
    query="attention.q_proj",
    key="attention.k_proj",
    value="attention.v_proj",
    output="attention.o_proj",
    attention_norm="layernorm_before",
    mlp_norm="layernorm_after",
    activation="mlp.activation_fn",
    up="mlp.fc1",
    down="mlp.fc2",
    requires=(ONE_LABEL,),
)
